"""Whether the kernel killed a process for want of memory: the cgroup's counter and, if readable, the kernel log."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import msgspec

__all__ = ["KernelLog", "OomKill", "OomWatch", "counter_of"]

_KILLED = re.compile(r"Killed process (\d+) .*?anon-rss:(\d+)kB, file-rss:(\d+)kB, shmem-rss:(\d+)kB")
_RECORD = 8192
"""Bytes of the longest record that ``/dev/kmsg`` gives at once."""


class OomKill(msgspec.Struct, frozen=True):
    """A process that the kernel log says was killed.

    Args:
        pid: as this pid namespace's kernel log has it.
        resident_bytes: what it held: anonymous, file and shared pages.
    """

    pid: int
    resident_bytes: int


def counter_of(pid: int | str = "self", root: Path = Path("/")) -> Path | None:
    """The file in which the kernel counts the oom kills of a process's memory cgroup.

    That is ``memory.oom_control`` of the memory controller (cgroup v1) or ``memory.events`` (v2).

    Args:
        pid: the process.
        root: of the file system, for tests.

    Returns:
        ``None`` where there is no such controller, or it cannot be read.
    """
    try:
        lines = (root / "proc" / str(pid) / "cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    groups: dict[str, str] = {}
    for line in lines:
        _, controllers, group = line.split(":", 2)
        groups[controllers] = group
    for mount in mounts:
        left, _, right = mount.partition(" - ")
        kind, _, options = right.split(" ", 2)
        inside, place = left.split(" ")[3:5]
        if kind == "cgroup" and "memory" in options.split(","):
            path = next((path for names, path in groups.items() if "memory" in names.split(",")), None)
            name = "memory.oom_control"
        elif kind == "cgroup2":
            path, name = groups.get(""), "memory.events"
        else:
            continue
        if path is not None:
            below = path.removeprefix(inside if inside != "/" else "").lstrip("/")
            file = root / place.lstrip("/") / below / name
            if _count(file) is not None:
                return file
    return None


def _count(file: Path) -> int | None:
    try:
        text = file.read_text()
    except OSError:
        return None
    found = re.search(r"^oom_kill (\d+)$", text, re.M)
    return int(found[1]) if found is not None else None


class KernelLog:
    """Reads the kernel log from now on. Where it cannot be read it has nothing to say."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._fd: int | None = None
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    def kills(self) -> list[OomKill]:
        """Processes that were killed for want of memory since the last call."""
        found = []
        while (record := self._next()) is not None:
            match = _KILLED.search(record)
            if match is not None:
                pid, *pages = map(int, match.groups())
                found.append(OomKill(pid, sum(pages) * 1024))
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


class OomWatch:
    """Oom kills among one host's workers, from now on.

    Args:
        counter: the workers' counter, from ``counter_of``; workers begin in the agent's own cgroup.
        log: the kernel log.
    """

    def __init__(self, counter: Path | None, log: KernelLog) -> None:
        self._counter, self._log = counter, log
        self._before = _count(counter) if counter is not None else None
        self._kills: dict[int, OomKill] = {}

    def since(self) -> int | None:
        """Kills that the cgroup has counted since the last call; ``None`` where nothing counts."""
        now = _count(self._counter) if self._counter is not None else None
        before, self._before = self._before, now
        return None if now is None or before is None else now - before

    def of(self, pid: int) -> OomKill | None:
        """What the kernel log says of a process that has ended."""
        self._kills.update({kill.pid: kill for kill in self._log.kills()})
        return self._kills.get(pid)
