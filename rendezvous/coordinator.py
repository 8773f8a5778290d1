"""One agent's part in coordinating the job: it leads, or it watches the leader and takes over when that one is gone.

Every agent runs one ``Coordinator`` thread; the one whose record stands in the highest term leads.
"""

from __future__ import annotations

import logging
import threading

from rendezvous.lead import (
    BEATS_PER_LEASE,
    OVERDUE_BEATS,
    PROBE_BEATS,
    PROBE_TIMEOUT,
    Leader,
    Means,
    declare_gone,
)
from rendezvous.liveness import LeaseClock
from rendezvous.records import CoordinatorRecord, Member, RecordError, decode, encode
from rendezvous.stores import RunGone, StoreUnavailable

__all__ = ["RETRY", "Coordinator", "Part"]

logger = logging.getLogger(__name__)

RETRY = 0.2
"""Seconds to the next attempt when the store does not answer."""


class Part:
    """One agent's part, turn by turn; it never waits longer than the store's own waits do.

    Args:
        means: what it coordinates with.
    """

    def __init__(self, means: Means) -> None:
        self._means = means
        self._store, self._job, self._member = means.store, means.job, means.member
        self._now, self._probe = means.clock, means.probe
        self._beat = means.job.lease_ttl / BEATS_PER_LEASE
        self._term = 1
        self._lead: Leader | None = None
        self._leader: CoordinatorRecord | None = None
        self._clock = LeaseClock(means.job.lease_ttl)
        self._doubtful = False

    def doubt(self) -> None:
        """Something has gone wrong on this host, perhaps because of another one: ask ports now.

        A leader asks everybody's, everybody else the leader's. May be called from another thread.
        """
        self._doubtful, lead = True, self._lead
        if lead is not None:
            lead.doubt()
        self._store.wake()

    @property
    def leads(self) -> bool:
        """Whether this agent believes that it leads."""
        return self._lead is not None

    def turn(self) -> None:
        """Do what is next: stand for election, watch the leader, or lead.

        Raises:
            StoreUnavailable: the store does not answer; nothing is lost.
            RecordError: a committed record is malformed.
        """
        if self._lead is not None:
            if self._lead.turn():
                self._next_term()
        elif self._leader is None:
            self._elect()
        elif self._leader_is_gone(self._leader):
            self._next_term()

    def _next_term(self) -> None:
        self._lead = self._leader = None
        self._term += 1

    def _elect(self) -> None:
        key = f"coordinator/{self._term}"
        mine = CoordinatorRecord(self._term, self._member.id, self._member.host)
        record = decode(self._store.create(key, encode(mine)), CoordinatorRecord, key)
        if record.member_id == self._member.id:
            self._lead = Leader(self._means, self._term)
        else:
            self._leader, self._clock = record, LeaseClock(self._job.lease_ttl)

    def _leader_is_gone(self, leader: CoordinatorRecord) -> bool:
        """Look once whether another term has begun or has to; if the leader is lost, say so."""
        if self._store.wait(f"coordinator/{self._term + 1}", self._beat) is not None:
            return True
        numbers = {leader.member_id: self._store.leases([leader.member_id])[0]}
        age = self._clock.observe(numbers, self._now())[leader.member_id]
        if age < self._job.lease_ttl and not self._refuses(leader, age):
            return False
        logger.info("coordinator %s is gone; %s stands for term %d", leader.host, self._member.host, self._term + 1)
        declare_gone(self._store, leader.member_id, leader.host, "expired")
        return True

    def _refuses(self, leader: CoordinatorRecord, age: float) -> bool:
        doubtful, self._doubtful = self._doubtful, False
        if age < OVERDUE_BEATS * self._beat and not doubtful:
            return False
        key = f"member/{leader.member_id}"
        record = self._store.get(key)
        if record is None:
            return False
        return bool(self._probe([decode(record, Member, key)], min(PROBE_TIMEOUT, PROBE_BEATS * self._beat)))


class Coordinator(threading.Thread):
    """The thread that plays an agent's part; arguments as of ``Part``."""

    def __init__(self, means: Means) -> None:
        super().__init__(name="ezpz-coordinator", daemon=True)
        self._store, self._member = means.store, means.member
        self._part = Part(means)
        self._stopping = threading.Event()
        self.failure: Exception | None = None

    def doubt(self) -> None:
        """Have ports asked at once."""
        self._part.doubt()

    def stop(self) -> None:
        """Ask the thread to end; ``join`` waits for it."""
        self._stopping.set()
        self._store.close()

    def run(self) -> None:
        """Play the part until stopped. An unreachable store is waited for, never given up on.

        Anything else that goes wrong is kept in ``failure`` for the agent, which leaves so that another one can lead.
        So is the end of a job that was removed meanwhile: there is nothing to coordinate any more.
        """
        while not self._stopping.is_set():
            try:
                self._part.turn()
            except RunGone as error:
                self.failure = error
                return
            except StoreUnavailable as error:
                logger.debug("coordinator of %s: %s", self._member.host, error)
                self._stopping.wait(RETRY)
            except RecordError as error:
                logger.error("the coordinator of %s gives up: %s", self._member.host, error)
                self.failure = error
                return
            except Exception as error:
                logger.exception("the coordinator of %s failed", self._member.host)
                self.failure = error
                return
