"""One round as its agent sees it: everything that watches the workers, in one loop, until the decision is there."""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from torch.distributed.elastic.agent.server.api import Worker
from torch.distributed.elastic.multiprocessing import PContext
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
)

from ezpz_elastic.assembly import AgentHandler
from ezpz_elastic.console import Console
from ezpz_elastic.decide.evidence import Evidence, WorkerExit
from ezpz_elastic.decide.verdict import Cause
from ezpz_elastic.events import EventRelay
from ezpz_elastic.health import Health
from ezpz_elastic.observe.exits import ExitWatch
from ezpz_elastic.observe.hang import StepClock
from ezpz_elastic.observe.launcher import LauncherLog
from ezpz_elastic.observe.oom import OomWatch
from ezpz_elastic.reporter import Reporter
from ezpz_elastic.round_logs import WorkerFiles
from ezpz_elastic.signals import StopSignals
from ezpz_elastic.stall import Ranks, StallWatch
from ezpz_elastic.walltime import Walltime
from rendezvous.records import Decision
from rendezvous.seat import Seat

__all__ = ["Eyes", "RoundWatch"]

INTERRUPT_PATIENCE = 3.0
"""Seconds an interrupted agent waits for the job's decision before it leaves on its own."""

LOOK = 1.0
"""Seconds the loop sleeps at most; nothing it reacts to waits for this, it only carries workers' events over."""


@dataclass(frozen=True)
class Eyes:
    """What outlives a round and is looked at in each.

    Args:
        handler: the rendezvous.
        console: shows the workers' last words before ours.
        signals: what this agent was told.
        clock: this run's steps.
        oom: the kernel's word on memory.
        health: of this host.
        walltime: the deadline.
        launcher: the launcher's log.
        wake_read: becomes readable when any of them has something to say.
        wake: makes it readable.
        numbers: of this agent's reports.
    """

    handler: AgentHandler
    console: Console
    signals: StopSignals
    clock: StepClock
    oom: OomWatch
    health: Health
    walltime: Walltime
    launcher: LauncherLog
    wake_read: int
    wake: Callable[[], None]
    numbers: Iterator[int] = field(default_factory=itertools.count)


