"""Watches the worker processes of one round and turns each end into evidence, in the order the ends were seen."""

from __future__ import annotations

import logging
import os
import resource
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from torch.distributed.elastic.agent.server.api import Worker
from torch.distributed.elastic.multiprocessing.api import PContext

from ezpz_elastic.decide.evidence import ErrorRecord, Evidence, WorkerExit
from ezpz_elastic.errors import UsageError
from ezpz_elastic.observe import progress
from ezpz_elastic.observe.death_watch import DeathWatch
from ezpz_elastic.observe.logs import last_error, last_lines, scan_rank_log
from ezpz_elastic.observe.oom import OomWatch
from ezpz_elastic.observe.steps import StepTracker
from ezpz_elastic.observe.workers import Ended, error_from_file, reap, sender
from ezpz_elastic.round_logs import WorkerFiles
from ezpz_elastic.warm.client import Forked
from ezpz_elastic.warm.context import WarmContext

__all__ = ["ExitWatch", "last_step"]

logger = logging.getLogger(__name__)

TAIL_LINES = 20
"""Lines of stderr that go into the report, for people to read."""

STEP_BYTES = 64 * 1024
"""How much of a log's end is searched for the last step, where the script does not call ``progress``."""

LOG_BYTES = 8 << 20
"""How much of a log's end is searched for signatures. Everybody waits for it: ordinary lines take 5 ms, and lines that
all look like errors half a second."""

KILLED_LOG_BYTES = 1 << 20
"""The same for a worker that was killed, since everybody waits for this report: a millisecond's work."""

WORD_PATIENCE = 0.5
"""Seconds in which the warm server tells of workers that have ended; it takes a millisecond."""

MATCHES = 12
"""Matched lines reported from each end of a log: a report is a record in the store, not a copy of the log."""


class ExitWatch:
    """The local workers of one round.

    Args:
        context: torch's handle on the processes; ``None`` if there are no workers.
        workers: their ranks and pids.
        files: their logs, by local rank.
        host: this host.
        oom: the kernel's word on memory.
    """

    def __init__(
        self,
        context: PContext | None,
        workers: Sequence[Worker],
        files: Mapping[int, WorkerFiles],
        host: str,
        oom: OomWatch,
    ) -> None:
        self._oom = oom
        self._oom.begin()
        self._limits = resource.getrlimit(resource.RLIMIT_CPU)  # workers inherit it
        self._context, self._workers, self._files, self._host = context, workers, files, host
        self._watches: dict[int, DeathWatch | Forked] = {}
        for worker in workers:
            warm = context.workers[worker.local_rank] if isinstance(context, WarmContext) else None
            self._watches[worker.local_rank] = warm or DeathWatch(worker.id)
        self._running = set(self._watches)
        self._sent: dict[int, set[int]] = {}
        self._failures = 0
        self._well: list[WorkerExit] = []  # what ended well before the first failure, which may follow from that

    def register(self, selector: selectors.BaseSelector) -> None:
        """Make every worker's end visible to a selector; the key's data is its local rank."""
        for local_rank, watch in self._watches.items():
            selector.register(watch, selectors.EVENT_READ, local_rank)

    def collect(self, local_rank: int, selector: selectors.BaseSelector) -> list[Evidence]:
        """A worker has ended: reap it and gather what it left; empty if it ended well.

        With a failure come the ends of those that ended well before it.
        """
        selector.unregister(self._watches[local_rank])
        self._running.discard(local_rank)
        ended = reap(self._context, local_rank)
        assert ended is not None
        if ended.exit_code == 0:
            worker = self._workers[local_rank]
            step = last_step(self._files[local_rank])
            self._well.append(WorkerExit(self._host, worker.global_rank, local_rank, exit_code=0, step=step))
            return []
        found = self._told(local_rank, ended)
        if found.by_agent:
            return [found]
        self._failures += 1
        well, self._well = self._well, []
        files, last = self._files[local_rank], LOG_BYTES if ended.signal != signal.SIGKILL else KILLED_LOG_BYTES
        return [
            found,
            *well,
            *(match for log in (files.stderr, files.stdout) for match in self._matches(log, found.rank, last)),
        ]

    def _told(self, local_rank: int, ended: Ended) -> WorkerExit:
        files, worker = self._files[local_rank], self._workers[local_rank]
        counted, word = self._oom.since(), self._oom.of(worker.id)
        killed = word is not None and word.resident_bytes is not None
        return WorkerExit(
            host=self._host,
            rank=worker.global_rank,
            local_rank=local_rank,
            order=self._failures,
            exit_code=ended.exit_code,
            signal=ended.signal,
            by_agent=ended.signal is not None and ended.signal in self._sent.get(worker.id, ()),
            step=last_step(files),
            error=_error(files, ended),
            stderr_tail=last_lines(files.stderr, TAIL_LINES),
            peak_rss_bytes=max(ended.peak_rss_bytes or 0, (word and word.resident_bytes) or 0) or None,
            oom_kills=max(counted or 0, 1) if killed else counted,
            core=ended.core,
            sent_by=sender(ended, word, self._limits),
            unseen="" if ended.seen else "the warm server that had started it was killed",
        )

    def sent(self, signum: int) -> None:
        """The agent sends this signal to the workers that run: an end by it is the agent's own doing."""
        for pid in self.running():
            self._sent.setdefault(pid, set()).add(signum)

    def stopped(self) -> list[WorkerExit]:
        """The ends of workers that the agent has stopped, as far as they have ended."""
        deadline = time.monotonic() + WORD_PATIENCE
        found = []
        for local_rank in sorted(self._running):
            ended = reap(self._context, local_rank, max(0.0, deadline - time.monotonic()))
            if ended is not None:
                self._running.discard(local_rank)
                found.append(msgspec.structs.replace(self._told(local_rank, ended), by_agent=True))
        return found

    def _matches(self, log: Path, rank: int, last: int) -> list[Evidence]:
        """What signatures find in a worker's log: its first and its last lines."""
        try:
            matches = scan_rank_log(log, rank=rank, host=self._host, last=last)
        except (OSError, UsageError) as error:
            logger.warning("what rank %d wrote cannot be read: %s", rank, error)
            return []
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


def _error(files: WorkerFiles, ended: Ended) -> ErrorRecord | None:
    """The exception that ended a worker. One that was killed had survived whatever its stderr shows."""
    told = error_from_file(files.error)
    return told if told is not None or ended.signal == signal.SIGKILL else last_error(files.stderr)


def last_step(files: WorkerFiles) -> int | None:
    """A worker's last step: what it told by ``progress``, else what the end of its log shows."""
    told = progress.read(files.progress).step
    if told is not None:
        return told
    tracker = StepTracker()
    for log in (files.stderr, files.stdout):
        try:
            with log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - STEP_BYTES))
                end = file.read(STEP_BYTES)
        except OSError:
            continue  # not there, or its file system is away
        tracker.see(end, len(end))
    return tracker.last
