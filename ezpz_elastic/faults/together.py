"""The trainer's substance where ranks work together: a gradient reduced over gloo, ``CheckpointManager`` for saving."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from ezpz_elastic.checkpoint import CheckpointManager, PerRank
from ezpz_elastic.faults.scene import Point

__all__ = ["Together"]


class _Marker:
    """A number that says when it is written: part of the checkpoint is on the disk by then, and it is not complete."""

    def __init__(self, at: Callable[[Point], None]) -> None:
        self._at = at

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        self._at(Point.IN_SAVE)
        return int, (0,)


class Together:
    """One rank of several.

    Args:
        directory: the checkpoint directory.
    """

    def __init__(self, directory: Path) -> None:
        dist.init_process_group("gloo")
        self._weights = torch.zeros(4096)
        self._loss = torch.zeros(1)
        self._manager = CheckpointManager(directory, keep_last=3, preflight=False)
        self.path = directory

    def restore(self) -> int | None:
        """The newest complete and verified step, the same on all ranks; ``None`` on a fresh start."""
        return self._manager.restore({"weights": self._weights, "marker": PerRank(0)})

    def reduce(self, at: Callable[[Point], None]) -> None:
        """A step's communication, with its three points."""
        gradient = torch.ones_like(self._weights)
        at(Point.BEFORE_REDUCE)
        dist.all_reduce(
            self._loss
        )  # a rank that waits here is seen to: an asynchronous one waits in the caller's frame
        work = dist.all_reduce(gradient, async_op=True)
        at(Point.IN_REDUCE)
        work.wait()
        at(Point.AFTER_REDUCE)
        self._weights += gradient / dist.get_world_size()

    def save(self, step: int, at: Callable[[Point], None]) -> Path:
        """Save ``step``; a fault may come while this rank's file is written."""
        return self._manager.save(step, {"weights": self._weights, "marker": PerRank(_Marker(at))})

    def close(self) -> None:
        """Leave the group."""
        self._manager.close()
        dist.destroy_process_group()
