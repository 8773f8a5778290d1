"""Where the time of a recovery went: the spans of each host add up to its outage. Pure.

Each host is looked at by its own clock alone. Its outage begins where its agent begins to stop the old workers, and
ends when the worker that it started last has made the first step of the next round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec

from ezpz_elastic.faults.analysis.read import Event
from ezpz_elastic.faults.analysis.story import Finding, Story

__all__ = ["AGENT", "SLACK", "UNEXPLAINED", "WORKER", "Outage", "outages", "sums"]

AGENT = ("stop", "rendezvous", "spawn")
WORKER = ("import", "init_process_group", "build", "load", "first_step")
"""What an outage consists of, in order. A worker's spans are those that tell ``rank`` and ``at``."""

SLACK = 0.1
"""Seconds by which the parts may be more than the whole: a worker begins its first span a moment before its agent ends
the last one."""

UNEXPLAINED = (1.0, 0.25)
"""How much of an outage no span may account for: seconds, and in addition a share of it. Between two spans a process
waits for a processor, which on a busy machine takes what it takes."""


class Outage(msgspec.Struct, frozen=True):
    """One host between two rounds.

    Args:
        round: the round it went on in.
        host: which.
        seconds: from the first stop to the first step.
        spans: name -> seconds, in order.
    """

    round: int
    host: str
    seconds: float
    spans: dict[str, float]

    @property
    def unexplained(self) -> float:
        """Seconds that no span accounts for."""
        return self.seconds - sum(self.spans.values())


def outages(story: Story, events: Iterable[Event]) -> list[Outage]:
    """Every host that took part in two rounds in a row and came to a step in the second.

    Args:
        story: the rounds.
        events: of all journals. Only those rounds are looked at whose workers tell their spans.
    """
    spans: dict[tuple[int, str], list[Event]] = {}
    for event in events:
        if event.name == "span":
            spans.setdefault((event.round, event.host), []).append(event)
    found = []
    for before, after in pairwise([life for life in story.lives if life.rosters]):
        for host in after.roster:
            if host in before.roster and before.number + 1 == after.number:
                outage = _outage(
                    after.number, host, spans.get((before.number, host), []), spans.get((after.number, host), [])
                )
                found += [outage] if outage is not None else []
    return found


def _outage(number: int, host: str, before: list[Event], after: list[Event]) -> Outage | None:
    stop = next((event for event in before if event.fields["name"] == "stop"), None)
    ranks = [event.fields["rank"] for event in after if "at" in event.fields]
    if stop is None or not ranks:
        return None
    # The one that was started last: the others import while the agent still spawns.
    own = [event.fields for event in after if event.fields.get("rank") == max(ranks)]
    last = next((fields for fields in own if fields["name"] == WORKER[-1]), None)
    if last is None:
        return None
    parts: dict[str, Any] = {"stop": stop.fields["seconds"]}
    agent = {event.fields["name"]: event.fields["seconds"] for event in after if "rank" not in event.fields}
    parts |= {name: agent[name] for name in AGENT[1:] if name in agent}
    parts |= {fields["name"]: fields["seconds"] for fields in own}
    return Outage(number, host, last["at"] - (stop.ts - stop.fields["seconds"]), parts)


def sums(found: Iterable[Outage]) -> Iterator[Finding]:
    """Every part is there, no time is told twice, and little of it by nobody."""
    for outage in found:
        missing = [name for name in (*AGENT, *WORKER) if name not in outage.spans]
        if missing:
            yield Finding("spans", f"{outage.host} tells no {', '.join(missing)}", outage.round)
        out, rest = f"{outage.host} was out for {outage.seconds:.2f} s", outage.unexplained
        if rest < -SLACK:
            yield Finding("spans", f"{out} and tells of {-rest:.2f} s more", outage.round)
        if rest > UNEXPLAINED[0] + UNEXPLAINED[1] * outage.seconds:
            yield Finding("spans", f"{out} and tells nothing of {rest:.2f} s", outage.round)
