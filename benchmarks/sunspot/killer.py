"""Kills what belongs to a job on the host it runs on, sees it die, leaves a receipt. Copied to that host as one file.

    killer.py MODE MARK RECEIPT

MODE is ``rank`` (the job's training ranks), ``pals`` (the launcher's daemon), ``agent`` (our elastic agent) or ``node``
(all of these). What belongs to the job has MARK, a path of its own, in its command line; a daemon is known by its name.
All have to be this user's. Exit code 0 only if every process was seen dead and one of the kind that MODE is about was
among them: a killer that hit nothing must not look like a fault that was survived.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

DAEMONS = frozenset({"hydra_pmi_proxy", "palsd", "pals_shepherd", "shepherd"})
LAUNCHERS = frozenset({"mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpirun", "aprun"})
AGENTS = frozenset({"torchrun", "ezpz-elastic"})
WANTED = {
    "rank": frozenset({"rank"}),
    "pals": frozenset({"daemon"}),
    "agent": frozenset({"agent"}),
    "node": frozenset({"agent", "daemon", "rank"}),
}
ABOUT = {"rank": "rank", "pals": "daemon", "agent": "agent", "node": "rank"}
"""What has to be among the dead; a node's daemon may belong to root."""

PATIENCE = 10.0
"""Seconds in which a killed process has to be seen dead; the kernel needs milliseconds."""


class Process(NamedTuple):
    """What /proc says about one process."""

    pid: int
    uid: int
    command: tuple[str, ...]
    host: str | None  # NODEKILL_HOST in its environment, where one machine plays several hosts


def kind_of(command: tuple[str, ...], mark: str) -> str | None:
    """What a process of the job is; ``None`` for one that is none of its, or that must live.

    Args:
        command: its command line.
        mark: what every command line of the job has in it.
    """
    names = [word.rpartition("/")[2] for word in command]
    if names and names[0] in DAEMONS:
        return "daemon"
    if not any(mark in word for word in command) or names[0] in LAUNCHERS:
        return None
    if AGENTS & set(names[:3]):
        return None if "retry" in command[1:4] else "agent"
    return "rank" if "train.py" in names else None


def targets(processes: Iterable[Process], mode: str, mark: str, uid: int, host: str | None) -> dict[int, str]:
    """Whom to kill: pid -> what it is.

    Args:
        processes: everything that runs here.
        mode: a key of ``WANTED``.
        mark: what every command line of the job has in it.
        uid: whose processes; nobody else's are touched.
        host: the host that is played, where one machine plays several.
    """
    found = {}
    for process in processes:
        kind = kind_of(process.command, mark)
        if kind in WANTED[mode] and process.uid == uid and (host is None or process.host == host):
            found[process.pid] = kind
    return found


def running() -> Iterator[Process]:
    """Every process of this machine but this one."""
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        try:
            words = (directory / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            uid = directory.stat().st_uid
            environ = (directory / "environ").read_bytes().split(b"\0") if uid == os.getuid() else []
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or not ours to look at
        host = next((entry[14:].decode() for entry in environ if entry.startswith(b"NODEKILL_HOST=")), None)
        if words != [""]:
            yield Process(int(directory.name), uid, tuple(words), host)


def kill(victims: Mapping[int, str]) -> dict[int, bool]:
    """SIGKILL to all of them, held by pidfds so that nobody else can be hit; which were seen dead."""
    held = {}
    for pid in victims:
        try:
            held[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            continue  # it ended by itself
    for descriptor in held:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    poll = select.poll()
    for descriptor in held:
        poll.register(descriptor, select.POLLIN)
    waiting, deadline = dict(held), time.monotonic() + PATIENCE
    while waiting and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            poll.unregister(descriptor)
            del waiting[descriptor]
    return {pid: descriptor not in waiting for descriptor, pid in held.items()}


def main(words: list[str]) -> int:
    """Kill, see, and tell."""
    if len(words) != 3 or words[0] not in WANTED:
        print(f"usage: killer.py {'|'.join(WANTED)} MARK RECEIPT", file=sys.stderr)
        return 2
    mode, mark, receipt = words
    host = os.environ.get("NODEKILL_HOST")
    everything = {process.pid: process for process in running()}
    victims = targets(everything.values(), mode, mark, os.getuid(), host)
    dead = kill(victims)
    told = {
        "mode": mode,
        "host": host or socket.gethostname(),
        "time": time.time(),
        "processes": [
            {"pid": pid, "kind": victims[pid], "dead": seen, "command": " ".join(everything[pid].command)[:200]}
            for pid, seen in dead.items()
        ],
    }
    partial = Path(f"{receipt}.partial")
    partial.write_text(json.dumps(told, indent=1) + "\n")
    partial.replace(receipt)
    landed = all(dead.values()) and ABOUT[mode] in {victims[pid] for pid in dead}
    print(f"killed {sum(dead.values())} of {len(victims)} on {told['host']}: {sorted(victims.values())}")
    return 0 if landed else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
