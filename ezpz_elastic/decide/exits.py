"""Exit records beside what the same rank said: which exits follow from a complaint, and which errors were survived."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ezpz_elastic.decide.evidence import Certainty, Role
from ezpz_elastic.decide.findings import Finding
from ezpz_elastic.decide.hosts import HostTable
from ezpz_elastic.decide.verdict import Cause, VerdictKind

__all__ = [
    "consequent_exits",
    "expired_after_their_end",
    "last_attempt",
    "silent_children",
    "survived",
    "teardown_kills",
    "went_on",
]

_SURVIVED_STEPS = 2
"""Other ranks may print one more step after a fatal error; several only in an asynchronous pipeline."""
_FOLLOWS_STEPS = 50
"""An exit record within so many steps of an error confirms that the error was the end of its rank."""
_OWN_LINES = 300
"""A rank that printed so many lines after an error went on; a traceback with its echoes is shorter."""
_ANNOUNCE = frozenset({"launcher.idle-watchdog", "launcher.kill-notice"})
_CLEAN_WITH_NINE = frozenset({"slurm", "hydra", "openmpi", "launcher", "lsf"})
"""Launchers that kill what is left of a job with signal 9 when a rank ended; PALS does not."""
_TEARDOWN = frozenset({"slurm.teardown", "slurm.step-cancelled"})
_ABORT = "abort"
_ABORTS = frozenset({"openmpi.mpi-abort", "hydra.mpi-abort"})
"""A rank that ends the whole job by itself: its launcher kills the others, and tells of the first that it sees die."""
_RAISED = re.compile(r"(?:Error|Exception): ").search
_NO_ANSWER = frozenset({"nodes.declared-down", "slurm.not-responding", "cloud.node-not-ready"})
_GIVEN_UP = re.compile(r"\b(?:down|dead|lost)\b", re.I).search
_RESTARTED_STEPS = 20
"""So many steps after an exit record are those of a restarted worker group."""
_CAN_BE_HANDLED = frozenset(
    {
        Cause.STORAGE,
        Cause.QUOTA,
        Cause.SHM_FULL,
        Cause.CHECKPOINT_CORRUPT,
        Cause.USER_EXCEPTION,
        Cause.PORT_IN_USE,
        Cause.OOM_DEVICE,
        Cause.HANG,
    }
)
"""What a program can catch and go on from. A lost host or a dead device is not survived: later lines were buffered."""


def consequent_exits(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with an exit made a cascade where its rank had complained of a broken connection before.

    Such a process ended because of a peer; its own exit says nothing new, and its host is only the messenger. Neither
    does an exception that the rank raised on top of such a one, before any further step.
    """
    complaints = [item for item in findings if item.role is Role.CASCADE and item.cause in {Cause.NETWORK, Cause.HANG}]
    if not complaints:
        return list(findings)
    ranks = {item.rank for item in complaints if item.rank is not None}
    hosts = {item.reporter for item in complaints if item.reporter is not None}

    def follows(item: Finding) -> bool:
        if item.rank is not None:
            return item.rank in ranks
        return item.host is None or item.host in hosts

    raised = {(item.source, item.rank, item.step): item.order for item in reversed(complaints) if _RAISED(item.text)}

    def wraps(item: Finding) -> bool:
        first = raised.get((item.source, item.rank, item.step)) if item.rank is not None else None
        return first is not None and first < item.order

    return [
        msgspec.structs.replace(item, role=Role.CASCADE, cause=Cause.UNKNOWN)
        if item.primary
        and (
            (item.cause is Cause.WORKER_EXIT and item.code is not None and follows(item))
            or (item.cause is Cause.USER_EXCEPTION and not item.kind and wraps(item))
        )
        else item
        for item in findings
    ]


