"""Reads a job's journals back into what happened, round by round. Pure apart from reading files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ezpz_elastic.faults.analysis.read import Event, event_of

__all__ = ["Journals", "Named", "Round", "rounds"]

_WAITING = frozenset({"standby", "rendezvous"})


class Named(msgspec.Struct, frozen=True):
    """A host and why it is named."""

    host: str
    provenance: str


class Round(msgspec.Struct):
    """One life of the worker group, as the journals tell it.

    Args:
        number: from 1.
        hosts: in slot order.
        world_size: workers in all.
        workers: host -> pids of its workers.
        resumed_from: step of the checkpoint it began with; ``None`` for a fresh start.
        saved: steps saved, in order.
        reached: the furthest step that was reported when it ended.
        kind, cause, reason: of the verdict.
        named: hosts that the verdict names.
        suspects: hosts that it suspects.
        action, why, exit_code: of the decision.
        retired: hosts that the decision took out.
        spans: name -> seconds; of the agents' spans the longest, but of the waiting ones slot 0's, because a spare's
            is the time it was not needed.
        losses: validation losses in the order told.
    """

    number: int
    hosts: tuple[str, ...] = ()
    world_size: int = 0
    workers: dict[str, tuple[int, ...]] = {}
    resumed_from: int | None = None
    saved: tuple[int, ...] = ()
    reached: int | None = None
    kind: str = ""
    cause: str = ""
    reason: str = ""
    named: tuple[Named, ...] = ()
    suspects: tuple[str, ...] = ()
    action: str = ""
    why: str = ""
    exit_code: int | None = None
    retired: tuple[Named, ...] = ()
    spans: dict[str, float] = {}
    losses: tuple[float, ...] = ()


class Journals:
    """Follows every journal of a run directory.

    Args:
        directory: the run directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "journal"
        self._offsets: dict[Path, int] = {}
        self.events: list[Event] = []

    def poll(self) -> list[Event]:
        """What is new since the last look, whole lines only."""
        found: list[Event] = []
        for path in sorted(self._directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            complete = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(complete)
            found += (event_of(msgspec.json.decode(line, type=dict[str, Any])) for line in complete.splitlines())
        self.events += found
        return found


def rounds(events: Iterable[Event]) -> tuple[Round, ...]:
    """Put the events of all hosts together.

    Args:
        events: of all journals; only the order within one journal matters.
    """
    told: dict[int, Round] = {}
    events = list(events)
    for event in events:
        _take(told.setdefault(event.round, Round(event.round)), event)
    for event in events:
        if event.name == "span":
            _take_span(told[event.round], event)
    return tuple(told[number] for number in sorted(told) if told[number].hosts)


def _take(life: Round, event: Event) -> None:
    fields = event.fields
    match event.name:
        case "round_committed":
            life.hosts, life.world_size = tuple(fields["roster"]), fields["world_size"]
        case "worker_started":
            pids = (*life.workers.get(event.host, ()), fields["pid"])
            life.workers = {**life.workers, event.host: pids}
        case "checkpoint_restored":
            life.resumed_from = fields["step"]
        case "checkpoint_saved":
            life.saved = (*life.saved, fields["step"])
        case "report":
            life.reached = max((s for s in (life.reached, fields.get("step")) if s is not None), default=None)
        case "progress":
            if "validation_loss" in fields:
                life.losses = (*life.losses, fields["validation_loss"])
        case "verdict":
            life.kind, life.cause, life.reason = fields["kind"], fields["cause"], fields["reason"]
            life.named = tuple(Named(item["name"], item["provenance"]) for item in fields["hosts"])
            life.suspects = tuple(item["name"] for item in fields["suspects"])
        case "decision":
            life.action, life.why, life.exit_code = fields["action"], fields["reason"], fields["exit_code"]
        case "host_retired":
            life.retired = (*life.retired, Named(fields["retired"], fields["provenance"]))
        case _:
            return


def _take_span(life: Round, event: Event) -> None:
    name, seconds = event.fields["name"], float(event.fields["seconds"])
    if name in _WAITING and event.host != (life.hosts[0] if life.hosts else ""):
        return
    life.spans = {**life.spans, name: max(seconds, life.spans.get(name, 0.0))}
