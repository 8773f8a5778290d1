"""Making bytes and names survive a power cut: fsync of files and of the directories that name them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ezpz_elastic.checkpoint.errors import TARGET_ERRNOS

__all__ = ["CREATE_LIMIT", "Create", "rename", "sync_directory", "write_file"]

# Makes an empty file on a storage target; the number says how many targets have failed for this file already.
Create = Callable[[Path, int], None]
CREATE_LIMIT = 3


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
        create: makes the empty file first, on a storage target of its choice; asked again, for another, if that one is
            full or broken.
    """
    beside = path.with_name(path.name + ".tmp")
    for attempt in range(CREATE_LIMIT if create is not None else 1):
        try:
            if create is not None:
                create(beside, attempt)
            _write_whole(beside, data)
            break
        except OSError as error:
            beside.unlink(missing_ok=True)
            if create is None or attempt + 1 == CREATE_LIMIT or error.errno not in TARGET_ERRNOS:
                raise
    os.replace(beside, path)  # noqa: PTH105  one spelling for every rename, so that tests can count them


def _write_whole(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def rename(old: Path, new: Path) -> None:
    """Rename within one directory and make it durable."""
    os.rename(old, new)  # noqa: PTH104
    sync_directory(new.parent)
