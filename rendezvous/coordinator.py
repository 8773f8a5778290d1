"""Leader election and the loop that turns reports into one committed decision.

Every agent runs one ``Coordinator`` thread; the one whose record stands in the highest term leads, the others watch
it and take over when its lease ends. The leader applies everything in the store to a ``Membership`` and carries out
the effects. All it knows comes from the store, so a new leader begins by reading the same records again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from rendezvous.liveness import LeaseClock, refused
from rendezvous.membership import CheckTwin, Decide, Effect, Membership, Open, Refuse, Tick
from rendezvous.records import (
    Case,
    CoordinatorRecord,
    Decision,
    Gone,
    JobRecord,
    Member,
    Opening,
    RecordError,
    Refusal,
    Report,
    decode,
    decode_decision,
    decode_message,
    decode_opening,
    encode,
)
from rendezvous.replay import decision_key, opening_key, refusal_key, replay
from rendezvous.stores import Store, StoreUnavailable

__all__ = ["BEATS_PER_LEASE", "Coordinator", "Decider", "Ledger"]

logger = logging.getLogger(__name__)

BEATS_PER_LEASE = 10
"""How often an agent renews its lease within ``lease_ttl``: one lost packet or one slow second must not end it."""

OVERDUE_BEATS = 3
"""Beats an agent may be late before its port is asked whether it still exists."""

PROBE_TIMEOUT = 0.25
"""Seconds given to all ports that are asked at once."""

RETRY = 0.2
"""Seconds to the next attempt when the store does not answer."""

Decider = Callable[[Case], Decision]


class Ledger(Protocol):
    """Told about every record this coordinator committed, in order; writes what people read afterwards."""

    def opened(self, opening: Opening) -> None:
        """A round was opened."""

    def decided(self, case: Case, decision: Decision) -> None:
        """A round was ended."""


class Coordinator(threading.Thread):
    """One agent's part in coordinating the job.

    Args:
        store: a connection of its own.
        job: what all agents agreed on.
        member: the agent this thread belongs to.
        decider: pure function from case to decision.
        ledger: told what this coordinator committed.
    """

    def __init__(self, store: Store, job: JobRecord, member: Member, decider: Decider, ledger: Ledger) -> None:
        super().__init__(name="ezpz-coordinator", daemon=True)
        self._store, self._job, self._member = store, job, member
        self._decider, self._ledger = decider, ledger
        self._stopping = threading.Event()
        self._beat = job.lease_ttl / BEATS_PER_LEASE
        self.failure: Exception | None = None

    def stop(self) -> None:
        """Ask the thread to end; ``join`` waits for it."""
        self._stopping.set()
        self._store.close()

    def run(self) -> None:
        """Elect, then lead or follow, until stopped. An unreachable store is waited for, never given up on.

        Anything else that goes wrong is kept in ``failure`` for the agent, which leaves so that another one can lead.
        """
        try:
            self._take_part()
        except RecordError as error:
            logger.error("the coordinator of %s gives up: %s", self._member.host, error)
            self.failure = error
        except Exception as error:
            logger.exception("the coordinator of %s failed", self._member.host)
            self.failure = error

    def _take_part(self) -> None:
        term = 1
        while not self._stopping.is_set():
            try:
                record = self._elect(term)
                term = record.term
                if record.member_id == self._member.id:
                    self._lead(term)
                    return
                self._follow(record)
                term += 1
            except StoreUnavailable as error:
                logger.debug("coordinator of %s: %s", self._member.host, error)
                self._stopping.wait(RETRY)

    def _elect(self, term: int) -> CoordinatorRecord:
        key = f"coordinator/{term}"
        mine = CoordinatorRecord(term, self._member.id, self._member.host)
        return decode(self._store.create(key, encode(mine)), CoordinatorRecord, key)

    def _follow(self, leader: CoordinatorRecord) -> None:
        """Watch the leader until it is lost, and say so."""
        clock = LeaseClock(self._job.lease_ttl)
        successor = f"coordinator/{leader.term + 1}"
        while not self._stopping.is_set():
            if self._store.wait(successor, self._beat) is not None:
                return
            age = clock.observe({leader.member_id: self._store.leases([leader.member_id])[0]}, time.monotonic())
            if age[leader.member_id] >= self._job.lease_ttl or self._leader_refuses(leader, age[leader.member_id]):
                logger.info(
                    "coordinator %s is gone; %s stands for term %d", leader.host, self._member.host, leader.term + 1
                )
                self._store.append(encode(Gone(leader.member_id, "expired")))
                return

    def _leader_refuses(self, leader: CoordinatorRecord, age: float) -> bool:
        if age < OVERDUE_BEATS * self._beat:
            return False
        key = f"member/{leader.member_id}"
        record = self._store.get(key)
        return record is not None and bool(refused([decode(record, Member, key)], PROBE_TIMEOUT))

    def _lead(self, term: int) -> None:
        _Lead(self, term).run()


class _Lead:
    """One term of leadership: the membership, its cursor in the inbox and the leases it observes."""

    def __init__(self, coordinator: Coordinator, term: int) -> None:
        self._store, self._member = coordinator._store, coordinator._member
        self._decider, self._ledger = coordinator._decider, coordinator._ledger
        self._stopping = coordinator._stopping
        self._job, self._ttl = coordinator._job, coordinator._job.lease_ttl
        self._beat = self._ttl / BEATS_PER_LEASE
        self._successor = f"coordinator/{term + 1}"
        self._membership = Membership(self._job)
        self._clock = LeaseClock(self._ttl)
        self._next_beat = 0.0
        self._cursor = 0
        self._malformed: set[str] = set()

    def run(self) -> None:
        """Lead until stopped or replaced. When the store was away, everything is read again from its beginning."""
        fresh = False
        while not self._stopping.is_set():
            try:
                if not fresh:
                    self._membership, self._cursor = replay(self._store, self._job, time.monotonic()), 0
                    fresh = True
                if self._turn():
                    return
            except StoreUnavailable as error:
                logger.debug("coordinator %s: %s", self._member.host, error)
                fresh = False
                self._stopping.wait(RETRY)

    def _turn(self) -> bool:
        """One look at the inbox, the clock and the leases. Returns whether another coordinator has taken over."""
        now = time.monotonic()
        deadline = self._membership.deadline(now)
        until = min(self._next_beat, deadline) if deadline is not None else self._next_beat
        messages, self._cursor = self._store.read(self._cursor, max(until - now, 0.0))
        for key, data in messages:
            self._take(key, data)
        self._carry_out(self._membership.apply(Tick(), time.monotonic()))
        if time.monotonic() < self._next_beat:
            return False
        self._next_beat = time.monotonic() + self._beat
        self._look_for_the_lost()
        return self._store.get(self._successor) is not None

    def _take(self, key: str, data: bytes) -> None:
        try:
            message = decode_message(data, key)
        except RecordError as error:
            if key not in self._malformed:
                self._malformed.add(key)
                logger.error("%s; ignored", error)
            return
        if isinstance(message, Report) and message.conclusive and message.round == self._membership.round:
            # A host that is dying whole may still tell of its first worker's death; then the loss is what happened.
            member = self._membership.members.get(message.member_id)
            self._declare_refused([member] if member is not None else [])
        self._carry_out(self._membership.apply(message, time.monotonic(), more=True))

    def _look_for_the_lost(self) -> None:
        others = [member for member in self._membership.members.values() if member.id != self._member.id]
        numbers = self._store.leases([member.id for member in others])
        ages = self._clock.observe(dict(zip((m.id for m in others), numbers, strict=True)), time.monotonic())
        for member in others:
            if ages[member.id] >= self._ttl:
                self._declare(member, "expired")
        overdue = [m for m in others if OVERDUE_BEATS * self._beat <= ages[m.id] < self._ttl]
        unheard = [m for m in self._membership.unheard() if m.id != self._member.id]
        self._declare_refused(list({m.id: m for m in overdue + unheard}.values()))

    def _declare_refused(self, members: list[Member]) -> None:
        for member in refused(members, PROBE_TIMEOUT):
            self._declare(member, "refused")

    def _declare(self, member: Member, how: str) -> None:
        """Write down that a member is lost, so that a later coordinator knows it too."""
        logger.info("%s is lost (%s)", member.host, how)
        if member.id in self._membership.queue:
            refusal = Refusal(member.id, f"{member.host} was silent for {self._ttl:g} s", rejoin=True)
            self._store.create(refusal_key(member.id), encode(refusal))
        gone = Gone(member.id, how)
        self._store.append(encode(gone))
        self._carry_out(self._membership.apply(gone, time.monotonic()))

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
        decision = effect.answer if effect.answer is not None else self._decider(effect.case)
        if effect.before_start:
            return self._commit_opening(Opening(decision.round, ended=decision), effect.case)
        key, mine = decision_key(decision.round), encode(decision)
        winner = self._store.create(key, mine)
        if winner == mine:
            self._ledger.decided(effect.case, decision)
        return self._membership.apply(decode_decision(winner, decision.round, key), time.monotonic())

    def _commit_opening(self, opening: Opening, case: Case | None) -> list[Effect]:
        key, mine = opening_key(opening.round), encode(opening)
        winner = self._store.create(key, mine)
        if winner == mine:
            self._ledger.opened(opening)
            if case is not None and opening.ended is not None:
                self._ledger.decided(case, opening.ended)
        return self._membership.apply(decode_opening(winner, opening.round, key), time.monotonic())

    def _check_twin(self, effect: CheckTwin) -> None:
        if refused([effect.old], PROBE_TIMEOUT):
            self._declare(effect.old, "refused")
            return
        old = effect.old
        reason = f"{old.host} already has an agent in this job (pid {old.pid}); give each agent its own --local-addr"
        self._store.create(refusal_key(effect.new.id), encode(Refusal(effect.new.id, reason)))
