"""What was trained: every sample once per committed step, and replicas that are equal. Pure.

It needs what a trainer tells beside the usual (``checkpoint.facts.tell``): ``step_trained`` on every rank after each
step (``step``, ``rank``, ``world_size``, ``replica``, ``serials`` = first and one past the last sample, ``params`` = a
sum of all parameters) and ``state_restored`` on every rank after a restore (``step``, ``rank``, ``params``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ezpz_elastic.faults.analysis.read import Record
from ezpz_elastic.faults.analysis.story import Finding

__all__ = ["committed", "replicas", "samples"]

_Steps = dict[int, dict[int, list[dict[str, Any]]]]


def _trained(records: Iterable[Record]) -> _Steps:
    """round -> step -> what each rank told."""
    found: _Steps = {}
    for record in records:
        if record.name == "step_trained":
            found.setdefault(record.round, {}).setdefault(record.fields["step"], []).append(record.fields)
    return found


def committed(records: Iterable[Record]) -> dict[int, int]:
    """Step -> the round whose result the job went on with.

    A round goes on from the step it restored; what rounds before it had made beyond that is lost.
    """
    records = list(records)
    restored = {r.round: r.fields["step"] for r in records if r.name == "state_restored"}
    found: dict[int, int] = {}
    for number, steps in sorted(_trained(records).items()):
        start = restored.get(number, 0)
        found = {step: made for step, made in found.items() if step <= start}
        found |= dict.fromkeys(steps, number)
    return found


def samples(records: Iterable[Record]) -> Iterator[Finding]:
    """Each sample was seen exactly once in the steps that count."""
    records = list(records)
    made, by_round = committed(records), _trained(records)
    if not made:
        yield Finding("samples", "no step was ever trained")
        return
    # The first life may have gone on from another job's checkpoint.
    began = [r.fields["step"] for r in records if r.name == "state_restored" and r.round == min(by_round)]
    start = min(began, default=0)
    missing = sorted(set(range(start + 1, max(made) + 1)) - made.keys())
    if missing:
        yield Finding("samples", f"steps {missing} are missing")
    position: int | None = None
    for step in sorted(made):
        number = made[step]
        told = by_round[number][step]
        ranks = sorted(item["rank"] for item in told)
        if ranks != list(range(told[0]["world_size"])):
            yield Finding("samples", f"step {step} was told by ranks {ranks} of {told[0]['world_size']}", number)
        parts = sorted({(item["replica"], *item["serials"]) for item in told})
        if len({part[0] for part in parts}) != len(parts):
            yield Finding("samples", f"ranks of one replica saw different samples in step {step}: {parts}", number)
        begin = parts[0][1] if position is None else position
        for _, first, end in parts:
            if first != begin:
                yield Finding("samples", f"step {step} goes from sample {begin} to {first}", number)
            begin = end
        position = begin
    yield from _redone(by_round, made)


def _redone(by_round: _Steps, made: dict[int, int]) -> Iterator[Finding]:
    """A step that was done again saw the same samples."""
    for number, steps in by_round.items():
        for step, told in steps.items():
            if made.get(step, number) == number:
                continue
            counted = by_round[made[step]][step]
            span = (min(item["serials"][0] for item in counted), max(item["serials"][1] for item in counted))
            for item in told:
                if not span[0] <= item["serials"][0] <= item["serials"][1] <= span[1]:
                    yield Finding("samples", f"step {step} saw {item['serials']} and then {span}", number)


def replicas(records: Iterable[Record]) -> Iterator[Finding]:
    """All ranks have the same parameters after each step, and after a restore those of the step that was restored."""
    records = list(records)
    by_round = _trained(records)
    for number, steps in by_round.items():
        for step, told in steps.items():
            if len({item["params"] for item in told}) > 1:
                yield Finding("replicas", f"ranks differ after step {step}", number)
    restored: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        if record.name == "state_restored":
            restored.setdefault(record.round, []).append(record.fields)
    for number, told in sorted(restored.items()):
        if len({item["step"] for item in told}) > 1 or len({item["params"] for item in told}) > 1:
            yield Finding("replicas", "ranks restored different states", number)
            continue
        step, params = told[0]["step"], told[0]["params"]
        source = max((r for r in by_round if r < number and step in by_round[r]), default=None)
        if source is not None and params not in {item["params"] for item in by_round[source][step]}:
            yield Finding("replicas", f"what was restored is not what round {source} had after step {step}", number)
        worlds = {item["world_size"] for item in next(iter(by_round.get(number, {}).values()), ())}
        if worlds and len(told) != max(worlds):
            yield Finding("replicas", f"{len(told)} of {max(worlds)} ranks told what they restored", number)
