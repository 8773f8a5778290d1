"""What happened, and what can honestly be said about hosts. A verdict never says what to do."""

from __future__ import annotations

from enum import Enum

import msgspec

__all__ = ["Cause", "EvidenceLine", "NamedHost", "Provenance", "Suspect", "Verdict", "VerdictKind"]


class VerdictKind(str, Enum):
    """The kinds of end an attempt can have."""

    SUCCESS = "success"
    BAD_NODE_KNOWN = "bad_node_known"
    BAD_NODE_BLIND = "bad_node_blind"
    RETRYABLE_UNATTRIBUTED = "retryable_unattributed"
    USER_ERROR = "user_error"
    STUCK_PRE_TRAINING = "stuck_pre_training"
    WALLTIME = "walltime"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"
    EXHAUSTED = "exhausted"


class Cause(str, Enum):
    """The finer word for what happened."""

    HOST_LOST = "host_lost"
    DEVICE_FAULT = "device_fault"
    WORKER_KILLED = "worker_killed"
    OOM_HOST = "oom_host"
    OOM_DEVICE = "oom_device"
    NETWORK = "network"
    HANG = "hang"
    STORAGE = "storage"
    QUOTA = "quota"
    SHM_FULL = "shm_full"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    USER_EXCEPTION = "user_exception"
    LAUNCH_ERROR = "launch_error"
    PORT_IN_USE = "port_in_use"
    WORKER_EXIT = "worker_exit"
    UNKNOWN = "unknown"


class Provenance(str, Enum):
    """Why a host is named."""

    SCRAPED = "scraped"  # a log line names it
    LOST = "lost"  # its lease expired, its agent is gone, or the scheduler says it is down
    INFERRED = "inferred"  # a rank was named; rank -> host from the roster or the same log
    ACCUSED = "accused"  # independent peers point at it
    PROBED = "probed"  # a health probe failed there
    BLIND = "blind"  # nobody knows; it was picked


class NamedHost(msgspec.Struct, frozen=True):
    """A host named as bad, as the allocation spells it, and why."""

    name: str
    provenance: Provenance


class Suspect(msgspec.Struct, frozen=True):
    """A weak hint for the policy's memory; convicts nobody by itself.

    Args:
        name: host, as the allocation spells it.
        weight: 0 … 1, how much this hint is worth beside one direct witness (1.0).
        why: one short phrase.
    """

    name: str
    weight: float
    why: str


class EvidenceLine(msgspec.Struct, frozen=True):
    """One line that made a verdict, or that was set aside, and why.

    Args:
        text: the line, or a sentence for evidence that is no log line; at most 500 characters.
        file: path of the log; empty if none.
        line: line number from 1; 0 if none.
        why: what it says, or why it was set aside.
    """

    text: str
    file: str = ""
    line: int = 0
    why: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """The answer of ``classify``.

    Args:
        kind: what happened.
        cause: the finer word.
        reason: one sentence, the same in log, journal and test.
        hosts: hosts named as bad, in the order first seen.
        suspects: weak hints.
        evidence: the lines that made it.
        set_aside: the lines that did not, each with why.
        fingerprint: identifies a repeated user error (exception type, message with numbers masked, innermost project
            frame); empty if there is none.
        stale: nothing is known but what the log says of hosts outside the attempt; such a log blames nobody.
        certain: whether the cause is settled by this evidence alone; a doubtful device fault is not.
        step: the last step any rank reached; ``None`` if none is known.
        note: what the reader must know about the classifier itself, e.g. that a machine has no signatures (rule 11).
    """

    kind: VerdictKind
    cause: Cause
    reason: str
    hosts: tuple[NamedHost, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    evidence: tuple[EvidenceLine, ...] = ()
    set_aside: tuple[EvidenceLine, ...] = ()
    fingerprint: str = ""
    certain: bool = True
    stale: bool = False
    step: int | None = None
    note: str = ""
