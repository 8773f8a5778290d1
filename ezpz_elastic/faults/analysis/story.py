"""A run's events put together by round. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ezpz_elastic.faults.analysis.read import Event

__all__ = ["Finding", "Life", "Retired", "Story", "told"]


class Finding(msgspec.Struct, frozen=True):
    """Something that should not be.

    Args:
        check: which of the checks found it.
        text: one sentence.
        round: where; 0 if it is the whole run's matter.
    """

    check: str
    text: str
    round: int = 0


class Retired(msgspec.Struct, frozen=True):
    """A host that a decision took out of its slot.

    Args:
        host, provenance, reason: as in the journal.
        benched: it stands by again.
    """

    host: str
    provenance: str
    reason: str
    benched: bool


class Life(msgspec.Struct, frozen=True):
    """One round.

    Args:
        number: from 1.
        rosters: what was committed, hosts in slot order; one, if all is well, none if it never began.
        verdicts, decisions: fields of the events; one of each at most, if all is well.
        retired: who left by its decision.
        started: host -> ranks of the workers it started.
        exited: fields of its workers' ends, each with ``host`` and ``ts``.
        durable: the highest step of a complete checkpoint made in it; ``None`` without any.
    """

    number: int
    rosters: tuple[tuple[str, ...], ...] = ()
    verdicts: tuple[dict[str, Any], ...] = ()
    decisions: tuple[dict[str, Any], ...] = ()
    retired: tuple[Retired, ...] = ()
    started: dict[str, tuple[int, ...]] = {}
    exited: tuple[dict[str, Any], ...] = ()
    durable: int | None = None

    @property
    def roster(self) -> tuple[str, ...]:
        """The hosts in slot order; empty if the round never began."""
        return self.rosters[0] if self.rosters else ()

    @property
    def lost(self) -> tuple[str, ...]:
        """Hosts that were gone when it was decided."""
        return tuple(self.decisions[0].get("lost", ())) if self.decisions else ()

    def out(self) -> set[str]:
        """Hosts that lost their slot by its decision."""
        return {item.host for item in self.retired}


class Story(msgspec.Struct, frozen=True):
    """All rounds of a run.

    Args:
        lives: in order.
        readmitted: host and the round whose retirement a person took back.
    """

    lives: tuple[Life, ...]
    readmitted: frozenset[tuple[str, int]] = frozenset()

    def retired_before(self, number: int) -> dict[str, int]:
        """Hosts that are out of the job for good when a round begins -> the round that retired them."""
        return {
            item.host: life.number
            for life in self.lives
            if life.number < number
            for item in life.retired
            if not item.benched and (item.host, life.number) not in self.readmitted
        }


def told(events: Iterable[Event]) -> Story:
    """Put the events of all hosts together.

    Args:
        events: of all journals; only the order within one journal matters.
    """
    lives: dict[int, Life] = {}
    readmitted = set()
    for event in events:
        if event.name == "host_readmitted":
            readmitted.add((str(event.fields.get("readmitted")), event.round))
            continue
        life = lives.get(event.round, Life(event.round))
        # A host that stands by tells of its waiting under the number of a round that may never come.
        if changes := _changes(life, event):
            lives[event.round] = msgspec.structs.replace(life, **changes)
    return Story(tuple(lives[number] for number in sorted(lives)), frozenset(readmitted))


def _changes(life: Life, event: Event) -> dict[str, Any]:  # noqa: PLR0911  # one answer per event
    fields = event.fields
    match event.name:
        case "round_committed":
            return {"rosters": _with(life.rosters, tuple(fields["roster"]))}
        case "verdict":
            return {"verdicts": _with(life.verdicts, fields)}
        case "decision":
            return {"decisions": _with(life.decisions, fields)}
        case "host_retired":
            item = Retired(fields["retired"], fields["provenance"], fields["reason"], fields["benched"])
            return {"retired": (*life.retired, item)}
        case "worker_started":
            ranks = (*life.started.get(event.host, ()), fields["rank"])
            return {"started": {**life.started, event.host: ranks}}
        case "worker_exited":
            return {"exited": (*life.exited, {**fields, "host": event.host, "ts": event.ts})}
        case "checkpoint_saved":
            return {"durable": max(fields["step"], life.durable or 0)}
        case "progress" if fields.get("durable_step") is not None:
            return {"durable": max(fields["durable_step"], life.durable or 0)}
        case _:
            return {}


def _with(known: tuple[Any, ...], item: Any) -> tuple[Any, ...]:
    # Told twice in the same words is told once.
    return known if item in known else (*known, item)
