"""Where ranks and launchers' tasks ran, as the evidence itself tells."""

from __future__ import annotations

from collections.abc import Sequence

from ezpz_elastic.decide.context import Context
from ezpz_elastic.decide.evidence import Evidence, LogMatch, WorkerExit
from ezpz_elastic.decide.hosts import HostTable

__all__ = ["host_table"]

_TELLS_PLACE = frozenset({"pals", "hydra", "openmpi", "torch", "nccl", "cuda"})
"""Emitters whose lines name a rank and the very host it ran on."""
_PRINTED_BY_THE_RANK = frozenset({"cuda", "nccl"})
"""Emitters whose lines are printed by the very rank they name, so that whoever is said to print them is its host."""
_LAUNCHERS = frozenset({"pals", "hydra", "openmpi"})
"""Launchers whose ranks are torchrun's agents, and no ranks of the job, where torchrun speaks in the same log."""
_TASK_LIMIT = 4096


def host_table(evidence: Sequence[Evidence], context: Context) -> HostTable:
    """The attempt's hosts, with what the evidence tells of the places of ranks and tasks.

    Args:
        evidence: everything that was seen.
        context: what the classifier is told about the attempt.
    """
    told: list[tuple[int, str]] = []
    tasks: list[tuple[int, str]] = []
    elastic = any(isinstance(item, LogMatch) and item.signature.startswith("torch.elastic") for item in evidence)
    agents = elastic or _launched_per_host(evidence, context)
    for item in evidence:
        if isinstance(item, WorkerExit):
            told.append((item.rank, item.host))
        elif isinstance(item, LogMatch):
            counts = item.emitter in _TELLS_PLACE and not (agents and item.emitter in _LAUNCHERS)
            place = item.host if counts else item.reporter
            if place is None and item.emitter in _PRINTED_BY_THE_RANK:
                place = item.reporter
            if item.rank is not None and place is not None and not (agents and item.emitter in _LAUNCHERS):
                told.append((item.rank, place))
            place = item.host if item.emitter == "slurm" else item.reporter
            if place is not None:
                tasks.extend((task, place) for task in _tasks(item))
    ranks = [item.rank for item in evidence if isinstance(item, LogMatch) and item.rank is not None]
    # more ranks than hosts, and a task number for each host at most: then a task is a host's launcher of ranks
    per_host = max(ranks, default=0) >= len(context.hosts) > max((task for task, _ in tasks), default=0)
    return HostTable(context, told, tasks, tasks_are_ranks=not elastic and not per_host)


def _launched_per_host(evidence: Sequence[Evidence], context: Context) -> bool:
    """Whether a launcher's ranks are one process for each host, which starts the ranks of the job by itself.

    The job shows more ranks than it has hosts, the launcher no more than hosts, and each of those on a host of its own.
    """
    order = {context.key(host): at for at, host in enumerate(context.hosts)}
    launched: set[tuple[int, str]] = set()
    most = 0
    for item in evidence:
        if not isinstance(item, LogMatch) or item.rank is None:
            continue
        if item.emitter not in _LAUNCHERS:
            most = max(most, item.rank)
        elif item.host is not None:
            launched.add((item.rank, context.key(item.host) or item.host))
    ranks, hosts = {rank for rank, _ in launched}, {host for _, host in launched}
    alone = len(ranks) == len(launched) == len(hosts)
    first = any(rank > 0 and order.get(host) == 0 for rank, host in launched)
    return alone and not first and most >= len(context.hosts) > max(ranks, default=0) > 0


def _tasks(match: LogMatch) -> list[int]:
    """All task numbers a line is about: ``4-7`` and ``1,3,5`` are written out."""
    if not match.tasks:
        return [] if match.task is None else [match.task]
    written: list[int] = []
    for piece in match.tasks.split(","):
        low, _, high = piece.partition("-")
        if low.isdigit() and (high.isdigit() or not high):
            written.extend(range(int(low), int(high or low) + 1)[:_TASK_LIMIT])
    return written
