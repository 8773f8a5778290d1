"""Looking after a checkpoint directory from outside of a job: list, verify, prune, repair. No torch, one process."""

from __future__ import annotations

import contextlib
import functools
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from ezpz_elastic.checkpoint import layout, manifest, steps
from ezpz_elastic.checkpoint.durable import rename, sync_directory
from ezpz_elastic.checkpoint.errors import CorruptCheckpoint
from ezpz_elastic.checkpoint.owner import Owner
from ezpz_elastic.checkpoint.retention import doomed
from ezpz_elastic.checkpoint.steps import StepKind, StepState, Trash
from ezpz_elastic.errors import UsageError

__all__ = ["Row", "prune", "repair", "survey", "verify"]


class Row(msgspec.Struct, frozen=True):
    """One line of the table.

    Args:
        name: of the directory.
        state: what it is, in one or two words.
        why: what is wrong; empty if nothing is known to be.
        bytes: on disk.
        modified: seconds since the epoch.
        files: how many shards.
        world_size: ranks that wrote it; ``None`` if not known.
        osts: storage targets its shards were placed on.
    """

    name: str
    state: str
    why: str
    bytes: int
    modified: float
    files: int
    world_size: int | None = None
    osts: tuple[int, ...] = ()


def survey(directory: Path, *, sums: bool = False) -> list[Row]:
    """Every step and everything that once was one, newest first.

    Args:
        directory: the checkpoint directory.
        sums: read every file and compare; else names and sizes only.

    Raises:
        UsageError: there is no such directory.
    """
    _check(directory)
    rows: list[Row] = []
    for step, path in layout.steps(directory):
        rows += _steady(path, functools.partial(_step_row, step, sums))
    for _, path in layout.quarantined(directory):
        rows += _steady(path, lambda path: _plain_row(path, "quarantined", _reason(path)))
    for _, path in (*layout.leftovers(directory), *layout.replaced(directory)):
        rows += _steady(path, lambda path: _plain_row(path, "leftover", "of a save or removal that was interrupted"))
    return rows


def verify(state: StepState) -> StepState:
    """The same step after reading every byte of it."""
    if state.kind is not StepKind.WHOLE or state.manifest is None:
        return state
    try:
        manifest.check_sums(state.path, state.manifest)
    except CorruptCheckpoint as error:
        return msgspec.structs.replace(state, kind=StepKind.BROKEN, reason=str(error))
    return state


def prune(directory: Path, keep_last: int, keep_every: int | None = None, *, dry: bool = False) -> list[str]:
    """Remove old steps, quarantined steps older than those kept, and leftovers.

    The newest whole step always stays, and nothing is removed that is not whole: that is for ``repair``.

    Args:
        directory: the checkpoint directory.
        keep_last: newest whole steps to keep.
        keep_every: also keep multiples of this.
        dry: only tell.

    Returns:
        The names of what was (or would be) removed.

    Raises:
        UsageError: no such directory, or a job is writing there.
    """
    _check(directory)
    if dry:
        going = _going(directory, keep_last, keep_every)
    else:
        with _Claim(directory) as trash:  # first, so that what is found stays as it is found
            going = _going(directory, keep_last, keep_every)
            for path in going:
                trash.put(path)
    return [path.name for path in going]


def _going(directory: Path, keep_last: int, keep_every: int | None) -> list[Path]:
    states = _states(directory)
    good = [state.step for state in states if state.kind is StepKind.WHOLE]
    old = doomed([state.step for state in states], good, keep_last, keep_every)
    going = [layout.step_path(directory, step) for step in old]
    going += [path for step, path in layout.quarantined(directory) if good and step < max(good)]
    going += [path for _, path in layout.leftovers(directory)]
    return going


