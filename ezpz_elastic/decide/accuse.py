"""Rule 10: when peers point at one another, who may be named.

A peer whose connection broke is named only if two ranks on two other hosts point at it, or one does and its own agent
does not answer; and never if it told a story of its own first, or was alive to accuse somebody itself. Several may be
named at once, if no rank points at two of them (the second connection may have broken because of the first) and they
do not outnumber those who point at them (a few that have lost the network accuse many).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ezpz_elastic.decide.evidence import Role
from ezpz_elastic.decide.findings import Finding
from ezpz_elastic.decide.hosts import HostTable
from ezpz_elastic.decide.verdict import Cause

__all__ = ["Judgement", "judge_accusations"]


class Judgement(msgspec.Struct, frozen=True):
    """What the accusations amount to.

    Args:
        convicted: the hosts that may be named.
        suspects: hosts that were accused, with the number of independent accusers.
        accusations: the lines that count.
        why: one phrase.
    """

    convicted: tuple[str, ...]
    suspects: tuple[tuple[str, int], ...]
    accusations: tuple[Finding, ...]
    why: str


def judge_accusations(findings: Sequence[Finding], table: HostTable) -> Judgement:
    """Weigh all accusations of an attempt.

    Args:
        findings: everything that was said, in any order.
        table: the attempt's hosts; an accused outside it is as if never accused.
    """
    accusations = [item for item in findings if item.peer and item.cause is Cause.NETWORK]
    accusers: dict[str, set[str]] = {}
    silent: set[str] = set()
    counted: list[Finding] = []
    for item in accusations:
        accused = table.name(item.peer)
        if accused is None or accused == item.reporter or not table.known:
            continue
        counted.append(item)
        if item.reporter is not None:
            accusers.setdefault(accused, set()).add(item.reporter)
        else:
            accusers.setdefault(accused, set())
        if item.probe is False:
            silent.add(accused)
    talkative = _with_own_story(findings, accusations)
    alive = {item.reporter for item in accusations if item.reporter is not None}
    answering = {table.name(item.peer) for item in accusations if item.probe is True}
    guilty = [
        host
        for host, by in accusers.items()
        if (len(by) >= 2 or (by and host in silent)) and host not in talkative | alive | answering
    ]
    suspects = tuple((host, len(by)) for host, by in accusers.items())
    pointing = {reporter for host in guilty for reporter in accusers[host]}
    if len(guilty) == 1 or (guilty and len(guilty) <= len(pointing) and not _twice(counted, guilty, table)):
        fewest = min(len(accusers[host]) for host in guilty)
        how = f"{fewest} hosts point at {'it' if len(guilty) == 1 else 'each'}" if fewest > 1 else "its agent is silent"
        return Judgement(tuple(guilty), suspects, tuple(counted), how)
    why = "several hosts are accused alike" if guilty else "too few independent accusers to name anybody"
    return Judgement((), suspects, tuple(counted), why)


def _twice(accusations: Sequence[Finding], guilty: Sequence[str], table: HostTable) -> bool:
    """Whether somebody points at more than one of them."""
    pointed: dict[object, str] = {}
    for item in accusations:
        who = item.rank if item.rank is not None else item.reporter
        accused = table.name(item.peer)
        if accused is not None and accused in guilty and pointed.setdefault(who, accused) != accused:
            return True
    return False


def _with_own_story(findings: Sequence[Finding], accusations: Sequence[Finding]) -> set[str]:
    """Hosts whose own processes said why they ended; an exit line told after the accusations is no such story."""
    first = {item.source: item.order for item in reversed(accusations)}
    return {
        item.host
        for item in findings
        if (item.primary or (item.cause is Cause.WORKER_EXIT and item.role is Role.CASCADE))
        and item.host is not None
        and (item.cause is not Cause.WORKER_EXIT or item.order < first.get(item.source, item.order + 1))
    }
