"""Ends what an agent leaves behind when the agent itself is killed. Runs as a process of its own, stdlib only.

``python guard.py TAG [DIRECTORY …]`` reads standard input until its end. The agent writes ``done`` there before it
exits in good order; if the input ends without that word, the agent was killed, and every process that carries the
agent's tag in its environment is killed too, with the shared memory those processes held and the directories given.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["TAG", "kill", "remove_segments", "segments", "tagged"]

TAG = "EZPZ_AGENT"
"""Environment variable that every process an agent starts inherits, whatever session or parent it moves to."""

_PROC = Path("/proc")
_SHM = Path("/dev/shm")


def tagged(tag: str) -> Iterator[int]:
    """Pids of all living processes that carry this agent's tag."""
    needle = f"{TAG}={tag}".encode()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue  # it ended meanwhile, or it is another user's
        if needle in environment.split(b"\0"):
            yield int(entry.name)


def kill(pids: Iterable[int], signum: int) -> None:
    """Send a signal to processes, some of which may have ended meanwhile."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


def segments(pids: Iterable[int]) -> set[Path]:
    """Shared-memory files that these processes have mapped, or that torch named after them."""
    found: set[Path] = set()
    for pid in pids:
        found.update(_SHM.glob(f"torch_{pid}_*"))
        try:
            lines = (_PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
        except OSError:
            continue
        paths = (line.partition("/dev/shm/")[2] for line in lines)
        found.update(_SHM / path for path in paths if path and not path.endswith(" (deleted)"))
    return found


def remove_segments(paths: set[Path]) -> None:
    """Remove shared-memory files, except those that a living process still has mapped."""
    left = {path for path in paths if path.exists()}
    if not left:
        return
    left -= segments(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    for path in left:
        path.unlink(missing_ok=True)


def main(tag: str, directories: list[str]) -> None:
    """Wait for the agent's end; clean up if it was not a good one."""
    if sys.stdin.read().strip() == "done":
        return
    shared: set[Path] = set()
    for _ in range(100):
        pids = list(tagged(tag))
        if not pids:
            break
        shared |= segments(pids)
        kill(pids, signal.SIGKILL)
    remove_segments(shared)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