def repair(directory: Path) -> list[str]:
    """Put right what can be put right without guessing.

    Leftovers go; a step whose only fault is a missing ``.complete`` and whose sums are right gets it; a quarantined
    step that verifies again (a target came back), or lacks only that, gets its name back; a step that does not verify
    is quarantined.

    Returns:
        What was done, one sentence each.

    Raises:
        UsageError: no such directory, or a job is writing there.
    """
    _check(directory)
    done: list[str] = []
    with _Claim(directory) as trash:
        leftovers = [path.name for _, path in (*layout.leftovers(directory), *layout.replaced(directory))]
        steps.recover(directory, trash)
        done += [f"{name}: cleared away" for name in leftovers]
        for state in _states(directory):
            done += _repair_step(state, trash)
        taken = {step for step, _ in layout.steps(directory)}
        for step, path in layout.quarantined(directory):
            if step not in taken and _verifies(step, path):
                found = _seal(step, path) or "verifies again"
                (path / layout.REASON).unlink(missing_ok=True)
                rename(path, layout.step_path(directory, step))
                done.append(f"{path.name}: {found}, back as step-{step}")
    return done


def _repair_step(state: StepState, trash: Trash) -> list[str]:
    checked = verify(state)
    if checked.kind is not StepKind.BROKEN:
        return []
    if _verifies(state.step, state.path) and (sealed := _seal(state.step, state.path)):
        return [f"{state.path.name}: {sealed}"]
    target = steps.quarantine(state.step, state.path, checked.reason, trash)
    return [f"{state.path.name}: quarantined as {target.name}: {checked.reason}"]


def _verifies(step: int, path: Path) -> bool:
    """Whether everything but, perhaps, ``.complete`` is there as it was written."""
    try:
        manifest.check_sums(path, steps.examine(step, path))
    except CorruptCheckpoint:
        return False
    return True


def _seal(step: int, path: Path) -> str:
    """Write ``.complete`` if there is none, and say so."""
    if (path / layout.COMPLETE).exists():
        return ""
    manifest.seal(path, step)
    sync_directory(path)
    return f"was all there but for {layout.COMPLETE}, which is written now"


class _Claim:
    """The directory to ourselves for a moment."""

    def __init__(self, directory: Path) -> None:
        self._owner = Owner(directory, environ={}, patience=0.0, advice="wait until that job has ended, or stop it")
        self._trash = Trash(directory)

    def __enter__(self) -> Trash:
        self._owner.claim()
        return self._trash

    def __exit__(self, *_: object) -> None:
        self._trash.wait()
        self._owner.release()


def _check(directory: Path) -> None:
    if not directory.is_dir():
        raise UsageError(f"no checkpoint directory {directory}", expected="a directory with step-<N> in it")


def _states(directory: Path) -> list[StepState]:
    return [steps.inspect(step, path) for step, path in layout.steps(directory)]


def _steady(path: Path, look: Callable[[Path], Row]) -> list[Row]:
    """What ``look`` says of a directory that was the same one before and after; nothing if it is gone.

    A job may be writing here. A step that it removes, or replaces by another of the same number, looks damaged to
    whoever reads it just then.
    """
    while (before := _identity(path)) is not None:
        try:
            row = look(path)
        except FileNotFoundError:
            if _identity(path) == before:
                raise
            continue
        if _identity(path) == before:
            return [row]
    return []


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _step_row(step: int, sums: bool, path: Path) -> Row:
    state = steps.inspect(step, path)
    if sums:
        state = verify(state)
    words = {
        StepKind.WHOLE: "verified" if sums else "sizes match",
        StepKind.PLAIN: "plain DCP, unverified",
        StepKind.BROKEN: "broken",
    }
    row = _plain_row(state.path, words[state.kind], state.reason)
    if state.manifest is None:
        return row
    osts = sorted({ost for entry in state.manifest.files for ost in entry.osts})
    return msgspec.structs.replace(row, world_size=state.manifest.world_size, osts=tuple(osts))


def _plain_row(path: Path, state: str, why: str) -> Row:
    size = shards = 0
    for file in path.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is being removed, or was one of a save's temporary names
            found = file.stat()
            size += found.st_size if stat.S_ISREG(found.st_mode) else 0
            shards += file.suffix == manifest.SHARD_SUFFIX
    return Row(path.name, state, why, size, path.stat().st_mtime, shards)


def _reason(path: Path) -> str:
    try:
        return (path / layout.REASON).read_text().strip()
    except FileNotFoundError:
        return "no reason recorded"
