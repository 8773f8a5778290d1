"""In which order the allocation lists its hosts; slots are filled in that order at first.

``--rdzv-conf hostfile=FILE`` comes first, then ``PBS_NODEFILE``, then ``SLURM_JOB_NODELIST``. Without any of them hosts
are taken in the order of their names, numbers compared as numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ezpz_elastic.errors import UsageError
from ezpz_elastic.machines import Machine

__all__ = ["expand_nodelist", "position"]

_LARGEST = 100_000
"""Hosts that a node list may stand for; more is a mistake in it."""


def position(host: str, machine: Machine, hostfile: str | None, environ: Mapping[str, str]) -> int | None:
    """Where a host stands in the allocation's list; ``None`` if there is no list or it is not in it.

    Args:
        host: this host, as it calls itself.
        machine: knows which spellings mean the same host.
        hostfile: from ``--rdzv-conf``.
        environ: the scheduler's variables.

    Raises:
        UsageError: the hostfile that was asked for cannot be read.
    """
    if hostfile:
        try:
            hosts = machine.read_hostfile(Path(hostfile).read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--rdzv-conf hostfile={hostfile}: {error}", expected="a file of host names") from error
    else:
        hosts = _from_scheduler(machine, environ)
    wanted = machine.key(host) or host.lower()
    keys = [machine.key(name) or name.lower() for name in hosts]
    return keys.index(wanted) if wanted in keys else None


def _from_scheduler(machine: Machine, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What the scheduler says; a list that cannot be read only costs the order."""
    nodefile = environ.get("PBS_NODEFILE", "")
    if nodefile:
        try:
            return machine.read_hostfile(Path(nodefile).read_text())
        except (OSError, UnicodeDecodeError):
            return ()
    return expand_nodelist(environ.get("SLURM_JOB_NODELIST", ""))


def expand_nodelist(text: str) -> tuple[str, ...]:
    """Hosts of a Slurm node list such as ``nid[001-003,007],login1``, in order.

    Args:
        text: the list; one that is not well formed, or stands for too many hosts, gives none.
    """
    if not re.fullmatch(r"(?:[\w.,-]|\[[\d,-]+\])*", text):
        return ()
    hosts: list[str] = []
    for item in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for piece in re.findall(r"\[[^\]]*\]|[^\[]+", item):
            choices = _numbers(piece[1:-1]) if piece.startswith("[") else [piece]
            if len(names) * len(choices) > _LARGEST:
                return ()
            names = [name + choice for name in names for choice in choices]
        hosts += names
    return tuple(dict.fromkeys(hosts))


def _numbers(text: str) -> list[str]:
    found: list[str] = []
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or int(last or first) - int(first) > _LARGEST:
            return []
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return found
