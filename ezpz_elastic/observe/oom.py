"""Whether the kernel killed a process for want of memory: the cgroup's counter and, if readable, the kernel log."""

from __future__ import annotations

import re
from pathlib import Path

from ezpz_elastic.observe.cgroup import UNIFIED, directories
from ezpz_elastic.observe.kernel import KernelLog, KernelWord

__all__ = ["OomWatch", "counter_of"]


def counter_of(pid: int | str = "self", root: Path = Path("/")) -> Path | None:
    """The file in which the kernel counts the oom kills of a process's memory cgroup.

    That is ``memory.oom_control`` of the memory controller (cgroup v1) or ``memory.events`` (v2).

    Args:
        pid: the process.
        root: of the file system, for tests.

    Returns:
        ``None`` where there is no such controller, or it cannot be read.
    """
    found = directories(pid, root)
    for name, file in (("memory", "memory.oom_control"), (UNIFIED, "memory.events")):
        if name in found and _count(found[name] / file) is not None:
            return found[name] / file
    return None


def _count(file: Path) -> int | None:
    try:
        text = file.read_text()
    except OSError:
        return None
    found = re.search(r"^oom_kill (\d+)$", text, re.M)
    return int(found[1]) if found is not None else None


class OomWatch:
    """Oom kills among one host's workers, from now on.

    Args:
        counter: the workers' counter, from ``counter_of``; workers begin in the agent's own cgroup.
        log: the kernel log.
    """

    def __init__(self, counter: Path | None, log: KernelLog) -> None:
        self._counter, self._log = counter, log
        self._before = _count(counter) if counter is not None else None
        self._words: dict[int, KernelWord] = {}

    def begin(self) -> None:
        """A round begins: what was counted and said before is about other processes."""
        self.since()
        self._log.words()
        self._words.clear()

    def since(self) -> int | None:
        """Kills that the cgroup has counted since the last call; ``None`` where nothing counts."""
        now = _count(self._counter) if self._counter is not None else None
        before, self._before = self._before, now
        return None if now is None or before is None else now - before

    def of(self, pid: int) -> KernelWord | None:
        """What the kernel log says of a process that has ended."""
        self._words.update({word.pid: word for word in self._log.words()})
        return self._words.get(pid)
