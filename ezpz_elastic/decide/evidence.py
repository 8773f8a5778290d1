"""What can be seen of a failure. Evidence is what observers return and what agents write into the store.

Every kind is a frozen, tagged ``msgspec.Struct``, so a report crosses the store as typed JSON. Host names are spelled
as the allocation spells them wherever the observer knows the allocation; ``None`` means "cannot be told", never "no".
"""

from __future__ import annotations

from enum import Enum

import msgspec

from ezpz_elastic.decide.verdict import Cause, Provenance

__all__ = [
    "Accusation",
    "AgentSignalled",
    "Certainty",
    "ErrorRecord",
    "Evidence",
    "HostProbe",
    "IdleTimeout",
    "LeaseLost",
    "LogMatch",
    "LostHow",
    "Role",
    "SchedulerFact",
    "WorkerExit",
]


class Role(str, Enum):
    """What a log line is in the story of a failure."""

    PRIMARY = "primary"  # can be the beginning of it
    CASCADE = "cascade"  # follows something earlier: teardown, a peer that noticed
    BANNER = "banner"  # a summary printed afterwards
    BENIGN = "benign"  # looks alarming, means nothing


class Certainty(str, Enum):
    """How much one primary line is worth."""

    CERTAIN = "certain"  # the cause is settled by this line alone
    LIKELY = "likely"  # the usual cause of this text
    DOUBTFUL = "doubtful"  # several causes print this text; act only on recurrence


class LostHow(str, Enum):
    """How a host was found to be gone."""

    EXPIRED = "expired"  # its lease ran out
    REFUSED = "refused"  # its agent's port refuses connections: the agent process is gone
    UNREACHABLE = "unreachable"  # its agent's port does not answer
    SCHEDULER = "scheduler"  # the scheduler says it is down


class ErrorRecord(msgspec.Struct, frozen=True):
    """A Python exception a worker left behind.

    Args:
        type: exception class name, without its module.
        message: ``str(exception)``, first line, at most 500 characters.
        frames: ``(file, line, function)`` from the outermost to the innermost frame.
        source: ``error_file`` (torchelastic's), ``stderr`` (the last traceback in the worker's stderr) or ``agent``
            (its own, when it could not start the worker).
    """

    type: str
    message: str = ""
    frames: tuple[tuple[str, int, str], ...] = ()
    source: str = "error_file"


class WorkerExit(msgspec.Struct, frozen=True, tag=True):
    """One worker process ended, seen by the agent that is its parent.

    Args:
        host: the worker's host.
        rank: global rank.
        local_rank: rank within the host.
        order: 0 for the first failure on this host in this round, then 1, 2, …
        exit_code: the exit code; ``None`` if a signal ended it.
        signal: the signal that ended it; ``None`` if it exited.
        by_agent: the agent itself was stopping it; such an exit is never evidence against anything.
        step: the last training step it is known to have reached; ``None`` if it never reported one.
        error: its exception, if it left one.
        stderr_tail: the last lines of its stderr, for people to read.
        peak_rss_bytes: peak resident memory of the worker.
        oom_kills: how many oom kills the kernel counted in the worker's cgroup during the worker's life;
            ``None`` where no counter can be read.
        core: whether the kernel wrote a core dump.
        sent_by: who sent the signal and why, in words; empty where the system does not tell, which is the rule.
        unseen: why nobody saw how it ended, if nobody did; the exit code is none of its own then.
    """

    host: str
    rank: int
    local_rank: int = 0
    order: int = 0
    exit_code: int | None = None
    signal: int | None = None
    by_agent: bool = False
    step: int | None = None
    error: ErrorRecord | None = None
    stderr_tail: tuple[str, ...] = ()
    peak_rss_bytes: int | None = None
    oom_kills: int | None = None
    core: bool = False
    sent_by: str = ""
    unseen: str = ""


