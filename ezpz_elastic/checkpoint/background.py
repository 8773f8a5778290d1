"""A save that runs beside the training: a thread per save, one save at a time."""

from __future__ import annotations

import atexit
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ezpz_elastic.checkpoint.errors import CheckpointError, SaveFailed, failure_of
from ezpz_elastic.checkpoint.saver import Saved
from ezpz_elastic.checkpoint.threads import start
from ezpz_elastic.errors import UsageError

__all__ = ["SaveHandle"]

_log = logging.getLogger(__name__)


class SaveHandle:
    """One asynchronous save.

    Args:
        step: training step.
        rank: this rank, for the error.
        work: writes and commits; runs in a thread.
        began: monotonic time at which the caller asked for the save, seconds.
        stalled: seconds the caller was held up by this save so far, by part: ``drain`` (waiting for the save before),
            ``plan`` and ``stage``.
    """

    def __init__(
        self, step: int, rank: int, work: Callable[[], Saved], began: float, stalled: dict[str, float]
    ) -> None:
        self.step = step
        self.seconds = dict(stalled)
        self._rank = rank
        self._work = work
        self._began = began
        self._saved: Saved | None = None
        self._error: Exception | None = None
        atexit.register(self._at_exit)
        self._thread = start(self._run, f"checkpoint step {step}")

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._thread is None or not self._thread.is_alive()

    def result(self) -> Path:
        """Wait for the end.

        Returns:
            The step's directory.

        Raises:
            SaveFailed: it did not become durable; the same on every rank.
            Superseded: a newer round owns the directory.
        """
        began = time.monotonic()
        self._join()
        self.seconds["residual"] = self.seconds.get("residual", 0.0) + time.monotonic() - began
        if self._error is not None:
            raise self._error
        assert self._saved is not None
        return self._saved.path

    def _run(self) -> None:
        try:
            self._saved = self._work()
        except (CheckpointError, UsageError) as error:
            self._error = error
        except Exception as error:
            what = f"checkpoint of step {self.step} not saved (in the background)"
            self._error = SaveFailed(what, (failure_of(self._rank, error),))
            self._error.__cause__ = error
        finally:
            self.seconds["total"] = time.monotonic() - self._began
            atexit.unregister(self._at_exit)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _at_exit(self) -> None:
        if hasattr(sys, "last_value") or hasattr(sys, "last_type"):
            # The other ranks may be gone; the agent is waiting for this process to end.
            _log.warning("step %d was still being saved when this process failed; it is not durable", self.step)
            return
        _log.warning("waiting for step %d to become durable; call manager.wait() at the end of training", self.step)
        self._join()
        if self._error is not None:
            _log.error("%s", self._error)


def connection(group: Any) -> Any:
    """A connection of our own to the store of the process group; its blocking waits hold up nobody else."""
    from torch.distributed import distributed_c10d as c10d

    if group is None:
        return c10d._get_default_store().clone()
    return c10d._world.pg_map[group][1].clone()
