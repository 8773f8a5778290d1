"""That a worker has died, and the exception torchelastic's error file holds. Returns evidence, judges nothing."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from ezpz_elastic.decide.evidence import ErrorRecord

__all__ = ["DeathWatch", "error_from_file"]


class DeathWatch:
    """A file descriptor that becomes readable when a child process ends, without waiting for it.

    A pidfd where the kernel has them (Linux 5.3); elsewhere a thread waits and writes into a pipe.

    Args:
        pid: a child of this process that has not been waited for.
    """

    def __init__(self, pid: int) -> None:
        self._thread: threading.Thread | None = None
        try:
            self._fd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
            self._fd, done = os.pipe()
            self._thread = threading.Thread(target=_wait_for_exit, args=(pid, lambda: os.close(done)), daemon=True)
            self._thread.start()

    def fileno(self) -> int:
        """For a selector."""
        return self._fd

    def close(self) -> None:
        """Let go of the descriptor."""
        os.close(self._fd)


def _wait_for_exit(pid: int, done: Callable[[], None]) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    done()


def error_from_file(path: Path) -> ErrorRecord | None:
    """The exception in torchelastic's error file, which scripts write whose main is decorated with ``@record``.

    Args:
        path: the worker's ``TORCHELASTIC_ERROR_FILE``.

    Returns:
        ``None`` if there is no such file or it holds nothing that can be read.
    """
    try:
        message = json.loads(path.read_text(errors="replace"))["message"]
        text = message if isinstance(message, str) else message["message"]
        stack = "" if isinstance(message, str) else message.get("extraInfo", {}).get("py_callstack", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    name, _, rest = str(text).partition(": ")
    return ErrorRecord(type=name, message=rest.splitlines()[0][:500] if rest else "", frames=_frames(str(stack)))


def _frames(stack: str) -> tuple[tuple[str, int, str], ...]:
    frames = []
    for line in stack.splitlines():
        parts = line.strip().split('"')
        if len(parts) == 3 and parts[0] == "File " and ", line " in parts[2]:
            number, _, function = parts[2].removeprefix(", line ").partition(", in ")
            if number.isdigit():
                frames.append((parts[1], int(number), function))
    return tuple(frames)
