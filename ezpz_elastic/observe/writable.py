"""Whether storage takes writes: a small file, written through to the disk and removed again.

The write is another process's, since nothing ends a write that hangs: on a file system that is away it sits in the
kernel, and so would whoever made it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["await_writable", "place_of"]

SIZE = 1 << 20
"""Bytes that are written: more than what a client takes without asking its server."""

PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between two attempts; the last one repeats."""

LOOK = 0.2
"""Seconds between two looks at whether the writer is done or the wait is over."""

LEVELS = 3
"""How far above the path that failed a directory may be: a save's own directories are gone when it has failed."""


def place_of(path: str, otherwise: Path) -> Path:
    """The directory that has to take writes.

    Args:
        path: what could not be written; empty if nobody knows.
        otherwise: where to write then, and if nothing of the path is there on this host.
    """
    above = list(Path(path).parents)[:LEVELS] if path else []
    return next((directory for directory in above if directory.is_dir()), otherwise)


def await_writable(directory: Path, over: threading.Event, refused: Callable[[str], None]) -> bool:
    """Write until that works.

    Args:
        directory: where. One that we have no permission for is not sick: it says nothing and counts as one that works.
        over: set when it need not be known any more.
        refused: told why, after each attempt that failed.

    Returns:
        whether it works; ``False`` if it was over first.
    """
    for pause in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
        why = _attempt(directory, over)
        if not why:
            return why is not None
        refused(why)
        if over.wait(pause):
            return False
    raise AssertionError("there is always another pause")


def _attempt(directory: Path, over: threading.Event) -> str | None:
    """Why a write was refused; empty if it was not; ``None`` if it was over first."""
    command = [sys.executable, "-I", __file__, str(directory)]
    writer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert writer.stdout is not None
    with writer.stdout:
        while writer.poll() is None:
            if over.wait(LOOK):
                writer.kill()  # not waited for: it may never end
                return None
        told = writer.stdout.read().decode(errors="replace").strip()
    return "" if writer.returncode == 0 else told.rpartition("\n")[2] or f"its writer ended with {writer.returncode}"


def _write(directory: str) -> None:
    with tempfile.NamedTemporaryFile(prefix=".ezpz-writable-", dir=directory) as file:
        file.write(bytes(SIZE))
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    try:
        _write(sys.argv[1])
    except PermissionError:
        sys.exit()
    except OSError as error:
        sys.exit(str(error))
