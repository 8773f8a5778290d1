"""Every record that crosses the store: typed, versioned JSON, never pickle.

Two kinds of record exist. *Messages* are written by agents into one append-only inbox that the coordinator reads:
``Joined``, ``Gone``, ``Report``. *Committed records* are written once under a key of their own and never change:
``JobRecord``, ``Opening`` (a round's roster, or the word that no round can be formed) and ``Decision`` (a round's end).
The state of the whole job is a fold over them, so any agent can take over from the store alone.

Evidence, verdict and the policy's ledger are opaque here (``msgspec.Raw``): this package does not know why hosts fail.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeVar

import msgspec

__all__ = [
    "Action",
    "Case",
    "CoordinatorRecord",
    "Decision",
    "Gone",
    "Hold",
    "JobRecord",
    "Joined",
    "LostMember",
    "Member",
    "Message",
    "Opening",
    "Outcome",
    "Readmit",
    "RecordError",
    "Refusal",
    "Report",
    "Retire",
    "Retirement",
    "Roster",
    "Writable",
    "decode",
    "decode_decision",
    "decode_message",
    "decode_opening",
    "encode",
]

VERSION = 1

_R = TypeVar("_R")

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class RecordError(ValueError):
    """A record in the store is malformed; the message names the key."""


class Action(str, Enum):
    """What every agent does with a decision."""

    RESTART = "restart"  # stop workers, form the next round
    STOP = "stop"  # stop workers, leave; the job failed or was ended
    FINISH = "finish"  # every worker succeeded; leave


class Outcome(str, Enum):
    """How a host's workers ended in a round, as its own agent saw it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # the agent itself was told to stop by a signal
    RUNNING = "running"  # nothing has ended: a word on how far they are, of which only the newest counts


class JobRecord(msgspec.Struct, frozen=True):
    """What all agents of one run must agree on; the first agent writes it.

    Args:
        run_id: ``--rdzv-id``.
        min_hosts, max_hosts: ``--nnodes``.
        max_restarts: budget of the whole job.
        last_call: seconds to wait for more hosts once ``min_hosts`` are present.
        settle: seconds to wait for other hosts' reports after the first one.
        join_timeout: seconds a round may take to form.
        lease_ttl: seconds after which a silent agent is lost.
        grow_now: late hosts enlarge the job by ending the running round, rather than at the next one.
    """

    run_id: str
    min_hosts: Count
    max_hosts: Count
    max_restarts: int
    last_call: Seconds
    settle: Seconds
    join_timeout: Seconds
    lease_ttl: Annotated[float, msgspec.Meta(gt=0)]
    grow_now: bool = False
    version: int = VERSION


class Member(msgspec.Struct, frozen=True):
    """One agent's life on one host; a host that comes back is a new member.

    Args:
        id: unique for this incarnation.
        host: the host as the allocation spells it.
        key: what two spellings of one host have in common.
        addr: address other hosts reach it at.
        port: its liveness port: a refused connection means that the agent is gone.
        pid: the agent's process id.
        workers: number of worker processes on this host.
        order: position in the hostfile, if one was given.
    """

    id: Name
    host: Name
    key: Name
    addr: Name
    port: Port
    pid: int
    workers: Count
    order: int | None = None


class Joined(msgspec.Struct, frozen=True, tag=True):
    """An agent is there and wants to take part."""

    member: Member


class Gone(msgspec.Struct, frozen=True, tag=True):
    """A member is there no longer. Written by the agent itself when it leaves, else by the coordinator that lost it.

    Args:
        member_id: the incarnation that is gone.
        how: ``left`` (of its own will), ``expired``, ``refused`` or ``unreachable``.
    """

    member_id: str
    how: str


class Report(msgspec.Struct, frozen=True, tag=True):
    """What one agent saw in one round. An agent may send several; the later ones add to the earlier.

    Args:
        round: the round it is about.
        member_id: who says it.
        seq: higher than that of any earlier report of this agent.
        outcome: how the workers of that host ended.
        conclusive: it cannot be the consequence of a failure elsewhere, so nobody else needs to be waited for.
        step: the last training step that a worker on this host is known to have reached.
        durable_step: the last step of which a checkpoint is known to be complete.
        evidence: opaque here: a JSON array of the decider's evidence records.
    """

    round: int
    member_id: str
    seq: int
    outcome: Outcome
    conclusive: bool = False
    step: int | None = None
    durable_step: int | None = None
    evidence: msgspec.Raw = msgspec.Raw(b"[]")


