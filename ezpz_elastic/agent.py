"""The agent on every host: watch the workers, report what was seen, obey the written decision.

``EzpzElasticAgent`` keeps torch's way of starting workers and replaces its run loop. The loop sleeps in one
``select`` on the workers' pidfds, on a wake-up pipe (a decision has come, a signal has arrived) and on the port by
which other hosts can tell that this agent exists.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import HashStore
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
)
from torch.distributed.elastic.utils import macros

from ezpz_elastic import guard
from ezpz_elastic.assembly import AgentHandler
from ezpz_elastic.console import Console
from ezpz_elastic.decide.policy import stop_line
from ezpz_elastic.decide.verdict import Cause
from ezpz_elastic.errors import UsageError
from ezpz_elastic.events import EventRelay
from ezpz_elastic.ledger import say
from ezpz_elastic.observe.exits import ExitWatch, last_step
from ezpz_elastic.observe.hang import StepClock
from ezpz_elastic.observe.oom import KernelLog, OomWatch, counter_of
from ezpz_elastic.observe.scanner import warm_up
from ezpz_elastic.process_tree import Guard, stop_all
from ezpz_elastic.reporter import Reporter
from ezpz_elastic.round_logs import Handover, RoundLogs
from ezpz_elastic.signals import StopSignals
from ezpz_elastic.signatures import load_library
from ezpz_elastic.stall import Ranks, StallWatch
from ezpz_elastic.walltime import Walltime, known_deadline
from ezpz_elastic.warm.client import ServerGone
from ezpz_elastic.warm.context import WarmContext
from ezpz_elastic.warm.keeper import WarmWorkers, can_be_warm
from rendezvous.handler import JobMismatch, Refused, Seat
from rendezvous.links import RoundLink
from rendezvous.records import Action, Decision

__all__ = ["EzpzElasticAgent"]

INTERRUPT_PATIENCE = 3.0
"""Seconds an interrupted agent waits for the job's decision before it leaves on its own."""

STORE_PATIENCE = 10.0
"""Seconds to wait for a store that is away once this host's workers have ended."""

LOOK = 1.0
"""Seconds the loop sleeps at most; nothing it reacts to waits for this, it only carries workers' events over."""


