"""The names in a checkpoint directory, and which of them mean what.

``step-<N>`` is whole: it got that name by one rename, after everything in it was durable. The other names are for what
is not to be offered: ``.partial-<n>`` is being written, under a name that no other save has, ``.deleting-<k>`` is being
removed, ``.replaced`` is the former ``step-<N>`` while a new one takes its name, ``.corrupt`` is quarantined.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = [
    "COMPLETE",
    "LOCK",
    "MANIFEST",
    "METADATA",
    "REASON",
    "WRITER",
    "corrupt_path",
    "deleting_path",
    "leftovers",
    "partial_path",
    "partials",
    "quarantined",
    "replaced",
    "replaced_path",
    "step_of",
    "step_path",
    "steps",
]

COMPLETE = ".complete"
MANIFEST = "manifest.json"
METADATA = ".metadata"
REASON = "reason.txt"
LOCK = ".lock"
WRITER = ".writer"

_STEP = re.compile(r"step-(\d+)\Z")
_PARTIAL = re.compile(r"step-(\d+)\.partial(?:-\d+)?\Z")
_LEFTOVER = re.compile(r"step-(\d+)\.(partial|deleting)(?:-\d+)?\Z")
_REPLACED = re.compile(r"step-(\d+)\.replaced\Z")
_CORRUPT = re.compile(r"step-(\d+)\.corrupt\Z")


def step_path(directory: Path, step: int) -> Path:
    """Where ``step`` lives once it is whole."""
    return directory / f"step-{step}"


def partial_path(directory: Path, step: int, save: int) -> Path:
    """Where ``step`` is written by one save and by no other.

    A process of a round that is over, waking up late, must not write into, or throw away, what a newer round writes.

    Args:
        directory: the checkpoint directory.
        step: its number.
        save: unique to this save. A number, because errors that differ in their numbers only count as the same.
    """
    return directory / f"step-{step}.partial-{save}"


def replaced_path(directory: Path, step: int) -> Path:
    """Where the former ``step`` waits while a new one of the same number takes its name."""
    return directory / f"step-{step}.replaced"


def corrupt_path(directory: Path, step: int) -> Path:
    """Where ``step`` goes when it does not verify."""
    return directory / f"step-{step}.corrupt"


def deleting_path(directory: Path, step: int) -> Path:
    """A free name under which ``step`` can be removed piece by piece without being offered meanwhile."""
    number = 0
    while True:
        path = directory / f"step-{step}.deleting-{number}"
        if not path.exists():
            return path
        number += 1


def step_of(path: Path) -> int | None:
    """The step number in any of the names above; ``None`` for other names."""
    for pattern in (_STEP, _LEFTOVER, _REPLACED, _CORRUPT):
        match = pattern.match(path.name)
        if match:
            return int(match.group(1))
    return None


def _matching(directory: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    found = [(int(m.group(1)), path) for path in directory.iterdir() if (m := pattern.match(path.name))]
    return sorted(found, key=lambda pair: (pair[0], pair[1].name), reverse=True)


def steps(directory: Path) -> list[tuple[int, Path]]:
    """``(step, path)`` of every directory named ``step-<N>``, newest first; says nothing of what is in them."""
    return _matching(directory, _STEP)


def leftovers(directory: Path) -> list[tuple[int, Path]]:
    """What a killed save or a killed removal left behind, newest first."""
    return _matching(directory, _LEFTOVER)


def partials(directory: Path, step: int) -> list[Path]:
    """What saves of ``step`` are writing, or have left behind."""
    return [path for number, path in _matching(directory, _PARTIAL) if number == step]


def replaced(directory: Path) -> list[tuple[int, Path]]:
    """Former steps whose replacement was interrupted, or not yet cleaned up."""
    return _matching(directory, _REPLACED)


def quarantined(directory: Path) -> list[tuple[int, Path]]:
    """Steps that did not verify, newest first."""
    return _matching(directory, _CORRUPT)
