"""One term of leadership: everything in the store is applied to a ``Membership``, and its effects are carried out.

All a leader knows comes from the store. When the store was away, everything is read again from its beginning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from rendezvous.account import Ledger, catch_up, retired_before, settle
from rendezvous.liveness import LeaseClock, meet, refused
from rendezvous.membership import CheckTwin, Decide, Effect, Membership, Open, Phase, Refuse, Tick
from rendezvous.records import (
    Case,
    Decision,
    Gone,
    JobRecord,
    Joined,
    Member,
    Opening,
    Outcome,
    RecordError,
    Refusal,
    Report,
    decode_decision,
    decode_message,
    decode_opening,
    encode,
)
from rendezvous.replay import decision_key, opening_key, refusal_key, replay
from rendezvous.stores import Store, StoreUnavailable

__all__ = [
    "BEATS_PER_LEASE",
    "OVERDUE_BEATS",
    "PROBE_BEATS",
    "PROBE_TIMEOUT",
    "Decider",
    "Leader",
    "Means",
    "Probe",
    "declare_gone",
]

logger = logging.getLogger(__name__)

BEATS_PER_LEASE = 10
"""How often an agent renews its lease within ``lease_ttl``: one lost packet or one slow second must not end it."""

OVERDUE_BEATS = 2
"""Beats an agent may be late before its port is asked whether it still exists."""

PROBE_TIMEOUT = 0.25
"""Seconds given to all ports that are asked at once."""

PROBE_BEATS = 2
"""Beats that may take at most: who looks at leases as seldom as every fifth beat counts as away."""

SHORT_PATIENCE = 30.0
"""Seconds without enough hosts after which that is told; torchruns of one job seldom start further apart."""

_FEW = 8
"""Hosts named in such a line."""

Decider = Callable[[Case], Decision]

Probe = Callable[[Sequence[Member], float], list[Member]]
"""Which of these members' ports refuse a connection, within so many seconds."""


class Overtaken(StoreUnavailable):
    """Another leader has committed a record first. Whether it lived to write it down is for the next turn to see."""


@dataclass(frozen=True)
class Means:
    """What one agent coordinates with, whether it leads or not.

    Args:
        store: a connection of its own.
        job: what all agents agreed on.
        member: the agent itself.
        decider: pure function from case to decision.
        ledger: told what this agent committed while it led.
        clock: seconds on this host's monotonic clock.
        probe: asks ports.
        meet: told of each member while it is there, so that ``probe`` knows where to ask when it may be gone.
    """

    store: Store
    job: JobRecord
    member: Member
    decider: Decider
    ledger: Ledger
    clock: Callable[[], float] = time.monotonic
    probe: Probe = refused
    meet: Callable[[Member], None] = meet


def declare_gone(store: Store, member_id: str, host: str, how: str) -> Gone:
    """Write down that an incarnation is lost; if it lives all the same, it learns that it has to join anew."""
    refusal = Refusal(member_id, f"{host} was taken for lost ({how})", rejoin=True)
    store.create(refusal_key(member_id), encode(refusal))
    gone = Gone(member_id, how)
    store.append(encode(gone))
    store.end(member_id, over=False)  # or what a dead host held would outlive the job
    return gone


