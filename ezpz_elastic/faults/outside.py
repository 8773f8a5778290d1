"""Harm that an injector does to others, each with the injector's own look at what came of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ezpz_elastic.faults.deaths import PATIENCE, Harm, kill
from ezpz_elastic.faults.scene import Targets

__all__ = ["cut", "kill_all", "stop_all"]

_LOOK = 0.005
"""Seconds between two looks for what the kernel tells nobody of."""


def kill_all(targets: Targets) -> Harm:
    """SIGKILL to all targets at once; seen when each is dead."""
    return kill(targets.pids)


def stop_all(targets: Targets) -> Harm:
    """SIGSTOP to all targets; seen when the kernel says that each is stopped.

    The signal is delivered to one thread, and until that one is next on a CPU the others go on working.
    """
    began = time.monotonic()
    for pid in targets.pids:
        os.kill(pid, signal.SIGSTOP)
    stopped = _await(lambda: all(map(_stands, targets.pids)))
    seen = tuple(sorted(filter(_stands, targets.pids)))
    return Harm(seen, stopped and bool(seen), round(time.monotonic() - began, 6))


def cut(targets: Targets) -> Harm:
    """Harm that is no signal: ``targets.cut``, and then ``targets.seen`` until it says so.

    Raises:
        ValueError: the targets do not say how, or how it would be seen.
    """
    if targets.cut is None or targets.seen is None:
        raise ValueError("this fault needs Targets(cut=…, seen=…)")
    began = time.monotonic()
    targets.cut()
    landed = _await(targets.seen)
    return Harm(tuple(sorted(targets.pids)), landed, round(time.monotonic() - began, 6))


def _await(so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not so():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK)
    return True


def _stands(pid: int) -> bool:
    """Whether every thread of a process is stopped; not so if it is gone."""
    try:
        threads = [path.read_bytes() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False
    return bool(threads) and all(told.rpartition(b")")[2].split()[0] == b"T" for told in threads)