def last_attempt(findings: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """What was said of the last attempt, and what of earlier ones, where a wrapper's log holds several."""
    begins = [item for item in findings if item.signature == "launcher.attempt" and (item.code or 0) > 1]
    if not begins:
        return findings, []
    last = begins[-1]
    earlier = [item for item in findings if item.source == last.source and item.order < last.order]
    gone = {id(item) for item in earlier}
    return [item for item in findings if id(item) not in gone], earlier


def teardown_kills(findings: Sequence[Finding], table: HostTable) -> list[Finding]:
    """The findings, with deaths by signal 9 made cascades where the whole job was killed and not a host.

    That is so where the log announced it first (a watchdog that kills, a person's Ctrl-C), and where every host of the
    attempt died of it; and where the same launcher, one that cleans up with 9, had told of an end before.
    """
    deaths = [item for item in findings if item.primary and item.code == 9 and item.cause is Cause.HOST_LOST]
    everywhere = table.count > 1 and len({item.host for item in deaths} - {None}) == table.count
    announced: dict[str, float] = {}
    for item in findings:
        if item.signature in _ANNOUNCE or item.kind == VerdictKind.INTERRUPTED.value:
            announced.setdefault(item.source, item.order)
    foretold = {id(item) for item in deaths if announced.get(item.source, item.order) < item.order}
    teardown = _cleaned_up(findings) | ({id(item) for item in deaths} if everywhere else set())

    def read(item: Finding) -> Finding:
        if id(item) in foretold:  # whoever announced it did it: not even a killed worker is left to explain
            return msgspec.structs.replace(item, role=Role.CASCADE, cause=Cause.UNKNOWN)
        if id(item) in teardown:
            return msgspec.structs.replace(item, role=Role.CASCADE, cause=Cause.WORKER_KILLED)
        return item

    return [read(item) for item in findings]


def _cleaned_up(findings: Sequence[Finding]) -> set[int]:
    """Deaths by 9, by ``id``, that a launcher tells after another end or its own teardown: it cleaned up with them."""
    first: dict[tuple[str, str], float] = {}
    killed: set[int] = set()
    for item in findings:
        emitter = item.signature.partition(".")[0]
        if item.signature in _TEARDOWN:
            first.setdefault((item.source, emitter), item.order)
        if not item.primary or emitter not in _CLEAN_WITH_NINE:
            continue
        died = item.cause is Cause.HOST_LOST and item.code == 9
        doubtful = died and (item.certainty is Certainty.DOUBTFUL or (item.source, _ABORT) in first)
        if item.cause is Cause.WORKER_EXIT:
            first.setdefault((item.source, emitter), item.order)
            if item.signature in _ABORTS:
                first.setdefault((item.source, _ABORT), item.order)
        elif (doubtful or item.cause is Cause.WORKER_KILLED) and (item.source, emitter) in first:
            killed.add(id(item))
    return killed


def expired_after_their_end(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with a lease that ran out no loss of a host whose processes may have told their end before.

    An agent that leaves after its workers ended sends no further sign of life either.
    """
    ended: dict[tuple[str, str | None], float] = {}
    for item in findings:
        if (item.primary or item.cause is Cause.WORKER_EXIT) and not _is_lease(item):
            ended.setdefault((item.source, item.host), item.order)

    def told_before(item: Finding) -> bool:
        return any(ended.get((item.source, host), item.order) < item.order for host in (item.host, None))

    return [
        msgspec.structs.replace(item, role=Role.CASCADE, cause=Cause.UNKNOWN)
        if _is_lease(item) and told_before(item)
        else item
        for item in findings
    ]


def came_back(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with a host no longer lost that was only said not to answer, and answers again later.

    One that was set down, whose daemon died or that took the job with it is lost for this attempt all the same.
    """
    back: dict[tuple[str, str], float] = {}
    for item in findings:
        if item.signature == "nodes.back" and item.host is not None:
            back[item.source, item.host] = item.order
    return [
        msgspec.structs.replace(item, role=Role.CASCADE, cause=Cause.UNKNOWN)
        if item.signature in _NO_ANSWER
        and not _GIVEN_UP(item.text)
        and back.get((item.source, item.host or ""), item.order) > item.order
        else item
        for item in findings
    ]


def _is_lease(item: Finding) -> bool:
    return item.signature == "torch.elastic-node-removed"


def silent_children(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with a host no longer lost that itself reported on another one (rule 3).

    Launcher daemons form a tree: a daemon that waits for its dead child answers its own parent late.
    """
    lost = [item for item in findings if item.primary and item.cause is Cause.HOST_LOST]
    reporters = {item.reporter for item in lost if item.reporter is not None and item.reporter != item.host}
    return [
        msgspec.structs.replace(item, role=Role.CASCADE, cause=Cause.NETWORK)
        if item.host in reporters
        and item.reporter not in {None, item.host}
        and item.primary
        and item.cause is Cause.HOST_LOST
        else item
        for item in findings
    ]


def survived(findings: Sequence[Finding], *, live: bool) -> set[int]:
    """Which errors training outlived, by ``id``: several steps follow, and no exit record says otherwise.

    Args:
        findings: everything that was said, in order.
        live: every log is one rank's own, so that what follows a line in it was printed by the same rank.
    """
    exits = [item for item in findings if item.cause in {Cause.WORKER_EXIT, Cause.WORKER_KILLED}]
    return {
        id(item)
        for item in findings
        if _can_be_handled(item)
        and (went_on(item) or (live and (item.after or 0) > _OWN_LINES))
        and (live or not any(_ends(record, item) for record in exits))
    }


def went_on(item: Finding, steps: int = _SURVIVED_STEPS) -> bool:
    """Whether its log shows so many steps after it; a line before the first step counts as step 0."""
    if item.last_step is None:
        return False
    return item.last_step - (item.step or 0) >= steps and (item.step is not None or steps > _SURVIVED_STEPS)


def _can_be_handled(item: Finding) -> bool:
    restarted = item.cause is Cause.WORKER_EXIT and item.signature.startswith("torch.")
    return item.primary and (item.cause in _CAN_BE_HANDLED or restarted)


def _ends(record: Finding, error: Finding) -> bool:
    """Whether an exit record is the end of the rank that had the error, shortly after it."""
    if record is error or record.order <= error.order or record.step is None or error.step is None:
        return False
    same = record.rank == error.rank or record.rank is None or error.rank is None
    restarted = (record.last_step or 0) - record.step >= _RESTARTED_STEPS
    return same and record.step - error.step <= _FOLLOWS_STEPS and not restarted
