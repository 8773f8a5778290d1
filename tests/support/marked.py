"""Finds everything that a test has started, wherever it has moved to: by a mark that processes inherit."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

__all__ = ["MARK", "end", "marked", "told"]

MARK = "EZPZ_TEST_MARK"
"""Environment variable that carries a test's mark."""


def marked(mark: str) -> Iterator[psutil.Process]:
    """All living processes with this mark."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


def told(mark: str) -> list[str]:
    """Their pids and command lines."""
    found = []
    for process in marked(mark):
        try:
            found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def end(mark: str) -> None:
    """SIGKILL to all of them."""
    for process in marked(mark):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
