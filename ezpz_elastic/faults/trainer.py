"""A training job that checkpoints, resumes and comes to harm on cue: ``python -m ezpz_elastic.faults.trainer``.

Configured by environment variables alone (``knobs.Knobs``), so that it can stand behind any launcher. Alone it needs no
torch and is at work in a tenth of a second.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ezpz_elastic.errors import UsageError
from ezpz_elastic.faults.alone import Alone
from ezpz_elastic.faults.knobs import Knobs
from ezpz_elastic.faults.modes import commit
from ezpz_elastic.faults.scene import Point, Scene
from ezpz_elastic.observe.progress import progress

__all__ = ["main", "train"]


class _Substance(Protocol):
    """What is trained: ``alone.Alone`` or ``together.Together``."""

    def restore(self) -> int | None: ...
    def reduce(self, at: Callable[[Point], None]) -> None: ...
    def save(self, step: int, at: Callable[[Point], None]) -> Path: ...
    def close(self) -> None: ...


class _Cue:
    """Does this attempt's fault when its step and its point have come."""

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self._lasting: Scene | None = None
        self.step = 0
        self.checkpoint: Path | None = None

    def __call__(self, point: Point) -> None:
        plan, knobs = self._knobs.plan, self._knobs
        if plan is None or knobs.rank != knobs.victim or plan.mode.point is not point or self.step < plan.at:
            return
        host, peers = knobs.culprit()
        scene = Scene(
            receipts=knobs.receipts,
            attempt=knobs.attempt,
            step=self.step,
            rank=knobs.rank,
            host=host,
            peers=peers,
            checkpoint=self.checkpoint,
            seconds=knobs.lasts,
            name=f"attempt{knobs.attempt}-{plan.mode.name}",
        )
        if self._lasting is not None and plan.mode.inside is not None:
            plan.mode.inside(scene)
        elif commit(plan.mode.name, scene) is not None and plan.mode.lasts:
            self._lasting = scene


def train(knobs: Knobs, substance: _Substance) -> None:
    """Train to the end, from wherever the last good checkpoint is.

    Args:
        knobs: what the environment says.
        substance: what is trained.
    """
    cue = _Cue(knobs)
    resumed = substance.restore()
    print("fresh start" if resumed is None else f"resumed from step {resumed}", flush=True)
    cue.checkpoint = None if resumed is None else knobs.checkpoint
    for step in range((resumed or 0) + 1, knobs.total + 1):
        cue.step = step
        substance.reduce(cue)
        progress(step)
        print(f"step={step} loss={1 / step:.4f}", flush=True)
        if step % knobs.every == 0 or step == knobs.total:
            cue.checkpoint = substance.save(step, cue)
            print(f"saved checkpoint: {cue.checkpoint} step-{step}", flush=True)
            cue(Point.AFTER_SAVE)
        cue(Point.STEP)
        time.sleep(knobs.seconds)
    substance.close()
    print(f"done: {knobs.total} steps", flush=True)


def _substance(knobs: Knobs) -> _Substance:
    if not knobs.together:
        return Alone(knobs.checkpoint)
    from ezpz_elastic.faults.together import Together

    return Together(knobs.checkpoint)


def main() -> int:
    """Run as configured; 2 if that cannot be meant."""
    try:
        knobs = Knobs.read(os.environ)
        train(knobs, _substance(knobs))
    except UsageError as error:
        print(f"ezpz_elastic.faults.trainer: {error.line()}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