class RoundWatch:
    """Watches one round.

    Args:
        eyes: see there.
        seat: this agent's place in the round.
        context: torch's handle on the workers' processes; ``None`` if there are no workers.
        workers: their ranks and pids.
        files: their files, by local rank.
        carried: evidence from after the end of the round before.
    """

    def __init__(
        self,
        eyes: Eyes,
        seat: Seat,
        context: PContext | None,
        workers: Sequence[Worker],
        files: Mapping[int, WorkerFiles],
        carried: Sequence[Evidence] = (),
    ) -> None:
        handler, number = eyes.handler, seat.roster.round
        self._eyes, self._host = eyes, handler.member.host
        self._exits = ExitWatch(context, workers, files, self._host, eyes.oom)
        self._events = EventRelay(handler.journal, number, {rank: item.events for rank, item in files.items()})
        with ExitStack() as undo:  # what has been started ends again if the rest cannot be
            undo.callback(self._exits.close)
            self._link = handler.watch(seat, eyes.wake)
            undo.callback(self._link.stop)
            self._ranks = Ranks(self._host, workers, files, handler.journal, number)
            finished = self._exits.finished
            self._stall = StallWatch(self._ranks, eyes.clock, seat, handler.connection(), finished, eyes.wake)
            undo.callback(self._stall.stop)
            # One agent reads it, or each would tell the same again.
            launcher = eyes.launcher if seat.slot == 0 else LauncherLog(None)
            launcher.begin()
            eyes.walltime.begin(item.progress for item in files.values())
            undo.pop_all()
        told = (handler.journal, launcher, carried, eyes.numbers)
        self._reporter = Reporter(handler.member, number, self._link, *told)
        self._leave_at: float | None = None
        self._hung = self._timed_out = self._failed = False
        self._speaks_for_all = seat.slot == 0  # a checkpoint is the whole job's; one host tells of it
        self._durable: int | None = None

    def watch(self, stop_workers: Callable[[], None]) -> Decision:
        """Report what is seen until the decision comes.

        Args:
            stop_workers: ends this host's workers, for an agent that was told to go.

        Raises:
            RendezvousClosedError: this agent was told to go and no decision came.
            RendezvousStateError, RendezvousConnectionError: going on is pointless.
        """
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._eyes.wake_read, selectors.EVENT_READ)
                selector.register(self._eyes.handler.listener, selectors.EVENT_READ)
                self._exits.register(selector)
                while self._link.decision is None:
                    self._check()
                    self._leave_if_told(stop_workers)
                    self._look_at_clocks()
                    self._tell_of_checkpoints()
                    for key, _ in selector.select(LOOK):
                        self._react(key, selector)
                    self._events.relay()
            decision = self._link.decision
        finally:
            self._stall.stop()
            self._link.stop()
            self._exits.close()
        if decision.cause == Cause.HANG.value:
            self._ranks.look()  # what a hung process was doing is gone once it is stopped
        return decision

    def not_watched(self, found: Sequence[WorkerExit]) -> None:
        """The agent could not start or watch its workers; each of them counts as failed."""
        self._reporter.not_watched(self._exits, found)

    def stopped(self) -> None:
        """The agent has stopped its workers: write down how they ended, and carry over their last events."""
        self._reporter.by_agent(self._exits.stopped())
        self._events.relay()

    def _leave_if_told(self, stop_workers: Callable[[], None]) -> None:
        received = self._eyes.signals.received
        if received is not None and self._leave_at is None:
            self._reporter.interrupted(received, self._exits)
            stop_workers()
            self._leave_at = time.monotonic() + INTERRUPT_PATIENCE
        if self._leave_at is not None and time.monotonic() >= self._leave_at:
            raise RendezvousClosedError("interrupted")

    def _look_at_clocks(self) -> None:
        if self._stall.found is not None and not self._hung:
            self._hung = True
            self._reporter.hung(self._exits, self._stall.found)
            self._detected(self._stall.found.seconds)
        over = self._eyes.walltime.over(self._exits.running())
        if self._eyes.walltime.nudged:
            self._exits.sent(signal.SIGUSR1)
        if over and not self._timed_out:
            self._timed_out = True
            self._reporter.out_of_time(self._exits, self._eyes.walltime.evidence(self._host))

    def _tell_of_checkpoints(self) -> None:
        durable = self._exits.durable_step() if self._speaks_for_all else None
        if durable != self._durable:
            self._durable = durable
            self._reporter.underway(self._exits)

    def _react(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
        if key.fileobj is self._eyes.handler.listener:
            self._eyes.handler.listener.drain()
        elif key.fd == self._eyes.wake_read:
            os.read(self._eyes.wake_read, 4096)
        elif self._leave_at is None:
            self._ended(key.data, selector)
        else:
            selector.unregister(key.fileobj)  # our own stop is never evidence

    def _ended(self, local_rank: int, selector: selectors.BaseSelector) -> None:
        began = time.monotonic()
        found = self._exits.collect(local_rank, selector)
        self._eyes.console.copy()  # the worker's own last words come before ours
        own = [item for item in found if isinstance(item, WorkerExit) and item.by_agent]
        if own:
            self._reporter.by_agent(own)
        if own or (not found and self._exits.finished() and self._eyes.walltime.told):
            return  # they have ended because they were told to: that is neither a failure nor success
        self._reporter.ended(self._exits, found)
        if found:
            self._detected(time.monotonic() - began)
            self._eyes.handler.doubt()
            report = partial(self._reporter.probed, self._exits)
            self._eyes.health.failed(self._eyes.handler.round, self._exits.running(), report)

    def _detected(self, seconds: float) -> None:
        """What the round's first failure on this host took, from the kernel's word or the last step to its report."""
        if not self._failed:
            self._failed = True
            self._eyes.handler.journal.span(self._eyes.handler.round, "detect", seconds)

    def _check(self) -> None:
        """What makes going on pointless although no decision has come."""
        if self._link.failure is not None:
            raise RendezvousStateError(str(self._link.failure))
        if (failure := self._eyes.handler.coordination_failure()) is not None:
            raise RendezvousStateError(f"this host's coordinator failed: {failure}")
        away = 0.0 if self._link.away_since is None else time.monotonic() - self._link.away_since
        idle = "have ended" if self._exits.finished() else "make no progress" if self._stall.stalled else ""
        if idle and away > self._eyes.handler.patience:
            raise RendezvousConnectionError(f"the store has been away for {away:.0f} s and the workers {idle}")
