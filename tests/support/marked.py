"""Finds everything that a test has started, wherever it has moved to: by a mark that processes inherit.

What was forked and has executed nothing since shows the environment of whoever began; it is found by its session.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

import psutil

__all__ = ["MARK", "end", "lives", "marked", "told"]

MARK = "EZPZ_TEST_MARK"
"""Environment variable that carries a test's mark."""


def lives(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked(mark: str, sessions: Collection[int] = ()) -> Iterator[psutil.Process]:
    """All living processes with this mark or of one of these sessions."""
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == mark or os.getsid(process.pid) in sessions
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, ProcessLookupError):
            continue


def told(mark: str, sessions: Collection[int] = ()) -> list[str]:
    """Their pids and command lines."""
    found = []
    for process in marked(mark, sessions):
        try:
            found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def end(mark: str, sessions: Collection[int] = ()) -> None:
    """SIGKILL to all of them."""
    for process in marked(mark, sessions):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
