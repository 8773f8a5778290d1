"""Reads what a run left, strictly: a line that is no event is an error, not a gap."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from ezpz_elastic.errors import UsageError

__all__ = ["BadNode", "Event", "Malformed", "Record", "RunFiles", "event_of", "read_events", "read_run"]

_BAD_NODE = re.compile(r"(\S+)  (\S+)  attempt=(\d+)")


class Malformed(ValueError):
    """A line is not what the agent writes; the message names file and line."""


class Event(msgspec.Struct, frozen=True):
    """One line of a host's journal.

    Args:
        ts: UTC seconds, by that host's clock.
        host: whose journal it is.
        run_id: the run.
        round: the round it belongs to; 0 before the first.
        name: the event.
        fields: the event's own fields.
        line: its place in that host's journal, from 0.
    """

    ts: float
    host: str
    run_id: str
    round: int
    name: str
    fields: dict[str, Any]
    line: int = 0


class Record(msgspec.Struct, frozen=True):
    """One line that a worker wrote for the journal, read where the worker left it.

    A journal lacks the last lines of a host that died with its agent; the worker's own file does not.

    Args:
        round, rank: whose it is.
        name: the event.
        fields: the event's own fields.
    """

    round: int
    rank: int
    name: str
    fields: dict[str, Any]


class BadNode(msgspec.Struct, frozen=True):
    """One line of ``bad_nodes.txt``."""

    host: str
    provenance: str
    attempt: int


class RunFiles(msgspec.Struct, frozen=True):
    """All that is judged.

    Args:
        events: of all journals, in order of time.
        records: of all workers, by round and rank, each worker's in its own order.
        bad_nodes: in order.
    """

    events: tuple[Event, ...]
    records: tuple[Record, ...] = ()
    bad_nodes: tuple[BadNode, ...] = ()


class _Line(msgspec.Struct):
    ts: float
    host: str
    run_id: str
    round: int
    event: str


def read_run(run_dir: Path) -> RunFiles:
    """Read a run directory.

    Raises:
        UsageError: it has no journal.
        Malformed: a line is not what the agent or a worker writes.
    """
    events = read_events(run_dir)
    return RunFiles(events, _records(run_dir), _bad_nodes(run_dir / "bad_nodes.txt"))


def read_events(run_dir: Path) -> tuple[Event, ...]:
    """Read all journals of a run directory, in order of time, each host's own order kept.

    Raises:
        UsageError: there is no journal.
        Malformed: a line is no event.
    """
    paths = sorted((run_dir / "journal").glob("*.jsonl"))
    if not paths:
        raise UsageError(f"{run_dir} has no journal", expected="a run directory with journal/<host>.jsonl")
    found: list[Event] = []
    for path in paths:
        for number, line in enumerate(_lines(path)):
            fields = _object(path, number, line)
            try:
                found.append(event_of(fields, number))
            except msgspec.ValidationError as error:
                raise Malformed(f"{path}:{number + 1} is no event: {error}") from error
    # Python's sort is stable, so that equal times keep a host's own order.
    return tuple(sorted(found, key=lambda event: event.ts))


def event_of(fields: dict[str, Any], line: int = 0) -> Event:
    """The event that a decoded line of a journal is; takes the common fields out of what it is given.

    Raises:
        msgspec.ValidationError: it is none.
    """
    common = msgspec.convert({name: fields.pop(name, None) for name in _Line.__struct_fields__}, _Line)
    return Event(common.ts, common.host, common.run_id, common.round, common.event, fields, line)


def _records(run_dir: Path) -> tuple[Record, ...]:
    found = []
    for path in (run_dir / "rounds").glob("*/*/events.jsonl"):
        rank, number = path.parent.name, path.parent.parent.name
        if not (rank.isdigit() and number.isdigit()):
            continue
        for index, line in enumerate(_lines(path)):
            fields = _object(path, index, line)
            name = fields.pop("event", None)
            if not isinstance(name, str):
                raise Malformed(f"{path}:{index + 1} is no event")
            found.append(Record(int(number), int(rank), name, fields))
    return tuple(sorted(found, key=lambda record: (record.round, record.rank)))


def _bad_nodes(path: Path) -> tuple[BadNode, ...]:
    if not path.exists():
        return ()
    found = []
    for number, line in enumerate(path.read_text().splitlines()):
        matched = _BAD_NODE.fullmatch(line)
        if matched is None:
            raise Malformed(f"{path}:{number + 1} is not `host  provenance  attempt=N`: {line[:200]!r}")
        found.append(BadNode(matched[1], matched[2], int(matched[3])))
    return tuple(found)


def _lines(path: Path) -> list[bytes]:
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        raise Malformed(f"{path}: the last line has no end")
    return data.split(b"\n")[:-1]


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"{path}:{number + 1} is no JSON object: {error}") from error
