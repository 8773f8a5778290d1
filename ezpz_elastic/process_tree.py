"""Stops everything an agent has started: workers, their children, and whatever moved to a session of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import psutil

from ezpz_elastic import guard

__all__ = ["LONGEST_WAIT", "Family", "Guard", "stop_all"]

logger = logging.getLogger(__name__)

_LOOK = 0.05
"""Seconds between two looks at processes whose end the kernel does not tell."""

LONGEST_WAIT = 86400.0
"""Seconds that are waited for at a time; the kernel takes no timeout of more than 24 days."""

_KILL_PATIENCE = 5.0
"""Seconds to wait after SIGKILL; what is alive then is in uninterruptible sleep."""


class Guard:
    """The companion process that cleans up if this agent is killed.

    Args:
        tag: value of the environment variable ``guard.TAG`` in everything this agent starts.
        directories: removed along with the processes.
        groups: directory of the workers' control groups, if there are any.
    """

    def __init__(self, tag: str, directories: list[Path], groups: Path | None = None) -> None:
        self._command = [sys.executable, "-I", "-S", guard.__file__, tag, str(groups or ""), *map(str, directories)]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if key != guard.TAG}
        # Out of the agent's session and process group: whoever kills those must not take the guard along.
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True, env=environment)

    def watch(self, workers: Iterable[int]) -> None:
        """A round begins with these workers, each the leader of a session. A guard that was killed is replaced.

        Args:
            workers: their pids.
        """
        if self._process.poll() is not None:
            logger.warning("the guard process has ended with %d; there is a new one", self._process.returncode)
            self._process = self._start()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is being killed in this moment
            self._process.stdin.write((" ".join(map(str, workers)) + "\n").encode())
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """The agent ends in good order; the guard has nothing to do."""
        self._process.communicate(b"done")


class Family:
    """The processes that an agent's workers have started, and how to end them.

    Args:
        tag: the agent's tag.
        groups: directory of the workers' control groups, if there are any.
        spared: gives the pids of processes that stay; asked after each look for processes.
    """

    def __init__(self, tag: str, groups: Path | None, spared: Callable[[], Collection[int]] = tuple) -> None:
        self._tag, self._groups, self._spared = tag, groups, spared
        self._stuck: list[psutil.Process] = []
        self.leaders: set[int] = set()

    def find(self) -> list[int]:
        """Pids of those that live, apart from those that outlived SIGKILL before: it is with them for good."""
        found = guard.family(self._tag, self._groups, self.leaders)
        self._stuck = [process for process in self._stuck if process.is_running()]
        return sorted(found - set(self._spared()) - {process.pid for process in self._stuck})

    def kill(self, pids: Iterable[int]) -> None:
        """SIGKILL to these and to whatever is in the control groups."""
        guard.kill_groups(self._groups)
        guard.kill(pids, signal.SIGKILL)

    def hurry(self) -> None:
        """SIGKILL to all, now."""
        self.kill(self.find())

    def give_up_on(self, pids: Iterable[int]) -> None:
        """These outlived SIGKILL; they end when the kernel lets go of them, and nobody waits for that."""
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._stuck.append(psutil.Process(pid))


def stop_all(family: Family | str, first: signal.Signals, grace: float, patience: float = _KILL_PATIENCE) -> list[int]:
    """End every process of a family.

    Args:
        family: whom; a tag alone stands for what carries it.
        first: signal to begin with; SIGKILL follows when ``grace`` is over.
        grace: seconds between the two.
        patience: seconds to wait after SIGKILL.

    Returns:
        Pids that are still alive: nothing but uninterruptible sleep keeps a process from SIGKILL.
    """
    family = Family(family, None) if isinstance(family, str) else family
    shared: set[Path] = set()
    pids = family.find()
    shared |= guard.segments(pids)
    guard.kill(pids, first)
    guard.kill(pids, signal.SIGCONT)  # a stopped process takes the signal only when it goes on
    alive = _wait(pids, grace)
    deadline = time.monotonic() + patience
    while pids := family.find():
        shared |= guard.segments(pids)
        family.kill(pids)
        alive = _wait(pids, deadline - time.monotonic())
        if alive and time.monotonic() >= deadline:
            family.give_up_on(alive)
            break
    guard.remove_segments(shared)
    return alive


def _wait(pids: list[int], timeout: float) -> list[int]:
    """Wait until these processes have ended; those that have not after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    watched: list[int] = []
    with selectors.PollSelector() as selector, contextlib.ExitStack() as stack:
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            except OSError:
                watched.append(pid)  # a kernel before 5.3, or no descriptor is left
                continue
            stack.callback(os.close, descriptor)
            selector.register(descriptor, selectors.EVENT_READ, pid)
        while (watched or selector.get_map()) and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(min(left, _LOOK if watched else LONGEST_WAIT)):
                selector.unregister(key.fileobj)
            watched = [pid for pid in watched if not _has_ended(pid)]
        return [*(key.data for key in selector.get_map().values()), *watched]


def _has_ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in {"Z", "X"}  # nobody has waited for it yet
