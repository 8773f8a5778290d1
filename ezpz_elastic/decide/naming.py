"""From a root cause to a verdict: the kind it has by default, and which hosts may honestly be named for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from ezpz_elastic.decide.accuse import judge_accusations
from ezpz_elastic.decide.evidence import Certainty, Role
from ezpz_elastic.decide.findings import Finding, Witness
from ezpz_elastic.decide.hosts import HostTable
from ezpz_elastic.decide.verdict import Cause, NamedHost, Provenance, Suspect, VerdictKind

__all__ = ["Naming", "name_hosts"]

_KIND = {
    Cause.WORKER_KILLED: VerdictKind.RETRYABLE_UNATTRIBUTED,
    Cause.OOM_HOST: VerdictKind.RETRYABLE_UNATTRIBUTED,
    Cause.STORAGE: VerdictKind.RETRYABLE_UNATTRIBUTED,
    Cause.QUOTA: VerdictKind.RETRYABLE_UNATTRIBUTED,
    Cause.SHM_FULL: VerdictKind.RETRYABLE_UNATTRIBUTED,
    Cause.CHECKPOINT_CORRUPT: VerdictKind.RETRYABLE_UNATTRIBUTED,
    Cause.PORT_IN_USE: VerdictKind.RETRYABLE_UNATTRIBUTED,
    Cause.WORKER_EXIT: VerdictKind.RETRYABLE_UNATTRIBUTED,
    Cause.USER_EXCEPTION: VerdictKind.USER_ERROR,
    Cause.LAUNCH_ERROR: VerdictKind.USER_ERROR,
}
_SEQUENCE = re.compile(r"SeqNum=(\d{1,15})")
_MEMBER = re.compile(r"\[(?:PG ([^\]\n]{1,160}?) )?Rank (\d{1,9})\]")
_WAITED = frozenset({"nccl.watchdog-timeout"})
_MISSES_ONE = "torch.monitored-barrier-all"
_IMPORT = re.compile(r"\b(?:ImportError|ModuleNotFoundError)\b")


class Naming:
    """The verdict's kind, its hosts and suspects, and the findings that carried it.

    Attributes:
        kind, cause: of the verdict.
        hosts: named hosts, in the order first seen.
        suspects: weak hints.
        support: the findings that count for it.
        certain: whether the cause is settled.
        why: one phrase for the reason.
    """

    def __init__(self, root: Finding) -> None:
        self.kind = _KIND.get(root.cause, VerdictKind.BAD_NODE_BLIND)
        self.cause = root.cause
        self.hosts: tuple[NamedHost, ...] = ()
        self.suspects: tuple[Suspect, ...] = ()
        self.support: list[Finding] = [root]
        self.certain = root.certainty is not Certainty.DOUBTFUL
        self.why = ""


def name_hosts(root: Finding, findings: Sequence[Finding], table: HostTable) -> Naming:
    """Decide kind and hosts for a root cause (the table in ``decisions.md``).

    Args:
        root: the chosen root.
        findings: everything that was said.
        table: the attempt's hosts.
    """
    naming = Naming(root)
    if root.kind:
        naming.kind = VerdictKind(root.kind)
        if naming.kind is VerdictKind.RETRYABLE_UNATTRIBUTED:
            naming.suspects = _suspects([root])
        return naming
    alike = [item for item in findings if item.primary and item.cause is root.cause and not item.kind]
    naming.support += [item for item in alike if item is not root]
    if root.witness is Witness.PROBE and naming.kind is VerdictKind.BAD_NODE_BLIND:
        _name_all(naming, alike)
    elif root.cause in _BY_CAUSE:
        _BY_CAUSE[root.cause](naming, alike, findings, table)
    if naming.kind is VerdictKind.BAD_NODE_BLIND and not naming.suspects and root.cause is not Cause.HANG:
        naming.suspects = _suspects(findings)
    return naming


def _name_for_device(naming: Naming, alike: Sequence[Finding], _: Sequence[Finding], __: HostTable) -> None:
    certain = [item for item in alike if item.certainty is Certainty.CERTAIN]
    if certain:
        _name_all(naming, certain)
    else:
        _name_if_one(naming, alike)


def _name_for_device_memory(naming: Naming, alike: Sequence[Finding], _: Sequence[Finding], __: HostTable) -> None:
    _name_if_one(naming, alike)


def _name_for_hang(naming: Naming, alike: Sequence[Finding], _: Sequence[Finding], table: HostTable) -> None:
    """Only a rank that is behind is a hint: whoever prints that it waited too long is the messenger."""
    told = [item for item in alike if item.witness is Witness.AGENT]
    _name_if_one(naming, told or _missing(alike) or behind(alike, table))
    if naming.kind is VerdictKind.BAD_NODE_BLIND:
        naming.suspects = _suspects(item for item in alike if item.signature not in _WAITED)


def _suspect(naming: Naming, alike: Sequence[Finding], _: Sequence[Finding], __: HostTable) -> None:
    naming.suspects = _suspects(alike)


def _excuse_imports(naming: Naming, alike: Sequence[Finding], findings: Sequence[Finding], table: HostTable) -> None:
    """A module missing on some hosts only, where ranks elsewhere are known to have come further: seen late there."""
    missing = [item for item in alike if _IMPORT.search(item.text)]
    failed = {item.host for item in missing}
    further = {item.reporter for item in findings if item.role is Role.CASCADE and item.cause is Cause.NETWORK}
    first = bool(missing) and missing[0] is naming.support[0] and missing[0].step is None
    elsewhere = None not in failed and len(failed) < table.count and bool(further - failed - {None})
    if first and elsewhere:
        naming.kind, naming.cause = VerdictKind.RETRYABLE_UNATTRIBUTED, Cause.STORAGE
        naming.why = "other hosts imported it: what lies on a shared file system is seen late on some"


def _name_all(naming: Naming, alike: Sequence[Finding]) -> None:
    """Every host that such a line is about; where the store or the scheduler speaks, those it names."""
    hosts = _named(alike)
    if any(item.witness is Witness.STORE for item in alike):
        hosts = _named(item for item in alike if item.witness in {Witness.STORE, Witness.SCHEDULER})
    if hosts:
        naming.kind, naming.hosts = VerdictKind.BAD_NODE_KNOWN, hosts
    else:
        naming.kind, naming.why = VerdictKind.BAD_NODE_BLIND, "nothing tells which host"


def _name_lost(naming: Naming, alike: Sequence[Finding], _: Sequence[Finding], __: HostTable) -> None:
    """Lost hosts; where only doubtful lines say so, one alone is a lost host and several are a launcher's teardown."""
    settled = [item for item in alike if item.certainty is not Certainty.DOUBTFUL]
    deaths = {(item.host, item.rank) if item.rank is not None else id(item) for item in alike}
    if settled or len(deaths) == 1:  # one death, however often it is told
        _name_all(naming, settled or alike)
        return
    naming.kind, naming.cause = VerdictKind.RETRYABLE_UNATTRIBUTED, Cause.WORKER_KILLED
    naming.suspects = _suspects(alike)
    naming.why = "several ranks alike: a teardown kills so too"


