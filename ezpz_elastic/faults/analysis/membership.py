"""Who was in the job: the invariants I1 to I5 of the design, as a run's journals show them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ezpz_elastic.faults.analysis.story import Finding, Life, Story

__all__ = ["invariants"]


def invariants(story: Story) -> Iterator[Finding]:
    """Everything that contradicts one of them."""
    if not any(life.rosters for life in story.lives):
        yield Finding("I1", "no round was ever opened")
    for life in story.lives:
        yield from _one_roster(story, life)
        yield from _one_decision(story, life)
        yield from _obeyed(life)
    begun = [life for life in story.lives if life.rosters]
    for before, after in pairwise(begun):
        yield from _slots(before, after, _left(story, before, after))


def _left(story: Story, before: Life, after: Life) -> set[str]:
    """Hosts that lost their slot between two rounds, by the decisions of the rounds that never began too."""
    return {
        host
        for life in story.lives
        if before.number <= life.number < after.number
        for host in (*life.out(), *life.lost)
    }


def _one_roster(story: Story, life: Life) -> Iterator[Finding]:
    if len(life.rosters) > 1:
        yield Finding("I1", f"{len(life.rosters)} rosters were committed: {life.rosters}", life.number)
    for roster in life.rosters:
        twice = sorted({host for host in roster if roster.count(host) > 1})
        if twice:
            yield Finding("I1", f"{', '.join(twice)} holds more than one slot", life.number)
        for host, number in story.retired_before(life.number).items():
            if host in roster:
                yield Finding("I3", f"{host} holds a slot and was retired in round {number}", life.number)


def _one_decision(story: Story, life: Life) -> Iterator[Finding]:
    last = life is story.lives[-1]
    if len(life.decisions) > 1:
        yield Finding("I2", f"{len(life.decisions)} decisions were committed", life.number)
    if not life.decisions and not last:
        yield Finding("I2", "the round ended without a decision", life.number)
    if any(decision["action"] != "restart" for decision in life.decisions) and not last:
        yield Finding("I2", f"the job went on after the decision to {life.decisions[0]['action']}", life.number)


def _obeyed(life: Life) -> Iterator[Finding]:
    """Workers were started by the hosts of the roster and by nobody else, with the ranks that the slots give."""
    for host in life.started.keys() - set(life.roster):
        yield Finding("I2", f"{host} started workers without a slot", life.number)
    first = 0
    for slot, host in enumerate(life.roster):
        ranks = life.started.get(host)
        if ranks is None:
            if host not in life.lost and not life.out():
                yield Finding("I2", f"{host} holds slot {slot} and started no worker", life.number)
            return  # without its number of workers nobody can tell the ranks of those behind it
        if sorted(ranks) != list(range(first, first + len(ranks))):
            yield Finding("I5", f"{host} in slot {slot} started ranks {sorted(ranks)}, not {first} and up", life.number)
        first += len(ranks)


def _slots(before: Life, after: Life, left: set[str]) -> Iterator[Finding]:
    old, new = before.roster, after.roster
    stayed = [host for host in old if host in new and host not in left]
    for host in stayed:
        slot, now = old.index(host), new.index(host)
        # Where no spare is left the holes are closed from the top.
        if slot != now and slot < len(new):
            yield Finding("I5", f"{host} kept its place in the job and moved from slot {slot} to {now}", after.number)
    for slot, host in enumerate(new):
        if host not in stayed and slot < len(old) and old[slot] not in left:
            yield Finding("I4", f"{host} was put into slot {slot}, which no decision had emptied", after.number)
    for host in old:
        if host not in new and host not in left:
            yield Finding("I4", f"{host} is gone from the roster and no decision took it out", after.number)
