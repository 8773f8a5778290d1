"""Ends that no host and no line of a crash decides: the scheduler's word, a person's hand, the bare exit code."""

from __future__ import annotations

import msgspec

from ezpz_elastic.decide.context import Context
from ezpz_elastic.decide.evidence import Role
from ezpz_elastic.decide.findings import Finding, evidence_line
from ezpz_elastic.decide.gather import Gathered
from ezpz_elastic.decide.verdict import Cause, EvidenceLine, VerdictKind

__all__ = ["WALLTIME_SLACK_S", "Outcome", "from_exit_code", "from_scheduler", "is_walltime_kill"]

WALLTIME_SLACK_S = 120.0
"""Seconds before the deadline within which a kill is the deadline's: schedulers signal before they kill."""

_KILLED = frozenset({143, 137, -15, -9, 271, 265})  # 271, 265: 256 + signal, as PBS reports them
_TERMINATED = frozenset({143, -15, 271})
_LEFT_BEHIND = frozenset({VerdictKind.WALLTIME.value, VerdictKind.PREEMPTED.value})


class Outcome(msgspec.Struct, frozen=True):
    """A verdict's kind, cause and reason, with the lines and findings that made it; ``stale`` as in ``Verdict``."""

    kind: VerdictKind
    cause: Cause
    reason: str
    evidence: tuple[EvidenceLine, ...] = ()
    counted: tuple[Finding, ...] = ()
    certain: bool = True
    stale: bool = False


def from_scheduler(case: Gathered, exit_code: int | None, context: Context) -> Outcome | None:
    """The allocation's end, if that is what ended the attempt: nothing is left to restart, whatever else was said."""
    for item in case.findings:
        if item.kind in _LEFT_BEHIND and item.role is Role.PRIMARY:
            kind = VerdictKind(item.kind)
            line = evidence_line(item, "the scheduler's own word")
            return Outcome(kind, Cause.UNKNOWN, f"{kind.value}: {item.text[:200]}", (line,), (item,))
    if case.job_state.lower() in {"preempted", "preemption", "requeued"}:
        return _fact(VerdictKind.PREEMPTED, f"the scheduler says the job is {case.job_state}")
    killed = exit_code in _KILLED or (context.live and _only_terminated(case)) or bool(case.signalled)
    if case.remaining is not None and case.remaining <= WALLTIME_SLACK_S and killed:
        return _fact(VerdictKind.WALLTIME, f"killed with {max(case.remaining, 0):.0f} s left of the allocation")
    if case.signalled:
        first = case.signalled[0]
        return _fact(VerdictKind.INTERRUPTED, f"told to stop on {first.host} by signal {first.signal}")
    return None


def from_exit_code(case: Gathered, exit_code: int | None, context: Context) -> Outcome:
    """What the exit code alone can say, when no line says more (rules 5, 6, 11)."""
    if exit_code == 0 or (context.live and exit_code is None and not any(item.primary for item in case.findings)):
        return Outcome(VerdictKind.SUCCESS, Cause.UNKNOWN, "finished: exit code 0 and no crash in sight")
    if is_walltime_kill(case, exit_code):
        return Outcome(
            VerdictKind.WALLTIME,
            Cause.UNKNOWN,
            f"exit code {exit_code}, no crash signature and no deadline to contradict it",
            certain=False,
        )
    if exit_code == 124:
        return Outcome(VerdictKind.BAD_NODE_BLIND, Cause.HANG, "timed out in silence (exit code 124)", certain=False)
    if exit_code in {130, -2}:
        return Outcome(VerdictKind.INTERRUPTED, Cause.UNKNOWN, f"interrupted from the keyboard (exit code {exit_code})")
    if exit_code in {126, 127}:
        return Outcome(
            VerdictKind.USER_ERROR, Cause.LAUNCH_ERROR, f"the command could not be run (exit code {exit_code})"
        )
    silence = "no signatures for this machine" if context.machine_note else "signatures exist and none matched"
    stale = any("is no host of this attempt" in line.why for line in case.dropped)
    if stale:
        silence = "stale: it names only hosts outside this attempt"
    told = "exit code unknown" if exit_code is None else f"exit code {exit_code}"
    return Outcome(VerdictKind.BAD_NODE_BLIND, Cause.UNKNOWN, f"{told}; {silence}", certain=False, stale=stale)


def is_walltime_kill(case: Gathered, exit_code: int | None) -> bool:
    """Whether SIGTERM ended it and nobody can tell that the deadline was far (rule 5)."""
    return exit_code in _TERMINATED and (case.remaining is None or case.remaining <= WALLTIME_SLACK_S)


def _only_terminated(case: Gathered) -> bool:
    return bool(case.exits) and all(item.signal in {15, 9} for item in case.exits)


def _fact(kind: VerdictKind, reason: str) -> Outcome:
    return Outcome(kind, Cause.UNKNOWN, reason, (EvidenceLine(text=reason, why="settles it"),))