class Retire(msgspec.Struct, frozen=True, tag=True):
    """A person takes a host out of the job.

    Args:
        id: of this order, so that one that is delivered twice is carried out once.
        host, key: as in ``Member``.
        member_id: the incarnation that was there when the person decided; ``None`` if none was.
        round: the round that was current then.
        reason: what the person says.
    """

    id: Name
    host: Name
    key: Name
    member_id: str | None
    round: int
    reason: Annotated[str, msgspec.Meta(max_length=500)]


class Readmit(msgspec.Struct, frozen=True, tag=True):
    """A person lets a retired host in again; it has to be started anew.

    Args:
        id: of this order.
        host, key: as in ``Member``.
        round: the round in which it was retired: a later retirement stands.
    """

    id: Name
    host: Name
    key: Name
    round: int


class Writable(msgspec.Struct, frozen=True, tag=True):
    """A host that was asked to (``Decision.hold``) has written to the storage that had failed.

    Args:
        round: the round that the decision ended.
        member_id: who says it.
    """

    round: int
    member_id: str


Message = Joined | Gone | Report | Retire | Readmit | Writable


class Roster(msgspec.Struct, frozen=True):
    """Who holds which slot in a round: ``members[slot]``; a slot is a group rank."""

    round: int
    members: tuple[Member, ...]

    def slot_of(self, member_id: str) -> int | None:
        """The slot a member holds in this round, or ``None``."""
        for slot, member in enumerate(self.members):
            if member.id == member_id:
                return slot
        return None

    def base_ranks(self) -> tuple[int, ...]:
        """Global rank of each slot's first worker; ``base + local_rank`` is a worker's rank."""
        bases, total = [], 0
        for member in self.members:
            bases.append(total)
            total += member.workers
        return tuple(bases)

    def world_size(self) -> int:
        """Number of workers of all slots."""
        return sum(member.workers for member in self.members)


class Retirement(msgspec.Struct, frozen=True):
    """A host taken out of the slots, with the reason.

    Args:
        host: as the allocation spells it.
        provenance: one of the contract's words (``lost``, ``scraped``, … ``blind``), or ``person``.
        reason: one sentence.
        benched: it goes to the back of the spare queue rather than out of the job (a blind rotation).
    """

    host: str
    provenance: str
    reason: str
    benched: bool = False


class Hold(msgspec.Struct, frozen=True):
    """Storage has failed: the next round waits until two hosts have written to it.

    Args:
        seconds: for how long at most, after the decision's ``delay``.
        path: what could not be written, or the directory it is in; empty if the failure names none.
    """

    seconds: Seconds
    path: str = ""


class Decision(msgspec.Struct, frozen=True):
    """The one written answer to how a round ended. Every agent acts on it.

    Args:
        round: the round it ends.
        action: what to do.
        kind, cause: the verdict's words, or the policy's (``exhausted``).
        reason: one sentence that says why, the same in log, journal and test.
        retired: hosts that lose their slot.
        delay: seconds to wait before the next round is opened.
        exit_code: what every agent exits with (``STOP`` and ``FINISH``).
        elapsed: seconds since round 1 was opened, as the coordinators measured it.
        restarts_left: what is left of the job's budget after this decision.
        verdict, ledger: opaque here: the verdict for the journal, the policy's memory for its next decision.
        hold: what the next round waits for beyond ``delay``; ``None``: for nothing.
        by: the member that committed it, so that of two who propose the same only one takes it for its own.
    """

    round: int
    action: Action
    kind: str
    cause: str
    reason: str
    retired: tuple[Retirement, ...] = ()
    delay: float = 0.0
    exit_code: int = 0
    elapsed: float = 0.0
    restarts_left: int | None = None
    verdict: msgspec.Raw = msgspec.Raw(b"null")
    ledger: msgspec.Raw = msgspec.Raw(b"null")
    hold: Hold | None = None
    by: str = ""
    version: int = VERSION


