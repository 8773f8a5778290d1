"""How far a worker has come: one small memory-mapped file per worker, written by the script, read by its agent.

Five 64-bit numbers: the last step, the last step of which a checkpoint is durable, the number of calls, whether the
agent asks for a checkpoint now, and whether the worker waits for one to be saved or restored. Writing one is a store
into mapped memory, so a training loop can afford it at every step.
"""

from __future__ import annotations

import faulthandler
import logging
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

__all__ = ["PROGRESS_FILE", "Progress", "busy", "create", "durable", "progress", "read", "tell"]

PROGRESS_FILE = "EZPZ_PROGRESS_FILE"
"""Environment variable by which an agent tells its worker where to write."""

logger = logging.getLogger(__name__)

_NONE = -1
_SIZE = 5 * 8


class Progress(msgspec.Struct, frozen=True):
    """What a worker has told.

    Args:
        step: the last step it reported; ``None`` before the first.
        durable_step: the last step of which a checkpoint is complete on storage.
        calls: how often ``progress`` was called.
        busy: it waits for a checkpoint, not for a step.
    """

    step: int | None
    durable_step: int | None
    calls: int
    busy: bool = False


def create(path: Path) -> None:
    """Make an empty progress file for a worker that is about to start."""
    path.parent.mkdir(parents=True, exist_ok=True)  # people and programs clean up temporary directories
    with path.open("wb") as file:
        file.write(memoryview(bytearray(_SIZE)))
        file.seek(0)
        file.write(_NONE.to_bytes(8, "little", signed=True) * 2)


def read(path: Path) -> Progress:
    """What the worker has told so far; nothing if the file is missing or cut short."""
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    if len(data) < _SIZE:
        return Progress(None, None, 0)
    step, durable_step, calls, _, busy = memoryview(data[:_SIZE]).cast("q")
    return Progress(None if step == _NONE else step, None if durable_step == _NONE else durable_step, calls, busy > 0)


_STACKS_FILE = "EZPZ_STACKS_FILE"  # stacks.STACKS_FILE; this module is imported by scripts and stays small
_stacks: BinaryIO | None = None
_view: memoryview | None = None
_looked = False


def _counters() -> memoryview | None:
    global _view, _looked  # noqa: PLW0603  # one mapping per process, made on first use
    if not _looked:
        _looked = True
        path = os.environ.get(PROGRESS_FILE)
        try:
            if path:
                with Path(path).open("r+b") as file:
                    _view = memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("q")
                _answer_with_stacks()
        except (OSError, ValueError) as error:
            # A container without the host's temporary directory, or one that somebody has cleaned up.
            logger.warning("the agent is not told of steps: %s", error)
    return _view


def _answer_with_stacks() -> None:
    """Have SIGUSR2 write this process's stacks to where its agent reads them, unless the script uses that signal."""
    path = os.environ.get(_STACKS_FILE)
    if path and signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        global _stacks  # noqa: PLW0603  # faulthandler needs the file for the life of the process
        _stacks = Path(path).open("ab")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR2, file=_stacks, all_threads=True)


class _Heartbeat:
    """``progress(step)``, and ``progress.should_save()``."""

    def __call__(self, step: int) -> None:
        """A worker's heartbeat: call it once per training step.

        Args:
            step: the step that has just been completed.

        Costs less than a microsecond, and nothing at all without an agent.
        """
        view = _view if _looked else _counters()
        if view is not None:
            view[0] = step
            view[2] += 1

    @staticmethod
    def should_save() -> bool:
        """Whether the agent asks for a checkpoint now, because the allocation is about to end; cheap at every step.

        Ranks may come to know of it a step apart: decide on one rank and broadcast, as for every collective decision.
        """
        view = _view if _looked else _counters()
        return view is not None and view[3] != 0


progress = _Heartbeat()


def tell(path: Path) -> None:
    """The agent's side of ``should_save``: from now on it is true."""
    with path.open("r+b") as file:
        file.seek(3 * 8)
        file.write((1).to_bytes(8, "little"))


def durable(step: int) -> None:
    """Say that a checkpoint of ``step`` is complete on storage; checkpoint managers call it."""
    view = _view if _looked else _counters()
    if view is not None:
        view[1] = step


@contextmanager
def busy() -> Iterator[None]:
    """While a checkpoint is saved or restored: that is no step, and takes what storage takes; managers use it."""
    view = _view if _looked else _counters()
    if view is None:
        yield
        return
    view[4] += 1
    try:
        yield
    finally:
        view[4] -= 1
