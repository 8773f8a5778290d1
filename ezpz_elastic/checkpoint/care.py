"""Looking after a checkpoint directory from outside of a job: list, verify, prune, repair. No torch, one process."""

from __future__ import annotations

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
    if not directory.is_dir():
        raise UsageError(f"no checkpoint directory {directory}", expected="a directory with step-<N> in it")
    rows = [_row(verify(state) if sums else state, sums) for state in _states(directory)]
    for step, path in layout.quarantined(directory):
        rows.append(_plain_row(path, "quarantined", _reason(path, f"step {step}")))
    for _, path in (*layout.leftovers(directory), *layout.replaced(directory)):
        rows.append(_plain_row(path, "leftover", "of a save or removal that was interrupted"))
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
    states = _states(directory)
    good = [state.step for state in states if state.kind is StepKind.WHOLE]
    old = doomed([state.step for state in states], good, keep_last, keep_every)
    going = [layout.step_path(directory, step) for step in old]
    going += [path for step, path in layout.quarantined(directory) if good and step < max(good)]
    going += [path for _, path in layout.leftovers(directory)]
    if not dry and going:
        with _Claim(directory) as trash:
            for path in going:
                trash.put(path)
    return [path.name for path in going]


def repair(directory: Path) -> list[str]:
    """Put right what can be put right without guessing.

    Leftovers go; a step whose only fault is a missing ``.complete`` and whose sums are right gets it; a quarantined
    step that verifies again (a target came back) gets its name back; a step that does not verify is quarantined.

    Returns:
        What was done, one sentence each.

    Raises:
        UsageError: no such directory, or a job is writing there.
    """
    done: list[str] = []
    states = _states(directory)
    with _Claim(directory) as trash:
        leftovers = [path.name for _, path in (*layout.leftovers(directory), *layout.replaced(directory))]
        steps.recover(directory, trash)
        done += [f"{name}: cleared away" for name in leftovers]
        for state in states:
            done += _repair_step(state, trash)
        taken = {step for step, _ in layout.steps(directory)}
        for step, path in layout.quarantined(directory):
            if step not in taken and _verifies(path):
                (path / layout.REASON).unlink(missing_ok=True)
                rename(path, layout.step_path(directory, step))
                done.append(f"{path.name}: verifies again, back as step-{step}")
    return done


def _repair_step(state: StepState, trash: Trash) -> list[str]:
    checked = verify(state)
    if checked.kind is not StepKind.BROKEN:
        return []
    if not (state.path / layout.COMPLETE).exists() and _verifies(state.path):
        manifest.seal(state.path, state.step)
        sync_directory(state.path)
        return [f"{state.path.name}: was all there but for {layout.COMPLETE}, which is written now"]
    target = steps.quarantine(state.step, state.path, checked.reason, trash)
    return [f"{state.path.name}: quarantined as {target.name}: {checked.reason}"]


def _verifies(path: Path) -> bool:
    try:
        found = manifest.read(path)
        manifest.check_sizes(path, found)
        manifest.check_sums(path, found)
    except CorruptCheckpoint:
        return False
    return True


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


def _states(directory: Path) -> list[StepState]:
    if not directory.is_dir():
        raise UsageError(f"no checkpoint directory {directory}", expected="a directory with step-<N> in it")
    return [steps.inspect(step, path) for step, path in layout.steps(directory)]


def _row(state: StepState, sums: bool) -> Row:
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
    sizes = [file.stat().st_size for file in path.iterdir() if file.is_file()]
    return Row(path.name, state, why, sum(sizes), path.stat().st_mtime, len(list(path.glob("*.distcp"))))


def _reason(path: Path, unknown: str) -> str:
    try:
        return (path / layout.REASON).read_text().strip()
    except FileNotFoundError:
        return f"no reason recorded for {unknown}"
