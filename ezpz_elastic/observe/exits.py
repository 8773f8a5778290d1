"""Watches the worker processes of one round and turns each end into evidence, in the order the ends were seen."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed.elastic.agent.server.api import Worker
from torch.distributed.elastic.multiprocessing.api import PContext

from ezpz_elastic.decide.evidence import Evidence, WorkerExit
from ezpz_elastic.observe import progress
from ezpz_elastic.observe.logs import last_error, last_lines, scan_rank_log
from ezpz_elastic.observe.oom import OomWatch
from ezpz_elastic.observe.steps import StepTracker
from ezpz_elastic.observe.workers import DeathWatch, error_from_file, reap
from ezpz_elastic.round_logs import WorkerFiles
from ezpz_elastic.warm.client import Forked
from ezpz_elastic.warm.context import WarmContext

__all__ = ["ExitWatch", "last_step"]

TAIL_LINES = 20
"""Lines of stderr that go into the report, for people to read."""

STEP_BYTES = 64 * 1024
"""How much of a log's end is searched for the last step, where the script does not call ``progress``."""

MATCHES = 12
"""Matched lines reported from each end of a log: a report is a record in the store, not a copy of the log."""


class ExitWatch:
    """The local workers of one round.

    Args:
        context: torch's handle on the processes.
        workers: their ranks and pids.
        files: their logs, by local rank.
        host: this host.
        oom: the kernel's word on memory.
    """

    def __init__(
        self,
        context: PContext,
        workers: Sequence[Worker],
        files: Mapping[int, WorkerFiles],
        host: str,
        oom: OomWatch,
    ) -> None:
        self._oom = oom
        self._oom.since()  # kills of an earlier round were that round's
        self._cores = set[int]()
        self._context, self._workers, self._files, self._host = context, workers, files, host
        self._watches: dict[int, DeathWatch | Forked] = {}
        for worker in workers:
            warm = context.workers[worker.local_rank] if isinstance(context, WarmContext) else None
            self._watches[worker.local_rank] = warm or DeathWatch(worker.id)
        self._running = set(self._watches)
        self._failures = 0

    def register(self, selector: selectors.BaseSelector) -> None:
        """Make every worker's end visible to a selector; the key's data is its local rank."""
        for local_rank, watch in self._watches.items():
            selector.register(watch, selectors.EVENT_READ, local_rank)

    def collect(self, local_rank: int, selector: selectors.BaseSelector) -> list[Evidence]:
        """A worker has ended: reap it and gather what it left. Empty if it ended well."""
        selector.unregister(self._watches[local_rank])
        self._running.discard(local_rank)
        ended = reap(self._context, local_rank)
        if ended.exit_code == 0:
            return []
        files, rank = self._files[local_rank], self._workers[local_rank].global_rank
        if ended.core:
            self._cores.add(rank)
        counted, kill = self._oom.since(), self._oom.of(self._workers[local_rank].id)
        found = WorkerExit(
            host=self._host,
            rank=rank,
            local_rank=local_rank,
            order=self._failures,
            exit_code=ended.exit_code,
            signal=ended.signal,
            step=last_step(files),
            error=error_from_file(files.error) or last_error(files.stderr),
            stderr_tail=last_lines(files.stderr, TAIL_LINES),
            peak_rss_bytes=max(ended.peak_rss_bytes or 0, kill.resident_bytes if kill is not None else 0) or None,
            oom_kills=max(counted or 0, 1) if kill is not None else counted,
        )
        self._failures += 1
        if found.signal == signal.SIGKILL:
            return [found]  # a killed process has said nothing about it, and everybody waits for this report
        return [found, *self._matches(files.stderr, rank), *self._matches(files.stdout, rank)]

    def _matches(self, log: Path, rank: int) -> list[Evidence]:
        """What signatures find in a worker's log: its first and its last lines."""
        matches = scan_rank_log(log, rank=rank, host=self._host)
        if len(matches) > 2 * MATCHES:
            matches = matches[:MATCHES] + matches[-MATCHES:]
        return list(matches)

    def finished(self) -> bool:
        """Whether all workers have ended."""
        return not self._running

    def running(self) -> list[int]:
        """Pids of the workers that have not ended."""
        return [worker.id for worker in self._workers if worker.local_rank in self._running]

    def failed(self) -> bool:
        """Whether any worker has ended badly."""
        return self._failures > 0

    def dumped_core(self, rank: int) -> bool:
        """Whether the kernel wrote a core dump of that rank."""
        return rank in self._cores

    def steps(self) -> tuple[int | None, int | None]:
        """The furthest step and the newest durable checkpoint that any local worker has told of."""
        steps = [step for files in self._files.values() if (step := last_step(files)) is not None]
        return max(steps, default=None), self.durable_step()

    def durable_step(self) -> int | None:
        """The newest durable checkpoint that any local worker has told of."""
        told = [progress.read(files.progress).durable_step for files in self._files.values()]
        return max((step for step in told if step is not None), default=None)

    def close(self) -> None:
        """Let go of the descriptors."""
        for watch in self._watches.values():
            if isinstance(watch, DeathWatch):
                watch.close()


def last_step(files: WorkerFiles) -> int | None:
    """A worker's last step: what it told by ``progress``, else what the end of its log shows."""
    told = progress.read(files.progress).step
    if told is not None:
        return told
    tracker = StepTracker()
    for log in (files.stderr, files.stdout):
        if log.exists():
            with log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - STEP_BYTES))
                end = file.read(STEP_BYTES)
            tracker.see(end, len(end))
    return tracker.last
