"""The health of this host: what psutil, the vendors' tools, Lustre's client and the user's own probes say of it.

A probe is unhealthy only where something cannot work any more, or has gone since the agent looked first; everything
else is a fact for people. A tool that is absent or does not answer in time is a fact, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from ezpz_elastic.decide.evidence import HostProbe

__all__ = ["DEADLINE", "gone_since", "survey"]

DEADLINE = 0.8
"""Seconds that one tool or probe gets; all run at once, so that a survey takes less than a second."""

FULL = 0.995
"""Part of a file system, or of its inodes, that is in use when it counts as full."""

_LUSTRE = "lustre"
_FAILED = "exit code"

_TOOLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gpu processes", ("nvidia-smi", "--query-compute-apps=pid,used_memory,name", "--format=csv,noheader")),
    ("xpu processes", ("xpu-smi", "ps")),
    ("sycl devices", ("sycl-ls",)),
    (_LUSTRE, ("lfs", "check", "servers")),
)
_DETAIL = 300

Probe = Callable[[str], list[HostProbe]]


def survey(host: str, run_dir: Path, workers: Iterable[int] = (), probes_dir: Path | None = None) -> list[HostProbe]:
    """Look at this host, in less than a second.

    Args:
        host: its name as the allocation spells it.
        run_dir: the run directory, whose file system is looked at.
        workers: pids of workers.
        probes_dir: every executable in it is run; exit code 0 is healthy, the first line it prints is the detail.
    """
    pids = list(workers)
    probes: list[Probe] = [_memory, _load, _links, lambda name: _workers(name, pids)]
    probes += [_space("shm", Path("/dev/shm")), _space("tmp disk", Path("/tmp")), _space("run_dir disk", run_dir)]
    probes += [_tool(name, command) for name, command in _TOOLS if shutil.which(command[0])]
    probes += [_own(path) for path in _executables(probes_dir)]
    with ThreadPoolExecutor(max_workers=len(probes), thread_name_prefix="ezpz-probe") as pool:
        return [item for found in pool.map(lambda probe: probe(host), probes) for item in found]


def gone_since(before: Sequence[HostProbe], now: Sequence[HostProbe]) -> list[HostProbe]:
    """What is unhealthy now and was not before, links that went down, and a Lustre client that has lost servers."""
    already = {item.probe for item in before if not item.healthy}
    first = {item.probe: item.detail for item in before}
    worse = [item for item in now if not item.healthy and item.probe not in already]
    for item in now:
        was = first.get(item.probe)
        if item.probe.startswith("link ") and (was, item.detail) == ("up", "down"):
            worse.append(HostProbe(item.host, item.probe, False, "it was up when the agent started"))
        elif item.probe == _LUSTRE and was is not None and not _lost_servers(was) and _lost_servers(item.detail):
            detail = f"{item.detail}; it had all its servers when the agent started"
            worse.append(HostProbe(item.host, item.probe, False, detail))
    return worse


def _lost_servers(told: str) -> bool:
    return f": {_FAILED}" in told  # no answer in time says no more than that the host is busy


def _memory(host: str) -> list[HostProbe]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    gib = 2.0**30
    detail = (
        f"{memory.available / gib:.1f} of {memory.total / gib:.1f} GiB available, "
        f"swap {swap.used / gib:.1f} of {swap.total / gib:.1f} GiB used"
    )
    return [HostProbe(host, "memory", True, detail)]


def _load(host: str) -> list[HostProbe]:
    one, five, _ = os.getloadavg()
    return [HostProbe(host, "load", True, f"{one:.1f} over 1 min, {five:.1f} over 5 min, {os.cpu_count()} processors")]


def _links(host: str) -> list[HostProbe]:
    return [
        HostProbe(host, f"link {name}", True, "up" if state.isup else "down")
        for name, state in psutil.net_if_stats().items()
        if name != "lo"
    ]


def _workers(host: str, pids: Sequence[int]) -> list[HostProbe]:
    """Zombies are a fact; a worker in uninterruptible sleep that also was there a moment ago is stuck in the kernel."""
    stuck, zombies = [], 0
    for pid in pids:
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_DISK_SLEEP:
                stuck.append(process)
            zombies += process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            continue
    still = [process.pid for process in stuck if _still_stuck(process)]
    detail = f"{zombies} zombies" + (f"; in uninterruptible sleep: {', '.join(map(str, still))}" if still else "")
    return [HostProbe(host, "processes", True, detail)] if pids else []


def _still_stuck(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_DISK_SLEEP
    except psutil.NoSuchProcess:
        return False


def _space(name: str, path: Path) -> Probe:
    def probe(host: str) -> list[HostProbe]:
        try:
            found = os.statvfs(path)
        except OSError as error:
            return [HostProbe(host, name, False, f"{path}: {error.strerror}")]
        used = 1 - found.f_bavail / found.f_blocks if found.f_blocks else 0.0
        inodes = 1 - found.f_favail / found.f_files if found.f_files else 0.0
        free = found.f_bavail * found.f_frsize / 2**30
        detail = f"{path}: {free:.1f} GiB free, {used:.1%} of the space and {inodes:.1%} of the inodes in use"
        return [HostProbe(host, name, max(used, inodes) < FULL, detail)]

    return probe


def _tool(name: str, command: Sequence[str]) -> Probe:
    def probe(host: str) -> list[HostProbe]:
        code, text = _run(command)
        answer = "no answer" if code is None else f"{_FAILED} {code}: {text}".rstrip(": ") if code else text or "none"
        return [HostProbe(host, name, True, f"{command[0]}: {answer}"[:_DETAIL])]

    return probe


def _own(path: Path) -> Probe:
    def probe(host: str) -> list[HostProbe]:
        code, text = _run([str(path)])
        told = text.partition("\n")[0] or "nothing said"
        detail = f"no answer within {DEADLINE} s" if code is None else f"exit code {code}: {told}" if code else told
        return [HostProbe(host, path.name, code == 0, detail[:_DETAIL])]

    return probe


def _run(command: Sequence[str]) -> tuple[int | None, str]:
    """Exit code and output; no code if the program does not end in time or cannot be started."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    except OSError as error:
        return None, str(error)
    return done.returncode, done.stdout.decode(errors="replace").strip()


def _executables(directory: Path | None) -> list[Path]:
    if directory is None or not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.is_file() and os.access(path, os.X_OK))