def _missing(hangs: Sequence[Finding]) -> list[Finding]:
    """The one rank that did not come to a barrier that waited for all, if nothing says so of another."""
    told = [item for item in hangs if item.signature.startswith("torch.monitored-barrier")]
    ranks = {item.rank for item in told}
    alone = len(ranks) == 1 and None not in ranks
    return told if alone and any(item.signature == _MISSES_ONE for item in told) else []


def behind(hangs: Sequence[Finding], table: HostTable) -> list[Finding]:
    """The one rank that is behind all others, if every rank of the attempt told how far it came.

    Only numbers of one process group are compared, and only of the group of all ranks: every group counts for itself,
    and subgroups may bear the same name. In the group of all a rank's number there is its number in the job.
    """
    groups: dict[str, dict[int, tuple[int, Finding]]] = {}
    for item in hangs:
        found, member = _SEQUENCE.search(item.text), _MEMBER.search(item.text)
        if found is None or item.rank is None or (member is not None and int(member.group(2)) != item.rank):
            continue
        came = groups.setdefault(member.group(1) or "" if member is not None else "", {})
        came.setdefault(item.rank, (int(found.group(1)), item))
    whole = [came for came in groups.values() if len(came) > 1 and len(came) == table.ranks]
    if len(whole) != 1:
        return []
    lowest = min(number for number, _ in whole[0].values())
    last = [item for number, item in whole[0].values() if number == lowest]
    return last if len(last) == 1 else []


def _name_if_one(naming: Naming, alike: Sequence[Finding]) -> None:
    """A doubtful cause names a host only if it points at exactly one and every line of it can be placed."""
    hosts = _named(alike)
    if len(hosts) == 1 and all(item.host is not None for item in alike):
        naming.kind, naming.hosts = VerdictKind.BAD_NODE_KNOWN, hosts
        return
    naming.kind = VerdictKind.BAD_NODE_BLIND
    naming.suspects = _suspects(alike)
    naming.why = "several hosts alike" if len(hosts) > 1 else "nothing tells which host"


def _name_accused(naming: Naming, _: Sequence[Finding], findings: Sequence[Finding], table: HostTable) -> None:
    judgement = judge_accusations(findings, table)
    probed = [item for item in findings if item.witness is Witness.PROBE and item.cause is Cause.NETWORK]
    naming.support += [item for item in judgement.accusations if item not in naming.support]
    naming.suspects = tuple(
        Suspect(host, 0.5 if count > 1 else 0.25, f"accused by {count} host(s)") for host, count in judgement.suspects
    )
    naming.why = judgement.why
    if judgement.convicted:
        naming.kind = VerdictKind.BAD_NODE_KNOWN
        naming.hosts = tuple(NamedHost(host, Provenance.ACCUSED) for host in judgement.convicted)
    elif probed:
        naming.kind, naming.hosts = VerdictKind.BAD_NODE_KNOWN, _named(probed)


def _named(findings: Iterable[Finding]) -> tuple[NamedHost, ...]:
    named: dict[str, NamedHost] = {}
    for item in findings:
        if item.host is not None and item.provenance is not None:
            named.setdefault(item.host, NamedHost(item.host, item.provenance))
    return tuple(named.values())


def _suspects(findings: Iterable[Finding]) -> tuple[Suspect, ...]:
    best: dict[str, Suspect] = {}
    for item in findings:
        if item.host is None or item.role is not Role.PRIMARY:
            continue
        known = best.get(item.host)
        if known is None or known.weight < item.weight:
            best[item.host] = Suspect(item.host, item.weight, f"{item.cause.value}: {item.text}"[:120])
    return tuple(best.values())


_Namer = Callable[[Naming, Sequence[Finding], Sequence[Finding], HostTable], None]
_BY_CAUSE: dict[Cause, _Namer] = {
    Cause.HOST_LOST: _name_lost,
    Cause.DEVICE_FAULT: _name_for_device,
    Cause.OOM_DEVICE: _name_for_device_memory,
    Cause.HANG: _name_for_hang,
    Cause.NETWORK: _name_accused,
    Cause.USER_EXCEPTION: _excuse_imports,
    Cause.WORKER_KILLED: _suspect,
    Cause.OOM_HOST: _suspect,
    Cause.WORKER_EXIT: _suspect,
}
"""How a cause comes to its hosts; a cause that is not here never names one."""
