"""torch's ``RendezvousHandler`` on top: one agent's view of the job.

``EzpzRendezvousHandler`` joins the job, keeps the agent's lease, runs its part of the coordination and follows the
committed records: opening, decision, opening, … An agent that holds a slot gets a ``Seat``; one that does not stands
by inside ``next_seat`` until it is given one or the job ends.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import msgspec
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from rendezvous.account import Ledger, see_the_end_settled
from rendezvous.coordinator import Coordinator
from rendezvous.farewell import wait_for_the_others
from rendezvous.lead import Decider, Means
from rendezvous.links import Heart, RoundLink
from rendezvous.liveness import Listener
from rendezvous.meeting import SLICE, Meeting
from rendezvous.membership import Phase
from rendezvous.past import left_over
from rendezvous.records import (
    Action,
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
    Retirement,
    decode,
    decode_decision,
    decode_opening,
    encode,
)
from rendezvous.replay import decision_key, opening_key, refusal_key, survey
from rendezvous.seat import Seat
from rendezvous.stores import Store, StoreGone, StoreRefused, StoreUnavailable
from rendezvous.stores.tcpstore import StoreServer

__all__ = ["EzpzRendezvousHandler", "JobMismatch", "Refused", "new_id"]

logger = logging.getLogger(__name__)

_Record = TypeVar("_Record")

REFUSAL_LOOK = 2.0
"""Seconds between two looks of an agent without a slot for a word that it is not admitted, or that the job is over."""

STORE_PATIENCE = 15.0
"""Seconds without a store after which an agent that joins says what it looks for."""

LAST_REPORT = 1 << 30
"""Number of the report with which an agent that was told to go leaves a round: above all that its watch has sent."""

CLOSED = "closed"
"""Key of the record by which ``set_closed`` ends the job for everybody."""

FINISHED_PATIENCE = 10.0
"""Seconds to wait for a store that keeps nothing and is away, once this host's workers have ended."""

GONE_PATIENCE = 3.0
"""Seconds to wait for a store whose server has ended."""

THREADS_PATIENCE = 20.0
"""Seconds that the agent's own threads may take to end: an operation has 5 s, an attempt to connect 15 s, and a
store that is there answers in milliseconds."""


def new_id() -> str:
    """An id for a new incarnation of an agent."""
    return uuid.uuid4().hex


class JobMismatch(Exception):
    """Another job runs under this id with other limits."""


class Refused(Exception):
    """The coordinator does not admit this agent."""


