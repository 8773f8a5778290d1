"""Watches the worker processes of one round and turns each end into evidence, in the order the ends were seen."""

from __future__ import annotations

import selectors
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.elastic.agent.server.api import Worker
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext, PContext, SubprocessContext

from ezpz_elastic.decide.evidence import Evidence, WorkerExit
from ezpz_elastic.observe import progress
from ezpz_elastic.observe.workers import DeathWatch, error_from_file, tail
from ezpz_elastic.round_logs import WorkerFiles

__all__ = ["ExitWatch"]


class ExitWatch:
    """The local workers of one round.

    Args:
        context: torch's handle on the processes.
        workers: their ranks and pids.
        files: their logs, by local rank.
        host: this host.
    """

    def __init__(
        self, context: PContext, workers: Sequence[Worker], files: Mapping[int, WorkerFiles], host: str
    ) -> None:
        self._context, self._workers, self._files, self._host = context, workers, files, host
        self._watches = {worker.local_rank: DeathWatch(worker.id) for worker in workers}
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
        status = self._reap(local_rank)
        if status == 0:
            return []
        files = self._files[local_rank]
        found = WorkerExit(
            host=self._host,
            rank=self._workers[local_rank].global_rank,
            local_rank=local_rank,
            order=self._failures,
            exit_code=status if status > 0 else None,
            signal=-status if status < 0 else None,
            step=progress.read(files.progress).step,
            error=error_from_file(files.error),
            stderr_tail=tail(files.stderr),
        )
        self._failures += 1
        return [found]

    def _reap(self, local_rank: int) -> int:
        """The exit status as ``subprocess`` spells it: negative for a signal."""
        context: Any = self._context
        if isinstance(context, SubprocessContext):
            return int(context.subprocess_handlers[local_rank].proc.wait())
        assert isinstance(context, MultiprocessContext)
        process = context._pc.processes[local_rank]
        process.join()
        return int(process.exitcode)

    def finished(self) -> bool:
        """Whether all workers have ended."""
        return not self._running

    def failed(self) -> bool:
        """Whether any worker has ended badly."""
        return self._failures > 0

    def steps(self) -> tuple[int | None, int | None]:
        """The furthest step and the newest durable checkpoint that any local worker has told of."""
        told = [progress.read(files.progress) for files in self._files.values()]
        steps = [item.step for item in told if item.step is not None]
        durable = [item.durable_step for item in told if item.durable_step is not None]
        return max(steps, default=None), max(durable, default=None)

    def close(self) -> None:
        """Let go of the descriptors."""
        for watch in self._watches.values():
            watch.close()
