"""Where ranks and launchers' tasks ran, as the evidence itself tells."""

from __future__ import annotations

from collections.abc import Sequence

from ezpz_elastic.decide.context import Context
from ezpz_elastic.decide.evidence import Evidence, LogMatch, WorkerExit
from ezpz_elastic.decide.hosts import HostTable

__all__ = ["host_table"]

_TELLS_PLACE = frozenset({"pals", "hydra", "openmpi", "torch", "nccl", "cuda", "places"})
"""Emitters whose lines name a rank and the very host it ran on."""
_PRINTED_BY_THE_RANK = frozenset({"cuda", "nccl", "places"})
"""Emitters whose lines are printed by the very rank they name, so that whoever is said to print them is its host."""
_LAUNCHERS = frozenset({"pals", "hydra", "openmpi"})
"""Launchers whose ranks are torchrun's agents, and no ranks of the job, where torchrun speaks in the same log."""
_NOT_IN_ORDER = "places.not-in-order"
_TASK_LIMIT = 4096
_LATER_STEPS = 2
"""Ranks may print one more step after a task's end, as their output is buffered."""


def host_table(evidence: Sequence[Evidence], context: Context) -> HostTable:
    """The attempt's hosts, with what the evidence tells of the places of ranks and tasks.

    Args:
        evidence: everything that was seen.
        context: what the classifier is told about the attempt.
    """
    told: list[tuple[int, str]] = []
    tasks: list[tuple[int, str]] = []
    elastic = any(isinstance(item, LogMatch) and item.signature.startswith("torch.elastic") for item in evidence)
    ranks = [item for item in evidence if isinstance(item, LogMatch) and item.rank is not None]
    most = max((item.rank or 0 for item in ranks if item.emitter not in _LAUNCHERS), default=0)
    launched = [(item.rank or 0, item.host) for item in ranks if item.emitter in _LAUNCHERS and item.host is not None]
    agents = elastic or _one_per_host(launched, most, context)
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
            if place is not None and not _of_an_earlier_step(item):
                tasks.extend((task, place) for task in _tasks(item))
    # more ranks than hosts, and a task number for each host at most: then a task is a host's launcher of ranks
    most = max((item.rank or 0 for item in ranks), default=0)
    per_host = most >= len(context.hosts) > max((task for task, _ in tasks), default=0)
    per_host = per_host or _one_per_host(tasks, most, context)
    ordered = not any(isinstance(item, LogMatch) and item.signature == _NOT_IN_ORDER for item in evidence)
    return HostTable(context, told, tasks, tasks_are_ranks=not elastic and not per_host, ordered=ordered)


def _one_per_host(launched: Sequence[tuple[int, str]], most: int, context: Context) -> bool:
    """Whether what a launcher counts is one process for each host, which starts the ranks of the job by itself.

    The job shows more ranks than it has hosts, the launcher not, but for a stray line or two, and of its first ones, as
    many as there are hosts, each is on a host of its own: the ranks of a job begin with several on the first host.

    Args:
        launched: a launcher's numbers, each with its host as spelled.
        most: the highest rank that the job itself shows.
        context: what is known of the attempt.
    """
    hosts = [context.key(host) or host for host in context.hosts]
    low = {(number, context.key(host) or host) for number, host in launched if number < len(hosts)}
    numbers, places = {number for number, _ in low}, {place for _, place in low}
    high = {number for number, _ in launched} - numbers
    alone = len(high) < len(hosts) and len(numbers) == len(low) == len(places)
    first = any(number > 0 and place == hosts[0] for number, place in low)
    return alone and not first and most >= len(hosts) and max(numbers, default=0) > 0


def _of_an_earlier_step(match: LogMatch) -> bool:
    """Whether Slurm tells of a task's end before the training steps of the log: its numbers are another launch's."""
    return match.emitter == "slurm" and match.step is None and (match.last_step or 0) >= _LATER_STEPS


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
