"""A process that saves until it is killed, for the tests of kills; and what it leaves for its successor to check."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch

from ezpz_elastic.checkpoint import CheckpointManager

# Names under which the package changes the disk. Killing before each call in turn covers every state between two of
# them; killing at random moments covers the inside of the calls.
POINTS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "open", "write")

KEEP = 2
SIZE = 20_000


def state_at(step: int) -> dict[str, Any]:
    """A state that tells which step it is of, in every part."""
    return {
        "weights": torch.full((SIZE,), float(step)),
        "moments": {"first": torch.full((SIZE,), step + 0.5), "step": step},
        "position": step * 10,
    }


def is_state_of(state: dict[str, Any], step: int) -> bool:
    """Whether every part of ``state`` is of ``step``."""
    wanted = state_at(step)
    return bool(
        torch.equal(state["weights"], wanted["weights"])
        and torch.equal(state["moments"]["first"], wanted["moments"]["first"])
        and (state["moments"]["step"], state["position"]) == (step, step * 10)
    )


class Diary:
    """What this life did, a line each, written through so that a kill leaves every finished line."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._write = os.write  # the real one: a diary is no kill point

    def note(self, *words: object) -> None:
        """Append one line."""
        self._write(self._fd, (" ".join(map(str, words)) + "\n").encode())


def _count(names: tuple[str, ...], die_at: int) -> Callable[[], int]:
    calls = 0

    def guard(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in names:
        setattr(os, name, guard(getattr(os, name)))
    return lambda: calls


def die_before(name: str, number: int) -> None:
    """Make the ``number``-th call of ``os.<name>`` from now on a SIGKILL."""
    _count((name,), number)


def live(directory: str, diary: str, ready: Event, saves: int, die_at: int, beside: bool) -> None:
    """Restore, check, and save ``saves`` times.

    Args:
        directory: the checkpoint directory.
        diary: file for ``Diary``.
        ready: set when the first save is about to begin.
        saves: how many; a killed life does fewer.
        die_at: number of the call to die before; 0 to live.
        beside: save asynchronously.
    """
    torch.set_num_threads(1)
    notes = Diary(Path(diary))
    counted = _count(POINTS, die_at)
    manager = CheckpointManager(directory, keep_last=KEEP)
    state = state_at(0)
    restored = manager.restore(state)
    notes.note("restored", restored, "right" if is_state_of(state, restored or 0) else "WRONG")
    step = restored or 0
    ready.set()
    for number in range(saves):
        # Now and then the same step once more, which replaces it.
        step += 0 if number % 4 == 3 and step > 0 else 1
        notes.note("begin", step)
        if beside:
            manager.save_async(step, state_at(step)).result()
        else:
            manager.save(step, state_at(step))
        notes.note("done", step)
    manager.close()
    notes.note("calls", counted())