class EzpzRendezvousHandler(RendezvousHandler):  # type: ignore[misc]  # torch is not followed by mypy
    """One agent's part in the job.

    Args:
        store: makes the agent's first connection; called again for each further one.
        job: the limits this agent was started with.
        member: this agent.
        listener: the agent's liveness port.
        decider: pure function from case to decision.
        ledger: told what this agent's coordinator committed.
        server: the embedded store, if this agent serves it; kept until the others have left.
    """

    def __init__(
        self,
        store: Store,
        job: JobRecord,
        member: Member,
        listener: Listener,
        decider: Decider,
        ledger: Ledger,
        server: StoreServer | None = None,
    ) -> None:
        self._store, self.job, self.member, self.listener = store, job, member, listener
        self.decider, self._ledger, self._server = decider, ledger, server
        self.decision: Decision | None = None
        self._retired: list[Retirement] = []  # by the decisions before that one
        self.round = 1
        self.interrupted = threading.Event()
        self._opened = False
        self._in_roster = False
        self.took_part = False
        self.formed = False  # whether there has been a round at all
        self._joined = False
        self._closed = False
        self._left = False
        self._only_serves = False
        self._heart: Heart | None = None
        self._coordinator: Coordinator | None = None
        self._meeting = Meeting(store, member.addr, self._check, self.interrupted)
        self._line: Store | None = None  # of each round's link in turn
        self._link: RoundLink | None = None

    # -- joining -----------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Enter the job: agree on its limits, take a lease, be seen.

        Raises:
            RendezvousTimeoutError: no store answered within ``join_timeout``.
            JobMismatch: another job uses this run id.
        """
        self._insist(self._agree)
        self._heart = Heart(self._store.connect(), self.member.id, self.job.lease_ttl)
        self._insist(self._announce)
        self._heart.start()
        means = Means(self._store.connect(), self.job, self.member, self.decider, self._ledger)
        self._coordinator = Coordinator(means)
        self._coordinator.start()
        self._joined = True

    def _insist(self, step: Callable[[], None]) -> None:
        """Repeat a step until the store has taken it; each of them may be done twice."""
        deadline, tell_at = time.monotonic() + self.job.join_timeout, time.monotonic() + STORE_PATIENCE
        while True:
            self._check()
            try:
                return step()
            except StoreRefused as error:
                raise JobMismatch(str(error)) from error
            except RecordError as error:
                raise RendezvousStateError(str(error)) from error
            except StoreUnavailable as error:
                if time.monotonic() >= deadline:
                    raise RendezvousTimeoutError(f"no store within {self.job.join_timeout:g} s: {error}") from error
                if time.monotonic() >= tell_at:
                    tell_at = deadline
                    told = "%s has found no store in %g s and looks on, %g s in all: %s"
                    logger.warning(told, self.member.host, STORE_PATIENCE, self.job.join_timeout, error)
                self.interrupted.wait(SLICE)

    def _agree(self) -> None:
        theirs = decode(self._store.create("job", encode(self.job)), JobRecord, "job")
        if self.round == 1 and not self._opened and (past := left_over(self._store, theirs)):
            raise JobMismatch(f"{past}; give this job another --rdzv-id")
        differing = [
            f"{name} {getattr(theirs, name)} there, {getattr(self.job, name)} here"
            for name in ("version", "min_hosts", "max_hosts", "max_restarts")
            if getattr(theirs, name) != getattr(self.job, name)
        ]
        if differing:
            raise JobMismatch(f"run id {self.job.run_id!r} is in use by a job of another size: {', '.join(differing)}")
        self.job = theirs

    def _announce(self) -> None:
        """The heart's own connection takes the lease: however long it took to connect, it can renew it from then on."""
        assert self._heart is not None
        self._heart.beat()
        self._store.create(f"member/{self.member.id}", encode(self.member))
        self._store.append(encode(Joined(self.member)))

    def _rejoin(self, reason: str) -> None:
        """Come back as a new incarnation after having been taken for lost while standing by."""
        logger.warning("%s was taken for lost (%s); it joins again", self.member.host, reason)
        self.leave()
        self.member = msgspec.structs.replace(self.member, id=new_id())
        self._left = False
        self.join()

    # -- following the records ---------------------------------------------------------------------------------------

    def next_seat(self) -> Seat:
        """Wait for a slot in the next round.

        Raises:
            RendezvousClosedError: the job is over, or this host is no longer part of it (see ``decision``).
            Refused: the coordinator does not admit this agent.
            RendezvousConnectionError: the store is gone for good.
            RendezvousStateError: a committed record is malformed.
        """
        if self._closed:
            raise RendezvousClosedError("the rendezvous was closed")
        if not self._joined:
            self.join()
        try:
            while True:
                opening = self._next_opening()
                slot = opening.roster.slot_of(self.member.id) if opening.roster is not None else None
                self._in_roster = slot is not None
                if opening.roster is not None:
                    self.formed = True
                    self._store.scale(len(opening.roster.members))
                if opening.roster is not None and slot is not None:
                    seat = self._meeting.seat(opening.roster, slot)
                    if seat is not None:
                        self.took_part = True
                        return seat
        except RecordError as error:
            raise RendezvousStateError(str(error)) from error

    def _next_opening(self) -> Opening:
        """The next opening that has a roster, passing over everything that ended before it."""
        while True:
            if self._opened:
                self.obey(self._wait(decision_key(self.round), decode_decision))
                continue
            opening = self._wait(opening_key(self.round), decode_opening)
            self._opened = True
            if opening.ended is not None:
                self.obey(opening.ended)
                continue
            return opening

    def obey(self, decision: Decision) -> None:
        """Take note of the decision that ended the current round.

        Raises:
            RendezvousClosedError: the job is over, or this host was retired.
        """
        if self.decision is not None:
            self._retired += [item for item in self.decision.retired if not item.benched]
        self.decision = decision
        self.round, self._opened = decision.round + 1, False
        if decision.action is not Action.RESTART:
            self._closed = True
            raise RendezvousClosedError(decision.reason)
        retirement = self.retirement()
        if retirement is not None and not retirement.benched:
            if self._server is None:
                raise RendezvousClosedError(retirement.reason)
            logger.warning("%s was retired (%s); it stays to serve the store", self.member.host, retirement.reason)
            self._only_serves = True

    def retirement(self) -> Retirement | None:
        """The last decision's word on this host, if it took its slot."""
        retired = self.decision.retired if self.decision is not None and self._in_roster else ()
        return next((item for item in retired if item.host == self.member.host), None)

    def _wait(self, key: str, read: Callable[[bytes, int, str], _Record]) -> _Record:
        """Wait for a committed record of the current round as long as it takes."""
        away_since: float | None = None
        look_at = time.monotonic()
        while True:
            self._check()
            try:
                data = self._store.wait(key, SLICE)
                away_since = None
                if data is not None:
                    return read(data, self.round, key)
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + REFUSAL_LOOK
                    self._check_admission()
            except StoreUnavailable as error:
                away_since = away_since or time.monotonic()
                patience = GONE_PATIENCE if isinstance(error, StoreGone) else self.job.join_timeout
                if time.monotonic() - away_since >= patience:
                    raise RendezvousConnectionError(f"the store did not come back: {error}") from error
                self.interrupted.wait(SLICE)

    def _check_admission(self) -> None:
        """Whether this agent is still wanted, as far as no decision says so."""
        if self.is_closed():
            raise RendezvousClosedError("the rendezvous was closed")
        if self._in_roster or self._only_serves:
            return
        key = refusal_key(self.member.id)
        data = self._store.get(key)
        if data is None:
            return
        refusal = decode(data, Refusal, key)
        if not refusal.rejoin:
            raise Refused(refusal.reason)
        self._rejoin(refusal.reason)

    def _check(self) -> None:
        if self.interrupted.is_set():
            raise RendezvousClosedError("interrupted by a signal")
        if (failure := self.coordination_failure()) is not None:
            raise RendezvousStateError(f"this host's coordinator failed: {failure}")

    @property
    def patience(self) -> float:
        """Seconds for which an agent whose workers have ended waits for a store that is away."""
        return self.job.join_timeout if self._store.durable else FINISHED_PATIENCE

    def coordination_failure(self) -> Exception | None:
        """What ended this agent's part in the coordination, if anything has; it must leave so that others can lead."""
        return self._coordinator.failure if self._coordinator is not None else None

    # -- what the agent says -----------------------------------------------------------------------------------------

    def watch(self, seat: Seat, wake: Callable[[], None]) -> RoundLink:
        """Start following the decision of this seat's round from a thread; ``wake`` is called when it is there."""
        if self._line is None or (self._link is not None and self._link.spent):
            self._line = self._store.connect()
        self._link = RoundLink(self._line, seat.roster.round, wake)
        return self._link

    def doubt(self) -> None:
        """What happens here may be the echo of a lost host: have ports asked at once instead of at the next beat."""
        if self._coordinator is not None:
            self._coordinator.doubt()

    def leave(self) -> None:
        """Go: stop the heartbeat and the coordination, and say so."""
        if not self._joined or self._left:
            return
        self._left = True
        over = self.decision is not None and self.decision.action is not Action.RESTART
        if self.decision is not None and over:
            self._see_the_end_settled(self.decision)
        self._joined = False
        if self._link is not None:
            self._link.stop()  # its round's watch has done so, unless that one failed
        if self._coordinator is not None:
            self._coordinator.stop()
        if self._heart is not None:
            self._heart.stop()
        try:
            if self.interrupted.is_set() and self._opened and self._in_roster:
                # It may have been told to go before it could report anything; without this it would be a lost host.
                told = Report(self.round, self.member.id, LAST_REPORT, Outcome.INTERRUPTED, conclusive=True)
                self._store.append(encode(told))
            self._store.append(encode(Gone(self.member.id, "left")))
            self._await_threads()
            self._store.end(self.member.id, over)
        except StoreUnavailable as error:
            logger.info("could not say goodbye: %s", error)
        finally:
            self._await_threads()

    def _see_the_end_settled(self, decision: Decision) -> None:
        """The coordinator that ended the job may have died before anybody could read how it ended."""
        try:
            see_the_end_settled(self._store, self._ledger, decision, self.member.id)
        except (StoreUnavailable, RecordError) as error:
            logger.info("whether the end of the job was written down is not known: %s", error)
            self._ledger.ended(decision, self._retired)

    def _await_threads(self) -> None:
        """A thread that is still inside torch's C++ when the interpreter ends takes the process down with SIGABRT."""
        deadline = time.monotonic() + THREADS_PATIENCE
        for thread in (self._coordinator, self._heart, self._link):
            if thread is not None and thread.ident is not None:
                thread.join(timeout=max(0.0, deadline - time.monotonic()))

    # -- torch's contract --------------------------------------------------------------------------------------------

    def get_backend(self) -> str:
        """``ezpz``."""
        return "ezpz"

    @property
    def use_agent_store(self) -> bool:
        """Workers use the round's store, which slot 0's agent serves on a port the OS chose."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """``next_seat`` in torch's terms."""
        seat = self.next_seat()
        if seat.problem is not None:
            raise RendezvousConnectionError(str(seat.problem)) from seat.problem
        timeout = timedelta(seconds=self.job.join_timeout)
        store = TCPStore(seat.master_addr, seat.master_port, is_master=False, wait_for_workers=False, timeout=timeout)
        address = RendezvousStoreInfo(seat.master_addr, seat.master_port)
        return RendezvousInfo(store, seat.slot, len(seat.roster.members), address)

    def is_closed(self) -> bool:
        """Whether the job is over: by a decision this agent has read, or because somebody called ``set_closed``.

        As torch's contract has it this spreads in its own time; while the store is away the answer is the last one.
        """
        if not self._closed and self._joined:
            try:
                self._closed = self._store.get(CLOSED) is not None
            except StoreUnavailable as error:
                logger.debug("whether the rendezvous is closed is not known: %s", error)
        return self._closed

    def set_closed(self) -> None:
        """End the job for everybody: no agent gets a slot in a later round. A running round is not touched.

        Raises:
            RendezvousConnectionError: the store does not answer, so nobody else knows.
        """
        self._closed = True
        try:
            self._store.create(CLOSED, self.member.id.encode())
        except StoreUnavailable as error:
            raise RendezvousConnectionError(f"could not close the rendezvous: {error}") from error

    def num_nodes_waiting(self) -> int:
        """Hosts that came late and would enlarge the running round. Spares beyond the maximum wait for nothing.

        Our own agent does not ask: growth comes by a committed decision that every agent obeys, never by each one's
        own count. 0 while the store is away.
        """
        try:
            job = survey(self._store)
        except (StoreUnavailable, RecordError) as error:
            logger.debug("how many hosts wait is not known: %s", error)
            return 0
        if job is None or job.roster is None or job.phase is not Phase.RUNNING:
            return 0
        return min(len(job.queue), job.job.max_hosts - len(job.roster.members))

    def get_run_id(self) -> str:
        """``--rdzv-id``."""
        return self.job.run_id

    def shutdown(self) -> bool:
        """Leave the job and close everything. The agent that serves the store stays until the others have left."""
        self.leave()
        if self._server is not None and not self.interrupted.is_set():
            try:
                wait_for_the_others(self._store.connect(), self.member.id)
            except StoreUnavailable as error:
                logger.info("the store went away first: %s", error)
        if self._line is not None:
            self._line.close()
        self._store.close()
        self.listener.close()
        if self._server is not None:
            self._server.close()
        self._server = None
        self._meeting.close()
        return True
