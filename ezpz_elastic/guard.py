"""Ends what an agent leaves behind when the agent itself is killed. Runs as a process of its own, stdlib only.

``python guard.py TAG GROUPS [DIRECTORY …]`` reads standard input until its end. The agent writes a line with its
workers' pids there at the beginning of each round, and ``done`` before it exits in good order. If the input ends
without that word the agent was killed, and these are killed too: every process that carries the agent's tag in its
environment, with its session; the sessions of the last line's workers (one that has set its title has overwritten its
environment); and what is in the control groups below ``GROUPS`` (empty: there are none). The shared memory they held
goes with them, and so do the directories.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["TAG", "family", "kill", "kill_groups", "remove_groups", "remove_segments", "segments", "tagged"]

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


def family(tag: str, groups: Path | None = None, leaders: Iterable[int] = ()) -> set[int]:
    """Pids of everything that an agent has started, as far as it can be known.

    That is what carries the agent's tag, what is in the sessions that such processes lead, and what is in the control
    groups: a process that has lost its environment and left its session as well is found by its group alone.

    Args:
        tag: the agent's tag.
        groups: directory of the workers' control groups, if there are any.
        leaders: workers, whose sessions count even if they have ended.
    """
    found = set(tagged(tag))
    for group in _below(groups):
        found.update(pid for pid in _members(group) if _lives(_PROC / str(pid)))
    sessions = {*leaders, *(pid for pid in found if _session(pid) == pid)} - {os.getsid(0)}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and _session(int(entry.name)) in sessions and _is_ours(entry):
            found.add(int(entry.name))
    return found - {os.getpid()}


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _is_ours(entry: Path) -> bool:
    """Whether a process runs as this user and has not ended."""
    try:
        return entry.stat().st_uid == os.geteuid() and _lives(entry)
    except OSError:
        return False


def _lives(entry: Path) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet has."""
    try:
        return (entry / "stat").read_text(errors="replace").rpartition(") ")[2][:1] not in {"", "Z", "X"}
    except OSError:
        return False


def _below(groups: Path | None) -> list[Path]:
    try:
        return [path for path in groups.iterdir() if path.is_dir()] if groups is not None else []
    except OSError:
        return []


def _members(group: Path) -> list[int]:
    """Pids in a control group and in those that its processes have made below it."""
    found: list[int] = []
    for path in (group, *_below(group)):
        try:
            found += [int(line) for line in (path / "cgroup.procs").read_text().split()]
        except (OSError, ValueError):
            continue
    return [pid for pid in found if pid > 0]


def kill_groups(groups: Path | None) -> None:
    """Kill whatever is in the control groups: at once where the kernel can (version 2), which no fork outruns."""
    for group in _below(groups):
        try:
            (group / "cgroup.kill").write_text("1")
        except OSError:
            kill(_members(group), signal.SIGKILL)


def remove_groups(groups: Path) -> None:
    """Remove the control groups that are empty."""
    for path in [*(below for group in _below(groups) for below in _below(group)), *_below(groups), groups]:
        try:
            path.rmdir()
        except OSError:
            continue


def kill(pids: Iterable[int], signum: int) -> None:
    """Send a signal to processes, some of which may have ended meanwhile or belong to somebody else."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
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


def main(tag: str, groups: Path | None, directories: list[str]) -> None:
    """Wait for the agent's end; clean up if it was not a good one."""
    leaders: list[int] = []
    for line in sys.stdin:
        if line.strip() == "done":
            return
        if line.endswith("\n"):  # else the agent died in the middle of it
            leaders = [int(pid) for pid in line.split()]
    shared: set[Path] = set()
    for _ in range(100):
        pids = family(tag, groups, leaders)
        if not pids:
            break
        shared |= segments(pids)
        kill_groups(groups)
        kill(pids, signal.SIGKILL)
    remove_segments(shared)
    for _ in range(100):
        if groups is None or not groups.exists():
            break
        remove_groups(groups)
        time.sleep(0.01)  # what has been killed may still be on its way out of its group
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]) if sys.argv[2] else None, sys.argv[3:])
