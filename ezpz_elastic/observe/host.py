"""The health of this host: what psutil, the vendors' tools, Lustre's client and the user's own probes say of it.

A probe is unhealthy only where something cannot work any more, or has gone since the agent looked first; everything
else is a fact for people. A tool or a probe that is absent or does not answer in time is a fact, too: a host that is
busy, and nothing worse, looks the same.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

from ezpz_elastic.decide.evidence import HostProbe
from ezpz_elastic.observe.ask import NoAnswer, ask

__all__ = ["DEADLINE", "SILENT", "gone_since", "survey"]

DEADLINE = 0.8
"""Seconds that one tool or probe gets; all run at once, so that a survey takes less than a second. One that hangs where
nothing can end it is left alone after twice as long."""

FULL = 0.995
"""Part of a file system, or of its inodes, that is in use when it counts as full, if little is left besides:"""

LITTLE = 1 << 30
"""bytes, since half a percent of a large file system is more than any job writes,"""

FEW = 10_000
"""or inodes."""

SILENT = "no answer"
"""How the detail of a probe begins that has not come to a word of its own."""

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
    """Look at this host, in less than a second; in twice ``DEADLINE`` where something hangs.

    Args:
        host: its name as the allocation spells it.
        run_dir: the run directory, whose file system is looked at.
        workers: pids of workers.
        probes_dir: every executable in it is run; exit code 0 is healthy, the first line it prints is the detail.
    """
    pids = list(workers)
    probes: list[tuple[str, Probe]] = [("memory", _memory), ("load", _load), ("links", _links)]
    probes.append(("processes", lambda name: _workers(name, pids)))
    spaces = (("shm", Path("/dev/shm")), ("tmp disk", Path("/tmp")), ("run_dir disk", run_dir))
    probes += [(name, _space(name, path)) for name, path in spaces]
    probes += [(name, _tool(name, command)) for name, command in _TOOLS if shutil.which(command[0])]
    probes += [(path.name, _own(path)) for path in _executables(probes_dir)]
    return _at_once(host, probes)


def _at_once(host: str, probes: Sequence[tuple[str, Probe]]) -> list[HostProbe]:
    """What all of them say. Their threads are daemons: one that hangs in the kernel keeps nobody from going on."""
    limit = 2 * DEADLINE
    found = [[HostProbe(host, name, True, f"{SILENT}: not within {limit:g} s")] for name, _ in probes]

    def look(place: int) -> None:
        found[place] = probes[place][1](host)

    names = [f"ezpz-probe-{name}" for name, _ in probes]
    threads = [threading.Thread(target=look, args=(n,), name=name, daemon=True) for n, name in enumerate(names)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [item for items in list(found) for item in items]


def gone_since(before: Sequence[HostProbe], now: Sequence[HostProbe]) -> list[HostProbe]:
    """What was healthy before and is not now, links that went down, and a Lustre client that has lost servers.

    What did not answer before may have been as it is now.
    """
    first = {item.probe: item.detail for item in before if item.healthy and SILENT not in item.detail}
    worse = [item for item in now if not item.healthy and item.probe in first]
    for item in now:
        was = first.get(item.probe)
        if item.probe.startswith("link ") and (was, item.detail) == ("up", "down"):
            worse.append(HostProbe(item.host, item.probe, False, "it was up when the agent started"))
        elif item.probe == _LUSTRE and was is not None and not _lost_servers(was) and _lost_servers(item.detail):
            detail = f"{item.detail}; it had all its servers when the agent started"
            worse.append(HostProbe(item.host, item.probe, False, detail))
    return worse


def _lost_servers(told: str) -> bool:
    return f": {_FAILED}" in told


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
        full = used >= FULL and found.f_bavail * found.f_frsize < LITTLE
        full = full or (inodes >= FULL and found.f_favail < FEW)
        return [HostProbe(host, name, not full, detail)]

    return probe


def _tool(name: str, command: Sequence[str]) -> Probe:
    def probe(host: str) -> list[HostProbe]:
        try:
            code, said, _ = ask(command, DEADLINE)
        except NoAnswer as why:
            answer = f"{SILENT}: {why}"
        else:
            answer = f"{_FAILED} {code}: {said.strip()}".rstrip(": ") if code else said.strip() or "none"
        return [HostProbe(host, name, True, f"{command[0]}: {answer}"[:_DETAIL])]

    return probe


def _own(path: Path) -> Probe:
    def probe(host: str) -> list[HostProbe]:
        try:
            code, said, _ = ask([str(path)], DEADLINE)
        except NoAnswer as why:
            return [HostProbe(host, path.name, True, f"{SILENT}: {why}"[:_DETAIL])]
        told = said.strip().partition("\n")[0] or "nothing said"
        return [HostProbe(host, path.name, code == 0, (f"{_FAILED} {code}: {told}" if code else told)[:_DETAIL])]

    return probe


def _executables(directory: Path | None) -> list[Path]:
    if directory is None or not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.is_file() and os.access(path, os.X_OK))
