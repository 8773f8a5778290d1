"""The agent on every host: watch the workers, report what was seen, obey the written decision.

``EzpzElasticAgent`` keeps torch's way of starting workers and replaces its run loop. The loop sleeps in one
``select`` on the workers' pidfds, on a wake-up pipe (a decision has come, a signal has arrived) and on the port by
which other hosts can tell that this agent exists.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import HashStore
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousError,
)
from torch.distributed.elastic.utils import macros

from ezpz_elastic.assembly import AgentHandler
from ezpz_elastic.console import Console
from ezpz_elastic.contexts import QuietContext, cold_context
from ezpz_elastic.decide.evidence import ErrorRecord, Unkillable, WorkerExit
from ezpz_elastic.decide.policy import chores, stop_line
from ezpz_elastic.errors import UsageError
from ezpz_elastic.health import Health
from ezpz_elastic.ledger import say
from ezpz_elastic.observe.exits import last_step
from ezpz_elastic.observe.hang import StepClock
from ezpz_elastic.observe.kernel import KernelLog
from ezpz_elastic.observe.launcher import LauncherLog
from ezpz_elastic.observe.oom import OomWatch, counter_of
from ezpz_elastic.observe.scanner import warm_up
from ezpz_elastic.observe.stacks import process_state, wait_channel
from ezpz_elastic.observe.text import readable
from ezpz_elastic.process_tree import Family, Guard, stop_all
from ezpz_elastic.round_logs import Handover, RoundLogs
from ezpz_elastic.round_watch import Eyes, RoundWatch
from ezpz_elastic.signals import StopSignals
from ezpz_elastic.signatures import load_library
from ezpz_elastic.storage_wait import StorageWait
from ezpz_elastic.walltime import Walltime, known_deadline
from ezpz_elastic.warm.client import ServerGone
from ezpz_elastic.warm.context import WarmContext
from ezpz_elastic.warm.keeper import WarmWorkers, can_be_warm
from ezpz_elastic.worker_groups import WorkerGroups
from rendezvous.handler import JobMismatch, Refused
from rendezvous.records import Action, Decision
from rendezvous.seat import NotServed, Seat

__all__ = ["EzpzElasticAgent"]

logger = logging.getLogger(__name__)


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
        self._watch: RoundWatch | None = None
        self._unkillable: list[Unkillable] = []
        probes = Path(settings.probes_dir) if settings.probes_dir else None
        self._health = Health(handler.member.host, self._journal, probes)
        self._storage = StorageWait(handler.connection, self._journal)
        self._kernel_log = KernelLog()
        self._console = Console(handler.doubt)
        logs = RoundLogs(arguments.pop("logs_specs"), self._journal.directory, self._scratch, self._tag, self._console)
        logs.prefix_template = arguments.pop("log_line_prefix_template", None)
        logs.torch_tees = bool(spec.duplicate_stdout_filters or spec.duplicate_stderr_filters)
        self._logs = logs
        super().__init__(spec, logs_specs=logs, **arguments)
        # Never closed: a signal may come until the very end.
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
        self._eyes = self._open_eyes()
        self._groups = WorkerGroups(self._tag)
        self._family = Family(self._tag, self._groups.directory, self._servers)
        self._guard = Guard(self._tag, [self._scratch], self._groups.directory)
        # Compiling the signatures takes a second, which no failure should wait for: not even one at the first step.
        self._scanner = threading.Thread(target=lambda: warm_up(load_library()), name="ezpz-scanner", daemon=True)
        self._scanner.start()
        self._warm = self._warm_up()
        self._health.start()
        started = time.monotonic()
        with self._signals:
            try:
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

    def _open_eyes(self) -> Eyes:
        settings = self._handler.settings
        deadline = known_deadline(settings.deadline, os.environ)
        return Eyes(
            handler=self._handler,
            console=self._console,
            signals=self._signals,
            clock=StepClock(settings.hang_timeout, settings.startup_timeout),
            oom=OomWatch(counter_of(), self._kernel_log),
            health=self._health,
            walltime=Walltime(deadline, settings.margin, settings.nudge == "on"),
            launcher=LauncherLog(Path(settings.launcher_log) if settings.launcher_log else None),
            wake_read=self._wake_read,
            wake=self._wake,
        )

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
                self._storage.end()
                decision = self._live_through(seat)
                self._handler.obey(decision)
                self._storage.begin(self._handler.member, seat.roster, decision)
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
        elif decision.action is Action.STOP and (self._handler.took_part or not self._handler.formed):
            say(stop_line(decision))
            raise SystemExit(decision.exit_code)
        return RunResult(WorkerState.SUCCEEDED, {worker.global_rank: None for worker in self._worker_group.workers})

    # -- one round ---------------------------------------------------------------------------------------------------

    def _live_through(self, seat: Seat) -> Decision:
        """Start the workers and watch them until the round's decision is there.

        A full disk, a program that is not there, no process left, or what nobody has thought of: told like a failure of
        the workers, for the job to decide on. An agent that ended of it would be a lost host.
        """
        try:
            self._begin(seat)
            return self._run_round(seat)
        except RendezvousError:
            raise
        except NotServed as error:
            record, unseen = None, f"it was not started: {readable(error)}"[:500]
        except OSError as error:
            record, unseen = ErrorRecord(type(error).__name__, readable(error)[:500], source="agent"), ""
        except Exception as error:
            logger.exception("the agent of %s failed in round %d", self._handler.member.host, seat.roster.round)
            record, unseen = None, f"its agent failed: {type(error).__name__}: {readable(error)}"[:500]
        self._watch = None  # it has nothing to say any more
        self._stop_workers(self._worker_group)
        return self._run_round(seat, self._not_watched(record, unseen))

    def _not_watched(self, record: ErrorRecord | None, unseen: str) -> list[WorkerExit]:
        host, workers = self._handler.member.host, self._worker_group.workers
        return [
            WorkerExit(host, worker.global_rank, worker.local_rank, order, exit_code=1, error=record, unseen=unseen)
            for order, worker in enumerate(workers)
        ]

    def _begin(self, seat: Seat) -> None:
        """Give the local workers their ranks and start them."""
        group, spec, roster = self._worker_group, self._worker_group.spec, seat.roster
        base, world = roster.base_ranks()[seat.slot], roster.world_size()
        group.workers = [
            Worker(local_rank, base + local_rank, base + local_rank, world, world)
            for local_rank in range(spec.local_world_size)
        ]
        if seat.problem is not None:
            raise seat.problem
        group.group_rank, group.group_world_size = seat.slot, len(roster.members)
        group.store = HashStore()  # torch asks for one; ranks come from the roster
        group.master_addr, group.master_port = seat.master_addr, seat.master_port
        # torch counts restarts down from the budget; the round number is that count for the whole job.
        self._remaining_restarts = spec.max_restarts - (roster.round - 1)
        self._logs.round, before = roster.round, self._handler.decision
        if before is not None:  # else it is what an outer loop has asked of us
            self._logs.chores = chores(before)
        with self._span("spawn"):
            for local_rank, pid in self._start_workers(group).items():
                group.workers[local_rank].id = pid
        group.state = WorkerState.HEALTHY
        self._family.leaders = {worker.id for worker in group.workers}
        self._guard.watch(self._family.leaders)
        for worker in group.workers:
            self._journal.write("worker_started", roster.round, rank=worker.global_rank, pid=worker.id)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """From the warm server, if there is one; else as torch does."""
        interrupted = self._handler.interrupted.is_set
        server = self._warm.server(interrupted) if self._warm is not None else None
        if interrupted():
            raise RendezvousClosedError("interrupted by a signal")
        if server is not None and self._warm is not None:
            record = self._warm.begin(worker_group.group_rank, self._has_stepped)
            try:
                return self._start(WarmContext(server, record, self._groups.entrance, **self._prepare(worker_group)))
            except ServerGone:
                self._stop_workers(worker_group)
                self._console.drain()  # the same files are followed anew
        numa = worker_group.spec.numa_options
        started = self._start(cold_context(self._start_method, numa_options=numa, **self._prepare(worker_group)))
        for local_rank, pid in started.items():
            self._groups.add(local_rank, pid)
        return started

    def _prepare(self, worker_group: WorkerGroup) -> dict[str, Any]:
        """Have torch prepare the workers' environments, and give what their context takes."""
        spec = worker_group.spec
        self._logs.hand_over = True
        try:
            super()._start_workers(worker_group)
        except Handover as prepared:
            envs = prepared.envs
        return {
            "name": spec.role,
            "entrypoint": spec.entrypoint,
            "args": {rank: tuple(macros.substitute(list(spec.args), str(rank))) for rank in envs},
            "envs": envs,
            "logs_specs": self._logs,
            "duplicate_stdout_filters": spec.duplicate_stdout_filters,
            "duplicate_stderr_filters": spec.duplicate_stderr_filters,
        }

    def _start(self, context: QuietContext) -> dict[int, Any]:
        self._pcontext = context  # before its start: what fails half-way is stopped, too
        context.start()
        return context.pids()  # type: ignore[no-any-return]

    def _has_stepped(self) -> bool:
        return any(last_step(files) is not None for files in self._logs.files.values())

    def _run_round(self, seat: Seat, not_watched: Sequence[WorkerExit] = ()) -> Decision:
        """Watch the workers until the round's decision is there, then stop what still runs."""
        group = self._worker_group
        carried, self._unkillable = self._unkillable, []
        workers, files = ([], {}) if not_watched else (group.workers, self._logs.files)
        watch = RoundWatch(self._eyes, seat, self._pcontext, workers, files, carried)
        self._watch = watch
        if not_watched:
            watch.not_watched(not_watched)
        decision = watch.watch(lambda: self._stop_workers(group))
        with self._span("stop"):
            self._stop_workers(group)
        self._console.drain()
        return decision

    # -- stopping ----------------------------------------------------------------------------------------------------

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """End everything the workers have started, wherever it has moved to."""
        del worker_group
        if self._pcontext is None:
            return
        if left := stop_all(self._family, signal.SIGTERM, self._grace):
            self._tell_of_unkillable(left)
        if self._watch is not None:
            self._watch.stopped()
        self._shutdown(signal.SIGKILL, timeout=1)
        self._pcontext = self._watch = None

    def _tell_of_unkillable(self, pids: list[int]) -> None:
        """The round is decided already: this host becomes a suspect with its next report."""
        states = {pid: f"state {process_state(pid) or '?'}, waits in {wait_channel(pid) or '?'}" for pid in pids}
        host, detail = self._handler.member.host, "; ".join(sorted(set(states.values())))
        self._unkillable.append(Unkillable(host, tuple(pids), detail))
        self._journal.write("unkillable", self._handler.round, pids=pids, detail=detail)
        for pid, state in states.items():
            say(f"{host}: process {pid} survives SIGKILL ({state})")

    def _servers(self) -> set[int]:
        return self._warm.pids() if self._warm is not None else set()

    def _hurry(self) -> None:
        self._family.hurry()

    def _shut_down(self) -> None:
        self._console.close()
        self._storage.end()
        self._health.close()
        if self._warm is not None:
            self._warm.close()
        self._scanner.join()  # a thread inside C++ when the interpreter ends is an abort
        # torch does this too, but with the default signals back in place: a second one would kill us there.
        self._handler.shutdown()
        self._guard.dismiss()
        self._groups.close()
        self._kernel_log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

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
            self._journal.span(self._handler.round, name, time.monotonic() - began)
