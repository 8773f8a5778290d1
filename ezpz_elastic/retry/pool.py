"""The allocation's hosts, split into those that hold a slot and those that stand by. Pure but for reading the lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from ezpz_elastic.errors import UsageError
from ezpz_elastic.hostorder import expand_nodelist
from ezpz_elastic.machines import Machine
from rendezvous.records import Decision

__all__ = ["Pool", "read_allocation"]


class Pool(msgspec.Struct, frozen=True):
    """Who is where.

    Args:
        active: the hosts that hold the slots, in slot order, as the allocation spells them.
        spares: hosts that stand by, in the order they would be admitted.
    """

    active: tuple[str, ...]
    spares: tuple[str, ...] = ()

    @staticmethod
    def split(hosts: tuple[str, ...], nhosts: int, spares: int | None) -> Pool:
        """The first ``nhosts`` hold slots, the next ``spares`` stand by; the rest are left alone.

        Args:
            hosts: the allocation, each host once.
            nhosts: how many the job needs.
            spares: how many stand by; ``None``: all that are left.

        Raises:
            UsageError: there are not so many.
        """
        if len(hosts) < nhosts:
            have = f"{len(hosts)} host{'' if len(hosts) == 1 else 's'}"
            raise UsageError(f"--nhosts {nhosts}, and the allocation has {have}", expected=f"at least {nhosts}")
        left = len(hosts) - nhosts
        if spares is not None and spares > left:
            raise UsageError(
                f"--spares {spares}, and {left} of {len(hosts)} hosts are left beside --nhosts {nhosts}",
                expected=f"auto, or at most {left}",
            )
        end = len(hosts) if spares is None else nhosts + spares
        return Pool(hosts[:nhosts], hosts[nhosts:end])

    def after(self, decision: Decision) -> Pool:
        """The pool once a decision is carried out: a spare inherits the slot it fills, who is benched queues up last.

        Args:
            decision: its retired hosts are hosts of ``active``.

        Raises:
            ValueError: it takes out more hosts than there are spares; the policy decides no such restart.
        """
        out = {retirement.host for retirement in decision.retired}
        queue = list(self.spares)
        if len(out & set(self.active)) > len(queue):
            raise ValueError(f"{len(out)} hosts leave and {len(queue)} stand by")
        active = tuple(queue.pop(0) if host in out else host for host in self.active)
        benched = [retirement.host for retirement in decision.retired if retirement.benched]
        return Pool(active, (*queue, *benched))


def read_allocation(hostfile: Path | None, environ: Mapping[str, str], machine: Machine) -> tuple[str, ...]:
    """The allocation's hosts in order, each once however it is spelled.

    Args:
        hostfile: from the command line; comes first.
        environ: then ``PBS_NODEFILE``, then ``SLURM_JOB_NODELIST``.
        machine: knows which spellings mean the same host.

    Raises:
        UsageError: there is no list, or it cannot be read, or it names nobody.
    """
    nodefile = environ.get("PBS_NODEFILE", "")
    if hostfile is not None:
        hosts = machine.read_hostfile(_read(hostfile, "--hostfile"))
        where = str(hostfile)
    elif nodefile:
        hosts = machine.read_hostfile(_read(Path(nodefile), "PBS_NODEFILE"))
        where = nodefile
    elif nodelist := environ.get("SLURM_JOB_NODELIST", ""):
        hosts = expand_nodelist(nodelist)
        where = f"SLURM_JOB_NODELIST={nodelist}"
    else:
        raise UsageError(
            "no allocation: neither --hostfile nor PBS_NODEFILE nor SLURM_JOB_NODELIST is there",
            expected="a list of hosts",
            hint="--hostfile FILE, one host a line",
        )
    if not hosts:
        raise UsageError(f"{where} names no host", expected="one host a line")
    return _each_once(hosts, machine)


def _each_once(hosts: Iterable[str], machine: Machine) -> tuple[str, ...]:
    seen: dict[str, str] = {}
    for host in hosts:
        seen.setdefault(machine.key(host) or host.lower(), host)
    return tuple(seen.values())


def _read(path: Path, named: str) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{named} {path}: {error.strerror}", expected="a file of host names") from error
