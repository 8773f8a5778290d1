"""The end of a child process, as something that a selector can wait for."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable

__all__ = ["DeathWatch"]


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
    with contextlib.suppress(ChildProcessError):  # it has ended and has been waited for meanwhile
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    done()
