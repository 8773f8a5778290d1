"""What ``classify`` and ``scrape`` share: reading hosts and durations, writing verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ezpz_elastic.decide.verdict import EvidenceLine, Verdict
from ezpz_elastic.errors import UsageError
from ezpz_elastic.machines import find_machine
from ezpz_elastic.observe.text import readable

__all__ = ["as_json", "as_text", "read_hosts", "seconds"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float | None:
    """``4h``, ``90m``, ``30s``, ``1:30:00`` or plain seconds; ``None`` for ``unknown``.

    Raises:
        UsageError: it is none of these.
    """
    if text.strip().lower() in {"", "unknown"}:
        return None
    unit = _UNITS.get(text[-1])
    try:
        parts = [float(part) for part in (text if unit is None else text[:-1]).split(":")]
    except ValueError:
        parts = [math.nan]
    total = 0.0
    for part in parts:
        total = total * 60 + (part if part >= 0 else math.nan)
    total *= unit or 1.0
    if not total < math.inf:
        raise UsageError(f"{text!r} is no duration", expected="4h, 90m, 30s, 1:30:00, 0 or unknown")
    return total


def read_hosts(hostfile: Path | None, listed: str, machine: str) -> tuple[str, ...]:
    """The attempt's hosts, from a hostfile or a list separated by commas.

    Raises:
        UsageError: both were given, or the hostfile cannot be read or names no host.
    """
    if hostfile is None:
        return tuple(dict.fromkeys(name for name in listed.replace(",", " ").split() if name))
    if listed:
        raise UsageError("--hostfile and --hosts were both given", expected="one of them")
    try:
        text = hostfile.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{hostfile} cannot be read: {error.strerror}", expected="a hostfile") from error
    hosts = find_machine(machine)[0].read_hostfile(text)
    if not hosts:
        raise UsageError(f"{hostfile} names no host", expected="one host a line")
    return hosts


def as_json(log: Path, verdict: Verdict) -> str:
    """One line of JSON: the verdict's fields, and the log it is about."""
    return msgspec.json.encode({"log": readable(log), **msgspec.to_builtins(verdict)}).decode()


def as_text(log: Path | None, verdict: Verdict, *, explain: bool) -> str:
    """For people: kind, cause, hosts and reason; with the lines on both sides if asked to explain."""
    return "\n".join(_lines(log, verdict, explain=explain))


def _lines(log: Path | None, verdict: Verdict, *, explain: bool) -> Iterator[str]:
    if log is not None:
        yield f"{readable(log)}:"
    yield f"{verdict.kind.value} ({verdict.cause.value})" + ("" if verdict.certain else ", doubtful")
    for host in verdict.hosts:
        yield f"  bad host  {host.name}  {host.provenance.value}"
    for suspect in verdict.suspects:
        yield f"  suspect   {suspect.name}  {suspect.weight:.2f}  {suspect.why}"
    yield f"  {verdict.reason}"
    if verdict.step is not None:
        yield f"  last step {verdict.step}"
    if verdict.note:
        yield f"  note: {verdict.note}"
    if explain:
        yield from _told("because of", verdict.evidence)
        yield from _told("set aside", verdict.set_aside)


def _told(title: str, lines: tuple[EvidenceLine, ...]) -> Iterator[str]:
    if lines:
        yield f"  {title}:"
    for line in lines:
        place = f"{line.line}: " if line.line else ""
        yield f"    {place}{line.text}"
        yield f"      {line.why}"
