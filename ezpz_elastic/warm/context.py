"""torch's handle on a group of worker processes, for workers that a warm server forked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import ProcessFailure, RunProcsResult

from ezpz_elastic import guard
from ezpz_elastic.contexts import QuietContext
from ezpz_elastic.warm.client import Forked, WarmServer

__all__ = ["WarmContext"]


class WarmContext(QuietContext):
    """The local workers of one round, forked from a server that has their libraries imported.

    Args:
        server: a server that is ready.
        record: where local rank 0 notes its imports; ``None``: it does not.
        group: gives the file by which a local rank's worker enters its control group; ``None``: there is none.
        arguments: as ``torch.distributed.elastic.multiprocessing.start_processes`` takes them.
    """

    def __init__(
        self,
        server: WarmServer,
        record: Path | None,
        group: Callable[[int], Path | None] = lambda _: None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self._server, self._record, self._group = server, record, group
        self.workers: dict[int, Forked] = {}

    def _start(self) -> None:
        for local_rank, words in self.args.items():
            with Path(self.stdouts[local_rank]).open("w") as out, Path(self.stderrs[local_rank]).open("w") as err:
                self.workers[local_rank] = self._server.fork(
                    words[1:],  # without the -u, which the server has
                    {**os.environ, **self.envs[local_rank]},
                    out.fileno(),
                    err.fileno(),
                    self._record if local_rank == 0 else None,
                    self._group(local_rank),
                )

    def pids(self) -> dict[int, int]:
        """Process ids by local rank."""
        return {local_rank: worker.pid for local_rank, worker in self.workers.items()}

    def _poll(self) -> RunProcsResult | None:
        ends = {local_rank: worker.wait(0) for local_rank, worker in self.workers.items()}
        failures = {
            local_rank: ProcessFailure(
                local_rank=local_rank,
                pid=self.workers[local_rank].pid,
                exitcode=os.waitstatus_to_exitcode(end.status),
                error_file=self.error_files[local_rank],
            )
            for local_rank, end in ends.items()
            if end is not None and end.status != 0
        }
        if not failures and None in ends.values():
            return None
        self.close()
        return RunProcsResult(
            return_values=dict.fromkeys(ends) if not failures else {},
            failures=failures,
            stdouts=self.stdouts,
            stderrs=self.stderrs,
        )

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        deadline = time.monotonic() + timeout
        alive = [worker for worker in self.workers.values() if worker.wait(0) is None]
        guard.kill([worker.pid for worker in alive], death_sig)
        for worker in alive:
            if worker.wait(max(0.0, deadline - time.monotonic())) is None:
                guard.kill([worker.pid], signal.SIGKILL)
                worker.wait(timeout)
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()