class Leader:
    """The coordinator of one term.

    Args:
        means: what it coordinates with.
        term: a record of the next term means that another one has taken over.
    """

    def __init__(self, means: Means, term: int) -> None:
        self._store, self._job, self._member = means.store, means.job, means.member
        self._decider, self._ledger, self._now, self._probe = means.decider, means.ledger, means.clock, means.probe
        self._meet = means.meet
        self._ttl = means.job.lease_ttl
        self._beat = self._ttl / BEATS_PER_LEASE
        self._successor = f"coordinator/{term + 1}"
        self._membership = Membership(means.job)
        self._clock = LeaseClock(self._ttl)
        self._next_beat = 0.0
        self._cursor = 0
        self._fresh = False
        self._written: set[str] = set()
        self._malformed: set[str] = set()
        self._accused_in = 0
        self._doubtful = False
        self._short_since: float | None = None
        self._short_told = False

    def doubt(self) -> None:
        """Ask all ports in the next turn, whatever the leases say. May be called from another thread."""
        self._doubtful, self._next_beat = True, 0.0

    def turn(self) -> bool:
        """One look at the inbox, the clock and the leases. Returns whether another leader has taken over.

        Raises:
            StoreUnavailable: nothing is lost; the next turn begins by reading everything again.
            RecordError: a committed record is malformed.
        """
        try:
            if not self._fresh:
                self._membership, self._cursor = replay(self._store, self._job, self._now()), 0
                catch_up(self._store, self._membership, self._ledger, self._member.id, self._written)
                self._fresh = True
            return self._turn()
        except StoreUnavailable:
            self._fresh = False
            raise

    def _turn(self) -> bool:
        now = self._now()
        deadline = self._membership.deadline(now)
        until = min(self._next_beat, deadline) if deadline is not None else self._next_beat
        messages, self._cursor = self._store.read(self._cursor, max(until - now, 0.0))
        for key, data in messages:
            self._take(key, data)
        self._carry_out(self._membership.apply(Tick(), self._now()))
        if self._now() < self._next_beat:
            return False
        self._next_beat = self._now() + self._beat
        self._look_for_the_lost()
        self._say_who_is_there()
        return self._store.get(self._successor) is not None

    def _say_who_is_there(self) -> None:
        """A round that waits for hosts says so once: somebody has forgotten to start them, or they cannot reach us."""
        job, least = self._membership, self._job.min_hosts
        if job.phase is not Phase.FORMING or len(job.members) >= least:
            self._short_since = None
            return
        if self._short_since is None:
            self._short_since, self._short_told = self._now(), False
        waited = self._now() - self._short_since
        if waited >= SHORT_PATIENCE and not self._short_told:
            self._short_told = True
            names = ", ".join(member.host for member in list(job.members.values())[:_FEW])
            logger.warning(
                "round %d has waited %.0f s for hosts: %d of at least %d are there (%s); it waits %g s in all",
                *(job.round, waited, len(job.members), least, names, self._job.join_timeout),
            )

    def _take(self, key: str, data: bytes) -> None:
        try:
            message = decode_message(data, key)
        except RecordError as error:
            if key not in self._malformed:
                self._malformed.add(key)
                logger.error("%s; ignored", error)
            return
        if isinstance(message, Joined):
            self._meet(message.member)
        if (
            isinstance(message, Report)
            and message.conclusive
            and message.round == self._membership.round
            and message.outcome is not Outcome.INTERRUPTED  # an agent that was told to go, and has gone, is not lost
        ):
            # A host that is dying whole may still tell of its first worker's death; then the loss is what happened.
            member = self._membership.members.get(message.member_id)
            self._declare_refused([member] if member is not None else [])
        if isinstance(message, Report) and message.outcome is Outcome.FAILED and message.round > self._accused_in:
            # The round's first failure may be a peer's complaint: whoever has not been heard is asked in this turn.
            self._accused_in, self._next_beat = message.round, 0.0
        self._carry_out(self._membership.apply(message, self._now(), more=True))

    def _look_for_the_lost(self) -> None:
        others = [member for member in self._membership.members.values() if member.id != self._member.id]
        numbers = self._store.leases([member.id for member in others])
        ages = self._clock.observe(dict(zip((m.id for m in others), numbers, strict=True)), self._now())
        for member in others:
            if ages[member.id] >= self._ttl:
                self._declare(member, "expired")
        patience = 0.0 if self._doubtful else OVERDUE_BEATS * self._beat
        self._doubtful = False
        overdue = [m for m in others if patience <= ages[m.id] < self._ttl]
        unheard = [m for m in self._membership.unheard() if m.id != self._member.id]
        self._declare_refused(list({m.id: m for m in overdue + unheard}.values()))

    def _declare_refused(self, members: list[Member]) -> None:
        for member in self._probe(members, min(PROBE_TIMEOUT, PROBE_BEATS * self._beat)):
            self._declare(member, "refused")

    def _declare(self, member: Member, how: str) -> None:
        """Write down that a member is lost, so that a later coordinator knows it too."""
        logger.info("%s is lost (%s)", member.host, how)
        gone = declare_gone(self._store, member.id, member.host, how)
        self._carry_out(self._membership.apply(gone, self._now()))

    def _carry_out(self, effects: list[Effect]) -> None:
        pending = list(effects)
        while pending:
            effect = pending.pop(0)
            match effect:
                case Open():
                    pending += self._commit_opening(effect.opening, None)
                case Decide():
                    pending += self._decide(effect)
                case Refuse():
                    refusal = Refusal(effect.member_id, effect.reason)
                    self._store.create(refusal_key(effect.member_id), encode(refusal))
                case CheckTwin():
                    self._check_twin(effect)

    def _decide(self, effect: Decide) -> list[Effect]:
        answer = effect.answer if effect.answer is not None else self._decider(effect.case)
        decision = msgspec.structs.replace(answer, by=self._member.id)
        if effect.before_start:
            return self._commit_opening(Opening(decision.round, ended=decision), effect.case)
        key = decision_key(decision.round)
        winner = decode_decision(self._store.create(key, encode(decision)), decision.round, key)
        self._check_mine(winner.by, key)
        self._write_decision(effect.case, winner)
        return self._membership.apply(winner, self._now())

    def _commit_opening(self, opening: Opening, case: Case | None) -> list[Effect]:
        key, mine = opening_key(opening.round), msgspec.structs.replace(opening, by=self._member.id)
        winner = decode_opening(self._store.create(key, encode(mine)), opening.round, key)
        self._check_mine(winner.by, key)
        if winner.ended is not None:
            self._write_decision(case, winner.ended)
        else:
            self._ledger.opened(winner, self._membership.roster)
            settle(self._store, key, self._member.id, self._written)
        return self._membership.apply(winner, self._now())

    def _check_mine(self, by: str, key: str) -> None:
        if by != self._member.id:
            raise Overtaken(f"{key} was committed by another leader")

    def _write_decision(self, case: Case | None, decision: Decision) -> None:
        self._ledger.decided(case, decision, retired_before(self._membership, decision))
        settle(self._store, decision_key(decision.round), self._member.id, self._written)

    def _check_twin(self, effect: CheckTwin) -> None:
        if self._probe([effect.old], PROBE_TIMEOUT):
            self._declare(effect.old, "refused")
            return
        old = effect.old
        reason = f"{old.host} already has an agent in this job (pid {old.pid}); give each agent its own --local-addr"
        self._store.create(refusal_key(effect.new.id), encode(Refusal(effect.new.id, reason)))