class LogMatch(msgspec.Struct, frozen=True, tag=True):
    """One log line that a signature matched.

    Args:
        signature: id of the signature, e.g. ``pals.shepherd-signal-9``.
        emitter: which program printed it (``pals``, ``gloo``, …).
        cause: what the signature says it means.
        role: what the line is in the story.
        certainty: what one such line is worth.
        text: the line as matched (escapes stripped, at most 500 characters).
        file: path of the log.
        line: line number in the log, from 1.
        time: seconds, as the line itself tells (only comparable within one log); ``None`` if it carries no time.
        rank: the rank that printed it or that it is about; ``None`` if unknown.
        host: the host it is *about* (not the messenger), as spelled in the line; ``None`` if unknown. In brackets it is
            the name in a heading above the line, which may be a host's and anything else.
        peer: address of an accused peer (``10.0.0.42``), for accusations.
        code: an exit code, signal or errno in the line.
        path: a file path in the line.
        kind: what a decisive line says outright about the whole attempt (``walltime``, ``preempted``, ``success`` …);
            empty if it says nothing of the kind.
        reporter: the host that printed the line (the messenger), as spelled in the line or known to the observer;
            ``None`` if unknown.
        step: the last training step seen in the same log before this line; ``None`` if none was seen.
        task: the launcher's task number in or before the line (``srun``): a rank only where one task is one rank.
        tasks: the same where the line is about several tasks of one host, as spelled (``4-7``, ``1,3,5``).
        last_step: the last training step of the same log, if more than one line after this one shows a step, the
            log's last line not counted; otherwise ``step``: such a line may be one that was buffered.
        after: how many lines follow it in the log; ``None`` where the log is still being read.
        frame: innermost frame of the program itself before an exception (``train.py:step``); empty if none was seen.
        provenance: how ``host`` is told to have been found, if the line names one.
    """

    signature: str
    emitter: str
    cause: Cause
    role: Role
    certainty: Certainty
    text: str
    file: str = ""
    line: int = 0
    time: float | None = None
    rank: int | None = None
    host: str | None = None
    peer: str | None = None
    code: int | None = None
    path: str | None = None
    kind: str = ""
    reporter: str | None = None
    step: int | None = None
    task: int | None = None
    tasks: str = ""
    last_step: int | None = None
    after: int | None = None
    frame: str = ""
    provenance: Provenance = Provenance.SCRAPED


class LeaseLost(msgspec.Struct, frozen=True, tag=True):
    """A host's agent stopped renewing its lease, or its port refused the coordinator."""

    host: str
    how: LostHow


class Accusation(msgspec.Struct, frozen=True, tag=True):
    """A rank says that a peer's connection broke.

    Args:
        accuser: host of the accusing rank.
        accused: host or address it points at.
        probe: what the accused's own agent answered: ``True`` alive, ``False`` refused or silent, ``None`` not asked.
    """

    accuser: str
    accused: str
    rank: int | None = None
    probe: bool | None = None
    text: str = ""


class HostProbe(msgspec.Struct, frozen=True, tag=True):
    """A health check on a host.

    Args:
        host: the host that was probed.
        probe: name of the probe.
        healthy: whether it passed.
        detail: one line of what was measured.
    """

    host: str
    probe: str
    healthy: bool
    detail: str = ""


class SchedulerFact(msgspec.Struct, frozen=True, tag=True):
    """What the scheduler says.

    Args:
        remaining: seconds left in the allocation; ``None`` when nobody can tell.
        host: a host the fact is about.
        state: the scheduler's word for that host (``down``, ``drain`` …) or for the job (``preempted``).
    """

    remaining: float | None = None
    host: str | None = None
    state: str = ""


class IdleTimeout(msgspec.Struct, frozen=True, tag=True):
    """No progress for longer than the limit.

    Args:
        seconds: how long.
        behind: ranks that are behind all others, with their hosts.
    """

    seconds: float
    behind: tuple[tuple[int, str], ...] = ()


class Unkillable(msgspec.Struct, frozen=True, tag=True):
    """Processes that outlived SIGKILL on a host when a round was stopped: they are stuck in its kernel.

    Args:
        host: the host.
        pids: the processes.
        detail: where in the kernel they wait, as far as it tells.
    """

    host: str
    pids: tuple[int, ...]
    detail: str = ""


class AgentSignalled(msgspec.Struct, frozen=True, tag=True):
    """An agent was told to stop by a signal (a person's Ctrl-C, a scheduler's SIGTERM)."""

    host: str
    signal: int


Evidence = (
    WorkerExit
    | LogMatch
    | LeaseLost
    | Accusation
    | HostProbe
    | SchedulerFact
    | IdleTimeout
    | AgentSignalled
    | Unkillable
)
