"""Making bytes and names survive a power cut: fsync of files and of the directories that name them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["Create", "rename", "sync_directory", "write_file"]

Create = Callable[[Path], None]


def sync_directory(path: Path) -> None:
    """Make the names in ``path`` durable.

    Raises:
        OSError: if the directory cannot be opened or synced.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes, create: Create | None = None) -> None:
    """Write ``data`` to ``path`` and sync the file; the caller syncs the directory once for all its files.

    The file appears under its name only when it is whole: it is written beside and renamed.

    Args:
        path: where.
        data: what.
        create: makes the empty file first, on a storage target of its choice.
    """
    beside = path.with_name(path.name + ".tmp")
    if create is not None:
        create(beside)
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)  # noqa: PTH105  one spelling for every rename, so that tests can count them


def rename(old: Path, new: Path) -> None:
    """Rename within one directory and make it durable."""
    os.rename(old, new)  # noqa: PTH104
    sync_directory(new.parent)