class Opening(msgspec.Struct, frozen=True):
    """How a round begins: with a roster, or with the decision that ended it before any worker was started.

    Exactly one of the two is set. ``ended`` is needed when a host that holds a slot is lost while the round forms,
    and when the round cannot be formed at all. ``by`` is the member that committed it.
    """

    round: int
    roster: Roster | None = None
    ended: Decision | None = None
    by: str = ""
    version: int = VERSION


class CoordinatorRecord(msgspec.Struct, frozen=True):
    """Who coordinates in a term; a later term replaces an earlier one."""

    term: int
    member_id: str
    host: str


class Refusal(msgspec.Struct, frozen=True):
    """Why an agent is not admitted.

    Args:
        member_id: the incarnation that is refused.
        reason: one sentence for the person who started it.
        rejoin: it was taken for lost while it stood by, and may join again as a new member.
    """

    member_id: str
    reason: str
    rejoin: bool = False


class LostMember(msgspec.Struct, frozen=True):
    """An active member that is gone; ``how`` is ``expired``, ``refused``, ``unreachable`` or ``left``."""

    member: Member
    how: str


class Case(msgspec.Struct, frozen=True):
    """Everything a decider is told about the end of a round.

    Args:
        round: the round.
        roster: who held the slots; ``None`` if too few hosts came to form the round.
        reports: what the agents said, in the order their messages arrived.
        lost: active members that are gone.
        spares: hosts that stand by, in the order they would be admitted.
        min_hosts, max_hosts: the job's limits.
        elapsed: seconds since round 1 was opened.
        waited: seconds this round has been forming; 0 unless ``roster`` is ``None``.
        ledger: the last decision's ledger.
        failed_at, at: when the first failure of the round was heard of, and when this was put together; seconds on the
            coordinator's monotonic clock. ``None``: there was no failure.
    """

    round: int
    roster: Roster | None
    reports: tuple[Report, ...]
    lost: tuple[LostMember, ...]
    spares: tuple[Member, ...]
    min_hosts: int
    max_hosts: int
    elapsed: float
    waited: float = 0.0
    ledger: msgspec.Raw = msgspec.Raw(b"null")
    failed_at: float | None = None
    at: float = 0.0


def decode_message(data: bytes, key: str = "inbox") -> Message:
    """Read one message of the inbox back.

    Args:
        data: the bytes in the store.
        key: where they were found, for the error.

    Raises:
        RecordError: the bytes are no message.
    """
    try:
        return _messages.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"malformed message at {key!r}: {error}") from error


_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode(record: object) -> bytes:
    """A record as JSON."""
    return msgspec.json.encode(record)


def decode_opening(data: bytes, round_number: int, key: str) -> Opening:
    """Read a round's opening back.

    Args:
        data: the bytes in the store.
        round_number: the round it must be about.
        key: where it was found, for the error.

    Raises:
        RecordError: it is none, or it contradicts itself.
    """
    opening = decode(data, Opening, key)
    if (opening.roster is None) == (opening.ended is None):
        raise RecordError(f"malformed record at {key!r}: an opening has either a roster or a decision")
    rounds = {opening.round} | {part.round for part in (opening.roster, opening.ended) if part is not None}
    if rounds != {round_number}:
        raise RecordError(f"malformed record at {key!r}: it speaks of rounds {sorted(rounds)}")
    members = opening.roster.members if opening.roster is not None else ()
    if opening.roster is not None and not members:
        raise RecordError(f"malformed record at {key!r}: an empty roster")
    if len({member.id for member in members}) < len(members) or len({member.key for member in members}) < len(members):
        raise RecordError(f"malformed record at {key!r}: one host holds two slots")
    return opening


def decode_decision(data: bytes, round_number: int, key: str) -> Decision:
    """Read a round's decision back; arguments and errors as of ``decode_opening``."""
    decision = decode(data, Decision, key)
    if decision.round != round_number:
        raise RecordError(f"malformed record at {key!r}: it speaks of round {decision.round}")
    return decision


def decode(data: bytes, type: type[_R], key: str) -> _R:
    """Read a record back.

    Args:
        data: the bytes in the store.
        type: the record's type (or union of message types).
        key: where it was found, for the error.

    Raises:
        RecordError: the bytes are no such record.
    """
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"malformed record at {key!r}: {error}") from error