class EzpzElasticAgent(LocalElasticAgent):  # type: ignore[misc]  # torch is not followed by mypy
    """torch's local agent with a run loop that reports and obeys.

    Built by ``torch.distributed.launcher.api.launch_agent`` with the arguments of ``LocalElasticAgent``; everything
    else it needs hangs on the rendezvous handler.

    Args:
        spec: the worker group; its handler is an ``AgentHandler``.
        arguments: passed on to ``LocalElasticAgent`` (``logs_specs``, ``start_method``, ``shutdown_timeout`` …).
    """

    _pcontext: Any  # torch's; None while no workers run

    def __init__(self, spec: Any, **arguments: Any) -> None:
        handler = spec.rdzv_handler
        if not isinstance(handler, AgentHandler):
            raise UsageError(f"the ezpz agent cannot use the {handler.get_backend()!r} rendezvous", expected="ezpz")
        handler.complete(spec.max_restarts, spec.local_world_size)
        self._handler: AgentHandler = handler
        settings = handler.settings
        grace = settings.grace if settings.grace is not None else arguments.get("shutdown_timeout")
        self._grace = float(30 if grace is None else grace)
        self._journal = handler.journal
        self._warm: WarmWorkers | None = None
        self._scratch = Path(tempfile.mkdtemp(prefix="ezpz-agent-"))
        self._tag = handler.member.id
        self._clock = StepClock(settings.hang_timeout, settings.startup_timeout)
        deadline = known_deadline(settings.deadline, os.environ)
        self._walltime = Walltime(deadline, settings.margin, settings.nudge == "on")
        self._kernel_log = KernelLog()
        self._oom = OomWatch(counter_of(), self._kernel_log)
        self._console = Console()
        logs = RoundLogs(arguments.pop("logs_specs"), self._journal.directory, self._scratch, self._tag, self._console)
        logs.prefix_template = arguments.pop("log_line_prefix_template", None)
        logs.torch_tees = bool(spec.duplicate_stdout_filters or spec.duplicate_stderr_filters)
        self._logs = logs
        super().__init__(spec, logs_specs=logs, **arguments)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    # -- torch's entry point -----------------------------------------------------------------------------------------

    def run(self, role: str = "default") -> RunResult:
        """Take part in the job until it ends.

        Returns:
            The result of this host's workers; success for a spare that was not needed and for a retired host.

        Raises:
            SystemExit: the job was stopped, with the code the decision gives; the reason has been printed.
        """
        del role
        self._signals = StopSignals(self._wake, self._handler.interrupted, self._hurry)
        self._guard = Guard(self._tag, [self._scratch])
        # Compiling the signatures takes half a second, which no failure should wait for.
        self._scanner = threading.Thread(target=lambda: warm_up(load_library()), name="ezpz-scanner", daemon=True)
        self._warm = self._warm_up()
        started = time.monotonic()
        try:
            with self._signals:
                return self._take_part()
        except (JobMismatch, Refused) as error:
            say(str(error))
            raise SystemExit(2) from None
        except RendezvousError as error:
            say(f"FAILOVER STOP: {error}")
            raise SystemExit(1) from None
        finally:
            self._total_execution_time = int(time.monotonic() - started)
            self._stop_workers(self._worker_group)
            self._shut_down()

    def _warm_up(self) -> WarmWorkers | None:
        """Begin to import what workers will need, if they can be forked."""
        spec, settings = self._worker_group.spec, self._handler.settings
        if settings.warm == "off" or not can_be_warm(spec.entrypoint, spec.args, spec.numa_options):
            return None
        more = [name for name in settings.warm_import.split("+") if name]
        return WarmWorkers([spec.entrypoint, *map(str, spec.args)], more, self._tag, self._scratch)

    def _take_part(self) -> RunResult:
        try:
            self._handler.join()
            if self._warm is not None:
                self._warm.learn(self._handler.connection())
            member = self._handler.member
            self._journal.write(
                "member_joined", self._handler.round, member=member.id, addr=member.addr, pid=member.pid
            )
            while True:
                with self._span("rendezvous" if self._handler.took_part else "standby"):
                    seat = self._handler.next_seat()
                self._begin(seat)
                self._handler.obey(self._run_round(seat))
        except RendezvousClosedError:
            return self._conclude()

    def _conclude(self) -> RunResult:
        """Say how it ended for this host and turn it into a result or an exit code."""
        decision, retirement = self._handler.decision, self._handler.retirement()
        host = self._handler.member.host
        if self._signals.received is not None:
            say(f"{host} leaves: told to by {signal.Signals(self._signals.received).name}")
            raise SystemExit(128 + self._signals.received)
        if decision is None or decision.action is Action.RESTART:
            reason = retirement.reason if retirement is not None else "the job is over"
            say(f"{host} leaves: {reason}")
        elif decision.action is Action.STOP and self._handler.took_part:
            say(stop_line(decision))
            raise SystemExit(decision.exit_code)
        return RunResult(WorkerState.SUCCEEDED, {worker.global_rank: None for worker in self._worker_group.workers})

    # -- one round ---------------------------------------------------------------------------------------------------

    def _begin(self, seat: Seat) -> None:
        """Give the local workers their ranks and start them."""
        group, spec, roster = self._worker_group, self._worker_group.spec, seat.roster
        base, world = roster.base_ranks()[seat.slot], roster.world_size()
        group.workers = [
            Worker(local_rank, base + local_rank, base + local_rank, world, world)
            for local_rank in range(spec.local_world_size)
        ]
        group.group_rank, group.group_world_size = seat.slot, len(roster.members)
        group.store = HashStore()  # torch asks for one; ranks come from the roster
        group.master_addr, group.master_port = seat.master_addr, seat.master_port
        # torch counts restarts down from the budget; the round number is that count for the whole job.
        self._remaining_restarts = spec.max_restarts - (roster.round - 1)
        self._logs.round = roster.round
        with self._span("spawn"):
            for local_rank, pid in self._start_workers(group).items():
                group.workers[local_rank].id = pid
        self._signals.install()  # torch's PContext has put its own handlers in place
        group.state = WorkerState.HEALTHY
        if self._scanner.ident is None:
            self._scanner.start()
        for worker in group.workers:
            self._journal.write("worker_started", roster.round, rank=worker.global_rank, pid=worker.id)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """torch's way until the environments are prepared; then from the warm server, if there is one."""
        interrupted = self._handler.interrupted.is_set
        server = self._warm.server(interrupted) if self._warm is not None else None
        if server is None or self._warm is None:
            return super()._start_workers(worker_group)  # type: ignore[no-any-return]
        spec, slot = worker_group.spec, worker_group.group_rank
        self._logs.hand_over = True
        try:
            super()._start_workers(worker_group)
        except Handover as prepared:
            envs = prepared.envs
        self._pcontext = WarmContext(
            server,
            self._warm.begin(slot, self._has_stepped),
            name=spec.role,
            entrypoint=spec.entrypoint,
            args={rank: tuple(macros.substitute(list(spec.args), str(rank))) for rank in envs},
            envs=envs,
            logs_specs=self._logs,
            duplicate_stdout_filters=spec.duplicate_stdout_filters,
            duplicate_stderr_filters=spec.duplicate_stderr_filters,
        )
        try:
            self._pcontext.start()
        except ServerGone:
            self._stop_workers(worker_group)
            return super()._start_workers(worker_group)  # type: ignore[no-any-return]
        return self._pcontext.pids()  # type: ignore[no-any-return]

    def _has_stepped(self) -> bool:
        return any(last_step(files) is not None for files in self._logs.files.values())

    def _run_round(self, seat: Seat) -> Decision:
        """Watch the workers until the round's decision is there, then stop what still runs."""
        number, files = seat.roster.round, self._logs.files
        exits = ExitWatch(self._pcontext, self._worker_group.workers, files, self._handler.member.host, self._oom)
        events = EventRelay(self._journal, number, {rank: item.events for rank, item in files.items()})
        link = self._handler.watch(seat, self._wake)
        ranks = Ranks(self._handler.member.host, self._worker_group.workers, files, self._journal, number)
        stall = StallWatch(ranks, self._clock, seat, self._handler.connection(), exits.finished, self._wake)
        self._walltime.begin(item.progress for item in files.values())
        reporter = Reporter(self._handler.member, number, link, self._journal)
        try:
            decision = self._watch(exits, events, link, reporter, stall)
        finally:
            stall.stop()
            link.stop()
            exits.close()
        if decision.cause == Cause.HANG.value:
            ranks.look()  # what a hung process was doing is gone once it is stopped
        with self._span("stop"):
            self._stop_workers(self._worker_group)
        self._console.drain()
        events.relay()
        return decision

    def _watch(
        self, exits: ExitWatch, events: EventRelay, link: RoundLink, reporter: Reporter, stall: StallWatch
    ) -> Decision:
        leave_at: float | None = None
        hung = timed_out = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            selector.register(self._handler.listener, selectors.EVENT_READ)
            exits.register(selector)
            while link.decision is None:
                self._check(exits, link)
                if self._signals.received is not None and leave_at is None:
                    reporter.interrupted(self._signals.received, exits)
                    self._stop_workers(self._worker_group)
                    leave_at = time.monotonic() + INTERRUPT_PATIENCE
                if leave_at is not None and time.monotonic() >= leave_at:
                    raise RendezvousClosedError("interrupted")
                if stall.found is not None and not hung:
                    hung = True
                    reporter.hung(exits, stall.found)
                if not timed_out and self._walltime.over(exits.running()):
                    timed_out = True
                    reporter.out_of_time(exits, self._walltime.evidence(self._handler.member.host))
                for key, _ in selector.select(LOOK):
                    if key.fileobj is self._handler.listener:
                        self._handler.listener.drain()
                    elif key.fd == self._wake_read:
                        os.read(self._wake_read, 4096)
                    elif leave_at is None:
                        found = exits.collect(key.data, selector)
                        self._console.copy()  # the worker's own last words come before ours
                        if not found and exits.finished() and self._walltime.told:
                            continue  # they have saved and ended because they were told to: that is no success
                        reporter.ended(exits, found)
                    else:
                        selector.unregister(key.fileobj)  # our own stop is never evidence
                events.relay()
        return link.decision

    def _check(self, exits: ExitWatch, link: RoundLink) -> None:
        """What makes going on pointless although no decision has come."""
        if link.failure is not None:
            raise RendezvousStateError(str(link.failure))
        if (failure := self._handler.coordination_failure()) is not None:
            raise RendezvousStateError(f"this host's coordinator failed: {failure}")
        away = 0.0 if link.away_since is None else time.monotonic() - link.away_since
        if exits.finished() and away > STORE_PATIENCE:
            raise RendezvousConnectionError(f"the store has been away for {away:.0f} s and the workers have ended")

    # -- stopping ----------------------------------------------------------------------------------------------------

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """End everything the workers have started, wherever it has moved to."""
        del worker_group
        if self._pcontext is None:
            return
        for pid in stop_all(self._tag, signal.SIGTERM, self._grace, self._servers):
            say(f"{self._handler.member.host}: process {pid} survives SIGKILL (uninterruptible sleep)")
        self._shutdown(signal.SIGKILL, timeout=1)
        self._pcontext = None

    def _servers(self) -> set[int]:
        return self._warm.pids() if self._warm is not None else set()

    def _hurry(self) -> None:
        guard.kill(set(guard.tagged(self._tag)) - self._servers(), signal.SIGKILL)

    def _shut_down(self) -> None:
        self._console.close()
        if self._warm is not None:
            self._warm.close()
        self._guard.dismiss()
        self._kernel_log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b".")
        except BlockingIOError:
            return  # it is awake

    @contextmanager
    def _span(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._journal.write("span", self._handler.round, name=name, seconds=round(time.monotonic() - began, 6))
