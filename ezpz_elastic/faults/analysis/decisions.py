"""What was decided, held against what was seen and against the design's table of what is done by default. Pure.

This is a second reading of the table, not the policy itself: it says what a decision may be, so that a policy that has
gone wrong does not agree with itself here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ezpz_elastic.decide.verdict import Provenance
from ezpz_elastic.faults.analysis.read import BadNode
from ezpz_elastic.faults.analysis.story import Finding, Life, Retired, Story

__all__ = ["conformity", "retirements"]

_PERSON = "person"

_TOLD_TO_STOP = frozenset({"walltime", "preempted", "interrupted", "stuck_pre_training", "exhausted"})

_CONVICTS_AT_ONCE = frozenset({"host_lost", "network"})

_SECOND_TIME = frozenset({"worker_killed", "device_fault", "oom_host", "oom_device", "hang"})
"""Causes for which the same host, a second time and without progress in between, is taken out on suspicion."""

_POLICY_KINDS = frozenset({"exhausted", "user_error", "stuck_pre_training"})
"""What the policy may call a stop, whatever the verdict was."""


def retirements(story: Story, bad_nodes: Iterable[BadNode]) -> Iterator[Finding]:
    """Every retirement has a provenance and evidence, and its line in ``bad_nodes.txt``; no line is without one."""
    events = Counter((item.host, item.provenance, life.number) for life in story.lives for item in life.retired)
    lines = Counter((item.host, item.provenance, item.attempt) for item in bad_nodes)
    for host, provenance, number in (events - lines).elements():
        yield Finding("retirement", f"{host} ({provenance}) has no line in bad_nodes.txt", number)
    for host, provenance, number in (lines - events).elements():
        yield Finding("retirement", f"bad_nodes.txt has {host} ({provenance}), whom nothing retired", number)
    for life in story.lives:
        for item in life.retired:
            yield from _grounds(life, item)


def _grounds(life: Life, item: Retired) -> Iterator[Finding]:
    if item.provenance not in {*Provenance, _PERSON}:
        yield Finding(
            "retirement", f"{item.host} was retired as {item.provenance!r}, which is no provenance", life.number
        )
    if not item.reason:
        yield Finding("retirement", f"{item.host} was retired without a reason", life.number)
    if item.provenance == _PERSON:
        return
    if item.host not in life.roster:
        yield Finding("retirement", f"{item.host} was retired and held no slot", life.number)
    if not life.verdicts:
        yield Finding("retirement", f"{item.host} was retired without a verdict", life.number)
        return
    verdict = life.verdicts[0]
    named = {host["name"]: host["provenance"] for host in verdict["hosts"]}
    suspected = {hint["name"] for hint in verdict["suspects"]}
    grounded = {
        Provenance.LOST.value: item.host in life.lost or named.get(item.host) == item.provenance,
        Provenance.BLIND.value: verdict["kind"] == "bad_node_blind" and item.benched,
        Provenance.INFERRED.value: named.get(item.host) == item.provenance or item.host in suspected,
    }.get(item.provenance, named.get(item.host) == item.provenance)
    if not grounded:
        yield Finding("retirement", f"nothing in the verdict names {item.host} as {item.provenance}", life.number)
    if not verdict["evidence"]:
        yield Finding("retirement", f"{item.host} was retired without evidence", life.number)


def conformity(story: Story, on_blind: str = "suspect") -> Iterator[Finding]:
    """Every decision is one that its verdict and the table allow.

    Args:
        story: the run.
        on_blind: the job's blind policy.
    """
    before: list[Life] = []  # since the last progress
    durable = -1
    for life in story.lives:
        if life.durable is not None and life.durable > durable:
            durable, before = life.durable, []
        for decision in life.decisions[:1]:
            yield from _allowed(life, decision, before, on_blind)
        before.append(life)


def _allowed(life: Life, decision: dict[str, Any], before: list[Life], on_blind: str) -> Iterator[Finding]:
    def wrong(text: str) -> Finding:
        return Finding("policy", text, life.number)

    action, out = decision["action"], life.out()
    judged = [item for item in life.retired if item.host not in life.lost and item.provenance != _PERSON]
    stayed = [host for host in life.lost if host in life.roster and host not in out]
    if stayed:
        yield wrong(f"{', '.join(stayed)} is lost and keeps its slot")
    if (action == "stop") != (decision["exit_code"] != 0):
        yield wrong(f"the decision is {action} with exit code {decision['exit_code']}")
    if not life.verdicts:
        # Nobody failed: a person's order, or growth; or the round never began.
        if judged or (life.rosters and action != "restart"):
            yield wrong(f"decision {action} without a verdict")
        return
    verdict = life.verdicts[0]
    kind, cause = verdict["kind"], verdict["cause"]
    if decision["kind"] != kind and not (action == "stop" and decision["kind"] in _POLICY_KINDS):
        yield wrong(f"the verdict is {kind} and the decision {decision['kind']}")
    if (action == "finish") != (kind == "success"):
        yield wrong(f"decision {action} on verdict {kind}")
    if kind in _TOLD_TO_STOP and action != "stop":
        yield wrong(f"decision {action} on verdict {kind}")
    if kind == "bad_node_known" and action == "restart":
        yield from map(wrong, _spared(life, verdict, out))
    for item in judged:
        yield from map(wrong, _unfounded(item, verdict, before, on_blind))
    if kind == "bad_node_blind" and len(judged) > 1:
        yield wrong(f"{len(judged)} hosts were rotated on one guess")
    if action == "stop" and cause == "storage" and decision["kind"] not in {kind, *_POLICY_KINDS}:
        yield wrong(f"storage ended as {decision['kind']}")


def _spared(life: Life, verdict: dict[str, Any], out: set[str]) -> Iterator[str]:
    """Hosts that evidence convicts, and that were kept."""
    convicting = verdict["cause"] in _CONVICTS_AT_ONCE or verdict["certain"]
    if not convicting or verdict["cause"] in {"hang", "oom_device"}:
        return
    recent = sum(1 for item in life.retired if item.host not in life.lost)
    for host in verdict["hosts"]:
        if host["name"] in life.roster and host["name"] not in out and not recent and "times within" not in _why(life):
            yield f"{host['name']} is named ({host['provenance']}) and keeps its slot"


def _why(life: Life) -> str:
    return str(life.decisions[0]["reason"])


def _unfounded(item: Retired, verdict: dict[str, Any], before: list[Life], on_blind: str) -> Iterator[str]:
    """Why a host that was taken out by judgement should not have been."""
    kind, cause = verdict["kind"], verdict["cause"]
    if kind == "bad_node_blind":
        if on_blind == "never" or (on_blind == "suspect" and not any(_kind(life) == kind for life in before)):
            yield f"{item.host} was rotated at the first blind failure (on_blind={on_blind})"
    elif kind == "bad_node_known":
        doubtful = cause in {"hang", "oom_device"} or not (cause in _CONVICTS_AT_ONCE or verdict["certain"])
        if doubtful and not any(_at(life, item.host, cause) for life in before):
            yield f"{item.host} was retired at its first {cause}, which is doubtful"
    elif kind == "retryable_unattributed" and cause in _SECOND_TIME:
        if not any(_at(life, item.host, cause) for life in before):
            yield f"{item.host} was retired at its first {cause}"
    else:
        yield f"{item.host} was retired for {kind} ({cause}), which no host is to blame for"


def _kind(life: Life) -> str:
    return str(life.verdicts[0]["kind"]) if life.verdicts else ""


def _at(life: Life, host: str, cause: str) -> bool:
    """Whether a round ended of this cause at this host."""
    if not life.verdicts or life.verdicts[0]["cause"] != cause:
        return False
    return host in {item["name"] for item in (*life.verdicts[0]["hosts"], *life.verdicts[0]["suspects"])}
