"""Evidence of every kind -> findings, each read on its own; who explains whom comes later."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ezpz_elastic.decide.context import Context
from ezpz_elastic.decide.evidence import (
    AgentSignalled,
    ErrorRecord,
    Evidence,
    LogMatch,
    Role,
    SchedulerFact,
    Unkillable,
    WorkerExit,
)
from ezpz_elastic.decide.exceptions import fingerprint, read_exception
from ezpz_elastic.decide.exits import (
    came_back,
    consequent_exits,
    expired_after_their_end,
    last_attempt,
    silent_children,
    teardown_kills,
)
from ezpz_elastic.decide.findings import Finding, evidence_line
from ezpz_elastic.decide.hosts import HostTable
from ezpz_elastic.decide.place import spelled_host
from ezpz_elastic.decide.reports import from_exit, from_report, unkillable
from ezpz_elastic.decide.verdict import Cause, EvidenceLine, Provenance
from ezpz_elastic.decide.whereabouts import host_table

__all__ = ["Gathered", "gather"]

_TEARDOWN_CODES = frozenset({15, 143, -15, 2, -2, 130})
_DAY_S = 86400.0
_REORDER_S = 300.0
_KILLED_CODES = frozenset({9, 137, -9})
_STATUSES = frozenset(
    {
        "pals.rank-exit",
        "slurm.task-exit",
        "openmpi.exit-code",
        "hydra.mpi-abort",
        "torch.elastic-failed",
        "torch.elastic-banner-exit",
    }
)
"""Signatures whose number is what a program ended with: a small one is never a signal's, as it may be in Hydra's."""
_EXCEPTIONS = frozenset({"python.exception", "torch.elastic-banner-exception"})
_EXCEPTION_LINE = re.compile(
    r"(?:^|[\s:\]|>)]|\^C)(Exception|StopIteration|SystemExit"
    r"|[A-Za-z_][\w.]{0,120}?(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|Failure|Fault|Group"
    r"|NotFound|Mismatch|Exceeded)|[A-Za-z_][\w.]{0,100}\.\w{0,60}?(?:Invalid|Unavailable|Aborted|Denied|Cancelled"
    r"|Rejected|Resources|Unsupported|Corrupt(?:ed)?)|__main__\.[A-Z]\w{1,80}"
    r"|[a-z_][\w.]{0,100}\.(?:errors|exceptions)\.[A-Z]\w{1,80})(?:\(\w{1,80}\))?"
    r"(?::[ ]?|$)(.{0,400})$",
    re.S,
)


_ANY_EXCEPTION = re.compile(
    r"(?:^|[\s:\]|>)])((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80})(?:\(\w{1,80}\))?(?::[ ]|:?$)(.{0,400})$", re.S
)
"""A name of any kind, where a line is known to end a traceback."""


class Gathered(msgspec.Struct, frozen=True):
    """All that was said, sorted by what it can be used for.

    Args:
        findings: primaries, cascades and banners about hosts of the attempt.
        table: host and rank resolution.
        dropped: lines set aside already, with why.
        exits: worker exits that were not the agent's own doing.
        signalled: agents that were told to stop.
        remaining: seconds left, the least anybody told.
        job_state: the scheduler's word for the job, if any (``preempted``).
    """

    findings: tuple[Finding, ...]
    table: HostTable
    dropped: tuple[EvidenceLine, ...]
    exits: tuple[WorkerExit, ...]
    signalled: tuple[AgentSignalled, ...]
    remaining: float | None
    job_state: str


def gather(evidence: Sequence[Evidence], context: Context) -> Gathered:
    """Read every piece of evidence on its own.

    Args:
        evidence: what was seen, in the order each source told it.
        context: what the classifier is told about the attempt.
    """
    table = host_table(evidence, context)
    findings: list[Finding] = []
    dropped: list[EvidenceLine] = []
    exits: list[WorkerExit] = []
    signalled: list[AgentSignalled] = []
    remaining, job_state = context.remaining, ""
    for index, item in enumerate(_in_time_order(evidence)):
        if isinstance(item, LogMatch):
            _add_log_match(item, index, table, findings, dropped)
        elif isinstance(item, WorkerExit):
            if item.by_agent:
                dropped.append(_sentence(f"rank {item.rank} on {item.host} ended", "its own agent was stopping it"))
            else:
                exits.append(item)
                findings.extend(from_exit(item, table))
        elif isinstance(item, AgentSignalled):
            signalled.append(item)
        elif isinstance(item, Unkillable):
            dropped.append(_sentence(unkillable(item), "left over from the round before: a hint, and no cause"))
        elif isinstance(item, SchedulerFact) and item.host is None:
            if item.remaining is not None:
                remaining = item.remaining if remaining is None else min(remaining, item.remaining)
            job_state = item.state or job_state
        else:
            finding = from_report(item, index, table)
            if finding is None:
                dropped.append(_sentence(str(item)[:300], "says nothing against a host of this attempt"))
            else:
                findings.append(finding)
    findings, earlier = last_attempt(findings)
    dropped += [evidence_line(item, "belongs to an earlier attempt") for item in earlier]
    return Gathered(
        tuple(teardown_kills(expired_after_their_end(consequent_exits(silent_children(came_back(findings)))), table)),
        table,
        tuple(dropped),
        tuple(exits),
        tuple(signalled),
        remaining,
        job_state,
    )


def _sentence(text: str, why: str) -> EvidenceLine:
    return EvidenceLine(text=text, why=why)


def _in_time_order(evidence: Sequence[Evidence]) -> list[Evidence]:
    """File order, put right where two lines of one log carry times that differ by a few minutes at most.

    Ranks' output is buffered, so a line may stand later than it was printed. Times further apart than that are left
    alone: a log may mix time zones, and a clock time without a date wraps at midnight. A line without a time goes with
    the one before it.
    """
    ordered: list[tuple[str, float | None, Evidence]] = []
    latest: dict[str, float] = {}
    for item in evidence:
        file, time = (item.file, item.time) if isinstance(item, LogMatch) else ("", None)
        if time is not None:
            latest[file] = time
        at = len(ordered)
        if time is not None:
            while at > 0 and _printed_before(file, time, ordered[at - 1]):
                at -= 1
        ordered.insert(at, (file, latest.get(file), item))
    return [item for _, _, item in ordered]


def _printed_before(file: str, time: float, other: tuple[str, float | None, Evidence]) -> bool:
    told, then, item = other
    if not isinstance(item, LogMatch) or told != file or then is None:
        return False
    return 0 < (then - time + _DAY_S) % _DAY_S <= _REORDER_S


def _add_log_match(
    match: LogMatch, index: int, table: HostTable, findings: list[Finding], dropped: list[EvidenceLine]
) -> None:
    if match.emitter == "places":  # no part of the story
        return
    spelled = spelled_host(match, table)
    host = table.name(spelled)
    finding = _refine(
        match,
        Finding(
            cause=match.cause,
            role=match.role,
            certainty=match.certainty,
            text=match.text,
            source=f"log:{match.file}",
            order=float(index),
            signature=match.signature,
            host=host or table.of_rank(match.rank) or table.of_task(match.task),
            provenance=match.provenance if host else Provenance.INFERRED,
            reporter=table.name((match.reporter or "").strip("[]"))
            or table.of_rank(match.rank)
            or table.of_task(match.task),
            peer=table.name(match.peer) or match.peer,
            rank=match.rank,
            code=match.code,
            kind=match.kind,
            step=match.step,
            last_step=match.last_step,
            after=match.after,
            file=match.file,
            line=match.line,
        ),
    )
    if match.emitter == "nodes" and match.rank is not None and finding.primary:  # a rank is a peer, and no controller
        finding = msgspec.structs.replace(
            finding, cause=Cause.NETWORK, role=Role.CASCADE, peer=host, host=finding.reporter
        )
    if spelled and host is None:
        dropped.append(evidence_line(finding, f"{spelled} is no host of this attempt"))
    elif finding.role is Role.BENIGN:
        dropped.append(evidence_line(finding, "looks alarming, means nothing"))
    else:
        findings.append(finding)


def _refine(match: LogMatch, finding: Finding) -> Finding:
    """What the numbers and the words in a line change about what its signature says."""
    if match.signature in _EXCEPTIONS:
        found = _EXCEPTION_LINE.search(match.text) or _ANY_EXCEPTION.search(match.text)
        if found is None:
            return finding
        error = ErrorRecord(found.group(1), found.group(2), _frame(match.frame))
        reading = read_exception(error)
        return msgspec.structs.replace(
            finding,
            cause=reading.cause,
            role=reading.role,
            certainty=reading.certainty,
            kind=reading.kind,
            fingerprint=fingerprint(error),
        )
    if match.cause is Cause.WORKER_EXIT and match.role is not Role.BENIGN and match.code is not None:
        if match.code == 0:
            return msgspec.structs.replace(finding, role=Role.BENIGN)
        signal = match.signature not in _STATUSES or not 0 < match.code < 128
        if signal and match.code in _TEARDOWN_CODES:
            return msgspec.structs.replace(finding, role=Role.CASCADE, cause=Cause.UNKNOWN)
        if signal and match.code in _KILLED_CODES:
            return msgspec.structs.replace(finding, cause=Cause.WORKER_KILLED, role=Role.PRIMARY)
    return finding


def _frame(told: str) -> tuple[tuple[str, int, str], ...]:
    file, _, function = told.partition(":")
    return ((file, 0, function),) if file else ()
