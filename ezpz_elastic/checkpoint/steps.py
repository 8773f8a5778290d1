"""What state a step on disk is in, and moving steps out of the way. Everything here runs on one rank."""

from __future__ import annotations

import functools
import logging
import shutil
import threading
from enum import Enum
from pathlib import Path

import msgspec

from ezpz_elastic.checkpoint import layout, manifest
from ezpz_elastic.checkpoint.durable import Create, rename, write_file
from ezpz_elastic.checkpoint.errors import CorruptCheckpoint
from ezpz_elastic.checkpoint.manifest import Manifest
from ezpz_elastic.checkpoint.threads import start

__all__ = ["StepKind", "StepState", "Trash", "examine", "inspect", "quarantine", "recover"]

_log = logging.getLogger(__name__)


class StepKind(str, Enum):
    """What a directory called ``step-<N>`` is."""

    WHOLE = "whole"  # ours, complete; every file has its size
    PLAIN = "plain"  # written by plain DCP: nothing to verify it with
    BROKEN = "broken"  # ours or DCP's, and something is missing or wrong


class StepState(msgspec.Struct, frozen=True):
    """What one ``stat`` per file says about a step.

    Args:
        step: its number.
        path: its directory.
        kind: see ``StepKind``.
        reason: what is wrong; empty if nothing is known to be.
        manifest: its manifest, where there is a readable one.
    """

    step: int
    path: Path
    kind: StepKind
    reason: str = ""
    manifest: Manifest | None = None


def inspect(step: int, path: Path) -> StepState:
    """Look at a step without reading its shards.

    Raises:
        OSError: the file system refuses to tell; says nothing about the step.
    """
    whole = (path / layout.COMPLETE).exists()
    if not whole and not (path / layout.MANIFEST).exists():
        if (path / layout.METADATA).exists():
            return StepState(step, path, StepKind.PLAIN)
        return StepState(step, path, StepKind.BROKEN, f"neither {layout.COMPLETE} nor {layout.METADATA} is there")
    if not whole:
        return StepState(step, path, StepKind.BROKEN, f"no {layout.COMPLETE}: the save did not finish")
    try:
        return StepState(step, path, StepKind.WHOLE, manifest=examine(step, path))
    except CorruptCheckpoint as error:
        return StepState(step, path, StepKind.BROKEN, str(error))


def examine(step: int, path: Path) -> Manifest:
    """The manifest of a directory that should hold ``step``, which need not be its name; checked against its files.

    Raises:
        CorruptCheckpoint: names, sizes or the number are not as they were written.
        OSError: the file system refuses to tell; says nothing about the step.
    """
    found = manifest.read(path)
    if found.step is not None and found.step != step:
        raise CorruptCheckpoint(str(path), f"is named step {step} and holds step {found.step}")
    manifest.check_sizes(path, found)
    return found


class Trash:
    """Removes directories: out of sight at once, off the disk in the background.

    Args:
        directory: the checkpoint directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._workers: list[threading.Thread] = []

    def put(self, path: Path) -> None:
        """Take ``path`` away. It loses its name before it loses its first file, so it is never offered half-deleted."""
        step = layout.step_of(path)
        if step is None:
            raise ValueError(f"{path} is none of our names")
        doomed = path
        if ".deleting" not in path.name:
            doomed = layout.deleting_path(self._directory, step)
            rename(path, doomed)
        self._workers = [worker for worker in self._workers if worker.is_alive()]
        worker = start(functools.partial(_remove, doomed), f"remove {doomed.name}")
        if worker is not None:
            self._workers.append(worker)

    def wait(self) -> None:
        """Until everything put here is off the disk."""
        for worker in self._workers:
            worker.join()
        self._workers = []


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        _log.debug("%s was removed by somebody else", path)
    except OSError as error:
        _log.warning("cannot remove %s, the next run will try again: %s", path, error)


def quarantine(step: int, path: Path, reason: str, trash: Trash, create: Create | None = None) -> Path:
    """Set a step aside with ``reason.txt``; an older quarantine of the same step makes room for it."""
    target = layout.corrupt_path(path.parent, step)
    if target.exists():
        trash.put(target)
    rename(path, target)
    write_file(target / layout.REASON, reason.encode() + b"\n", create)
    _log.warning("checkpoint %s does not verify and was moved to %s: %s", path.name, target.name, reason)
    return target


def recover(directory: Path, trash: Trash) -> None:
    """Bring a directory back into order after its former writer was killed at any moment."""
    for step, former in layout.replaced(directory):
        current = layout.step_path(directory, step)
        if current.exists():
            trash.put(former)  # the new one got its name, which it gets only when durable
        else:
            rename(former, current)
    for _, path in layout.leftovers(directory):
        trash.put(path)
