"""The trainer's substance where it is one process: a number in a file for a model, a number for a gradient.

It exercises every decision of the retry loop for real, and none of the expensive parts of a restart.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from ezpz_elastic.faults.scene import Point

__all__ = ["Alone"]


class Alone:
    """One process.

    Args:
        path: the checkpoint; the one before it is kept beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._previous = path.with_name(f"{path.name}.previous")

    def restore(self) -> int | None:
        """The step of the newest checkpoint that can be read; a broken one is put aside."""
        for path in (self.path, self._previous):
            if not path.exists():
                continue
            try:
                return int(json.loads(path.read_text())["step"])
            except (ValueError, KeyError, TypeError) as error:
                aside = path.with_name(f"{path.name}.corrupt")
                path.replace(aside)
                print(f"checkpoint {path} is corrupt ({error}); it is {aside} now", flush=True)
        return None

    def reduce(self, at: Callable[[Point], None]) -> None:
        """A step's communication, with its three points."""
        at(Point.BEFORE_REDUCE)
        at(Point.IN_REDUCE)
        at(Point.AFTER_REDUCE)

    def save(self, step: int, at: Callable[[Point], None]) -> Path:
        """Save ``step`` so that it is there or not; a fault may come when half of it is written."""
        text = json.dumps({"step": step, "weights": [step] * 64})
        partial = self.path.with_name(f"{self.path.name}.partial")
        with partial.open("w") as file:
            file.write(text[: len(text) // 2])
            file.flush()
            at(Point.IN_SAVE)
            file.write(text[len(text) // 2 :])
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            self.path.replace(self._previous)
        partial.replace(self.path)
        return self.path

    def close(self) -> None:
        """Nothing is held."""
