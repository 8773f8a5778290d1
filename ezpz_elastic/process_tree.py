"""Stops everything an agent has started: workers, their children, and whatever moved to a session of its own."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from ezpz_elastic import guard

__all__ = ["Guard", "stop_all"]

_KILL_PATIENCE = 5.0
"""Seconds to wait after SIGKILL; what is alive then is in uninterruptible sleep."""


class Guard:
    """The companion process that cleans up if this agent is killed.

    Args:
        tag: value of the environment variable ``guard.TAG`` in everything this agent starts.
        directories: removed along with the processes.
    """

    def __init__(self, tag: str, directories: list[Path]) -> None:
        command = [sys.executable, "-I", "-S", guard.__file__, tag, *map(str, directories)]
        environment = {key: value for key, value in os.environ.items() if key != guard.TAG}
        # Out of the agent's session and process group: whoever kills those must not take the guard along.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment)

    def dismiss(self) -> None:
        """The agent ends in good order; the guard has nothing to do."""
        self._process.communicate(b"done")


def stop_all(tag: str, first: signal.Signals, grace: float, spared: Callable[[], Collection[int]] = tuple) -> list[int]:
    """End every process that carries ``tag``.

    Args:
        tag: the agent's tag.
        first: signal to begin with; SIGKILL follows when ``grace`` is over.
        grace: seconds between the two.
        spared: gives the pids of processes that stay; asked after each look for processes.

    Returns:
        Pids that are still alive: nothing but uninterruptible sleep keeps a process from SIGKILL.
    """
    shared: set[Path] = set()
    pids = _without(guard.tagged(tag), spared)
    shared |= guard.segments(pids)
    guard.kill(pids, first)
    guard.kill(pids, signal.SIGCONT)  # a stopped process takes the signal only when it goes on
    alive = _wait(pids, grace)
    deadline = time.monotonic() + _KILL_PATIENCE
    while pids := _without(guard.tagged(tag), spared):
        shared |= guard.segments(pids)
        guard.kill(pids, signal.SIGKILL)
        alive = _wait(pids, deadline - time.monotonic())
        if alive and time.monotonic() >= deadline:
            break
    guard.remove_segments(shared)
    return alive


def _without(pids: Iterable[int], spared: Callable[[], Collection[int]]) -> list[int]:
    found = list(pids)
    stay = spared()
    return [pid for pid in found if pid not in stay]


def _wait(pids: list[int], timeout: float) -> list[int]:
    """Wait until these processes have ended; those that have not after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            stack.callback(os.close, descriptor)
            selector.register(descriptor, selectors.EVENT_READ, pid)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
        return [key.data for key in selector.get_map().values()]
