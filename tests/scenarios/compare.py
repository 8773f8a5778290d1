"""Whether two runs are the same, and in which way they are not. Pure, and closed: what cannot be compared has failed.

Three questions: ``identical`` (every bit of every rank), ``alike`` (the whole model and batch within a relative L2
distance, for runs of different numbers of ranks), and before both of them ``sound`` (a run by itself).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch

from scenarios.dumps import Dump, Key, Metric, digest

__all__ = ["KINDS", "METRICS", "PER_RANK", "TOLERANCE", "alike", "identical", "sound"]

KINDS = ("grad.", "param.", "optim.", "act.")
"""Every dump has tensors of each kind."""

METRICS = frozenset(
    {"loss", "lr", "next_lr", "grad_norm", "norm_average", "position", "rng", "stream", "optimizer_steps"}
)
"""Every dump has exactly these."""

PER_RANK = frozenset({"stream"})
"""Metrics that belong to a rank, so that runs of different numbers of ranks cannot share them."""

TOLERANCE = 1e-5
"""Relative L2 distance of runs that add up the same numbers in another order."""

Dumps = Mapping[Key, Dump]


def identical(baseline: Dumps, target: Dumps, steps: range) -> list[str]:
    """Complaints where the runs differ in any bit of any rank; empty if they do not.

    Args:
        baseline, target: all dumps of a run.
        steps: the steps that the target must have, neither more nor fewer, and the baseline at least.
    """
    complaints = [*_both_sound(baseline, target, steps)]
    if complaints:
        return complaints
    one, other = _committed(baseline), _committed(target)
    for step in steps:
        if one[step].keys() != other[step].keys():
            complaints.append(f"step {step}: ranks {sorted(one[step])} and {sorted(other[step])}")
            continue
        for rank in sorted(one[step]):
            where = f"step {step} rank {rank}"
            complaints += _same_rows(where, one[step][rank], other[step][rank])
            complaints += _same_tensors(where, one[step][rank].tensors, other[step][rank].tensors)
            complaints += _same_metrics(where, one[step][rank].metrics, other[step][rank].metrics)
    return complaints


def alike(baseline: Dumps, target: Dumps, steps: range, tolerance: float = TOLERANCE) -> list[str]:
    """Complaints where the runs as a whole are further apart than rounding explains.

    Args:
        baseline, target, steps: as for ``identical``; the numbers of ranks may differ.
        tolerance: relative L2 distance allowed for a tensor, relative difference for a metric that is computed.
    """
    complaints = [*_both_sound(baseline, target, steps)]
    if complaints:
        return complaints
    one, other = _committed(baseline), _committed(target)
    for step in steps:
        mine, faults = _whole(f"step {step} of the baseline", one[step])
        yours, more = _whole(f"step {step} of the target", other[step])
        complaints += [*faults, *more]
        if not faults and not more:
            complaints += _near_tensors(f"step {step}", mine.tensors, yours.tensors, tolerance)
            complaints += _near_metrics(f"step {step}", mine.metrics, yours.metrics, tolerance)
    return complaints


def sound(name: str, dumps: Dumps, steps: range, exactly: bool = True) -> Iterator[str]:
    """What is wrong with one run by itself.

    Args:
        name: what to call it.
        dumps: all of its dumps.
        steps: what it must have.
        exactly: whether other steps are a fault.
    """
    if not dumps or not steps:
        yield f"the {name} is empty"
        return
    committed = _committed(dumps)
    missing = sorted(set(steps) - committed.keys())
    extra = sorted(committed.keys() - set(steps))
    if missing:
        yield f"the {name} has no step {missing}"
    if extra and exactly:
        yield f"the {name} has step {extra}, which nobody expected"
    for step in sorted(committed.keys() & set(steps)):
        ranks = sorted(committed[step])
        if ranks != list(range(len(ranks))):
            yield f"step {step} of the {name} has ranks {ranks} only"
        for rank in ranks:
            yield from _sound_dump(f"step {step} rank {rank} of the {name}", committed[step][rank])


def _both_sound(baseline: Dumps, target: Dumps, steps: range) -> Iterator[str]:
    yield from sound("baseline", baseline, steps, exactly=False)
    yield from sound("target", target, steps)


def _committed(dumps: Dumps) -> dict[int, dict[int, Dump]]:
    """step -> rank -> dump, of the last round that made the step."""
    last: dict[int, int] = {}
    for key in dumps:
        last[key.step] = max(key.round, last.get(key.step, key.round))
    found: dict[int, dict[int, Dump]] = {}
    for key, dump in dumps.items():
        if key.round == last[key.step]:
            found.setdefault(key.step, {})[key.rank] = dump
    return found


def _sound_dump(where: str, dump: Dump) -> Iterator[str]:
    for kind in KINDS:
        if not any(name.startswith(kind) for name in dump.tensors):
            yield f"{where} has no tensor {kind}*"
    for name in sorted(dump.tensors):
        tensor = dump.tensors[name]
        if not name.startswith(KINDS):
            yield f"{where}: nobody knows what {name} is"
        if tensor.numel() == 0:
            yield f"{where}: {name} is empty"
        elif not bool(torch.isfinite(tensor).all()):
            yield f"{where}: {name} is not finite"
        if dump.sums.get(name) != digest(tensor):
            yield f"{where}: {name} is not what the trainer wrote"
    if dump.sums.keys() != dump.tensors.keys():
        yield f"{where}: sums of {sorted(dump.sums.keys() ^ dump.tensors.keys())} without a tensor, or the reverse"
    if dump.metrics.keys() != METRICS:
        yield f"{where}: metrics {sorted(dump.metrics.keys() ^ METRICS)} are missing, or not known"
    for name, value in dump.metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{where}: {name} is {value}"


def _same_rows(where: str, one: Dump, other: Dump) -> Iterator[str]:
    if one.rows != other.rows:
        yield f"{where}: rows {one.rows} and {other.rows}"


def _unmatched(where: str, one: Iterable[str], other: Iterable[str]) -> Iterator[str]:
    alone = sorted(set(one) ^ set(other))
    if alone:
        yield f"{where}: {', '.join(alone)} only on one side"


def _same_tensors(where: str, one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> Iterator[str]:
    yield from _unmatched(where, one, other)
    for name in sorted(one.keys() & other.keys()):
        mine, yours = one[name], other[name]
        if (mine.dtype, mine.shape) != (yours.dtype, yours.shape):
            yield f"{where}: {name} is {mine.dtype}{list(mine.shape)} and {yours.dtype}{list(yours.shape)}"
        elif not torch.equal(mine, yours):
            yield f"{where}: {name} differs by {float((mine - yours).abs().max()):.3g}"
        elif digest(mine) != digest(yours):
            yield f"{where}: {name} differs in the sign of a zero"


def _same_metrics(where: str, one: Mapping[str, Metric], other: Mapping[str, Metric]) -> Iterator[str]:
    for name in sorted(METRICS):
        if one[name] != other[name]:
            yield f"{where}: {name} is {one[name]} and {other[name]}"


def _whole(where: str, ranks: Mapping[int, Dump]) -> tuple[Dump, list[str]]:
    """The ranks of one step put together: activations row by row, everything else once, as all ranks have it."""
    complaints: list[str] = []
    first = ranks[0]
    parts: dict[int, Dump] = {}
    for rank, dump in sorted(ranks.items()):
        complaints += _unmatched(f"{where}, ranks 0 and {rank}", first.tensors, dump.tensors)
        complaints += [
            f"{where}: rank {rank} has another {name} than rank 0"
            for name in sorted(dump.tensors.keys() & first.tensors.keys())
            if not name.startswith("act.") and dump.sums[name] != first.sums[name]
        ]
        complaints += [
            f"{where}: rank {rank} has another {name} than rank 0"
            for name in sorted(METRICS - PER_RANK)
            if dump.metrics[name] != first.metrics[name]
        ]
        parts[dump.rows[0]] = dump  # ranks that share a layer have the same rows
    end = 0
    for start in sorted(parts):
        if start != end:
            complaints.append(f"{where}: rows {end} to {start} are missing, or there twice")
        end = parts[start].rows[1]
    if end != first.rows[2]:
        complaints.append(f"{where}: the rows end at {end} of {first.rows[2]}")
    if complaints:
        return first, complaints
    ordered = [parts[start] for start in sorted(parts)]
    tensors = {
        name: torch.cat([part.tensors[name] for part in ordered]) if name.startswith("act.") else tensor
        for name, tensor in first.tensors.items()
    }
    return Dump(tensors, {}, first.metrics, (0, end, end)), []


def _near_tensors(
    where: str, one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], tolerance: float
) -> Iterator[str]:
    yield from _unmatched(where, one, other)
    for name in sorted(one.keys() & other.keys()):
        mine, yours = one[name].double(), other[name].double()
        if mine.shape != yours.shape:
            yield f"{where}: {name} is {list(mine.shape)} and {list(yours.shape)}"
            continue
        size, distance = float(torch.linalg.vector_norm(mine)), float(torch.linalg.vector_norm(mine - yours))
        if not distance <= tolerance * size:
            yield f"{where}: {name} is {distance / size if size else math.inf:.3g} away"


def _near_metrics(
    where: str, one: Mapping[str, Metric], other: Mapping[str, Metric], tolerance: float
) -> Iterator[str]:
    for name in sorted(METRICS - PER_RANK):
        mine, yours = one[name], other[name]
        if name in {"loss", "grad_norm", "norm_average"}:
            near = isinstance(mine, float) and isinstance(yours, float) and math.isclose(mine, yours, rel_tol=tolerance)
        else:
            near = mine == yours
        if not near:
            yield f"{where}: {name} is {mine} and {yours}"
