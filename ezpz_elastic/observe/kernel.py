"""The kernel log's word on processes that the kernel itself has ended: for want of memory, or for a fault of theirs."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import msgspec

__all__ = ["KernelLog", "KernelWord", "in_first_namespace"]

_KILLED = re.compile(r"(Killed process (\d+) .*?anon-rss:(\d+)kB, file-rss:(\d+)kB, shmem-rss:(\d+)kB)")
_FAULT = re.compile(
    r"(?:traps: )?[^\[\];]{1,16}\[(\d+)\]:? "
    r"((?:segfault|trap|general protection|unhandled exception|bus error|bad frame)\b.{0,200})"
)
_RECORD = 8192
"""Bytes of the longest record that ``/dev/kmsg`` gives at once."""

_FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's fixed name of the namespace by which its log counts processes (PROC_PID_INIT_INO)."""


class KernelWord(msgspec.Struct, frozen=True):
    """What the kernel log says of one process.

    Args:
        pid: the process; of a fault, the thread.
        text: the words.
        resident_bytes: what a process held that was killed for want of memory (anonymous, file and shared pages);
            ``None`` if it was ended for a fault.
    """

    pid: int
    text: str
    resident_bytes: int | None = None


def in_first_namespace() -> bool:
    """Whether processes bear the numbers here by which the kernel log names them; in a container they do not."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_NAMESPACE
    except OSError:
        return False


class KernelLog:
    """Reads the kernel log from now on. Where it cannot be read, or counts processes otherwise, it has nothing to say.

    Args:
        path: the log.
        ours: whether its process numbers are this process's own.
    """

    def __init__(self, path: str = "/dev/kmsg", ours: bool | None = None) -> None:
        self._fd: int | None = None
        if not (in_first_namespace() if ours is None else ours):
            return  # a number of the host's, taken for one of the container's, would blame the wrong process
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    def words(self) -> list[KernelWord]:
        """What was said of processes since the last call."""
        found = []
        while (record := self._next()) is not None:
            if (killed := _KILLED.search(record)) is not None:
                pid, *pages = map(int, killed.groups()[1:])
                found.append(KernelWord(pid, killed[1], sum(pages) * 1024))
            elif (fault := _FAULT.search(record)) is not None:
                found.append(KernelWord(int(fault[1]), fault[2].splitlines()[0].strip()))
        return found

    def _next(self) -> str | None:
        if self._fd is None:
            return None
        try:
            data = os.read(self._fd, _RECORD)
        except OSError as error:
            if error.errno == errno.EPIPE:
                return ""  # records were overwritten before they were read; the next one follows
            return None
        return data.decode(errors="replace") if data else None

    def close(self) -> None:
        """Let go of the log."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
