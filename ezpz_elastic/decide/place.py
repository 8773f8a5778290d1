"""Which host a log line is about, as far as it tells itself: what it captures, who prints it, whom it mentions."""

from __future__ import annotations

import re

from ezpz_elastic.decide.evidence import LogMatch
from ezpz_elastic.decide.hosts import HostTable
from ezpz_elastic.decide.verdict import Cause

__all__ = ["spelled_host"]

_WORD = re.compile(r"[A-Za-z0-9][\w.\-]{0,200}\w|[A-Za-z0-9]{2}")
_AT = re.compile(r"\b(?:on|at|of|from|for)(?: host| node)? $|\b(?:host|node)[ =:]{1,2}$")
_ELSEWHERE = re.compile(
    r"(?:[/\\]|\bGPU |(?<![a-z])(?:addr(?:ess)?|endpoint|master|store|server)[\"']?[ =:(]{1,3}[\"']?)$", re.I
)
_ADDRESS = re.compile(r"[/\\]|\]?:\d|[\"']?, ?\d{2,5}\)")
"""Before and behind a name that is a piece of a path, the number of a GPU, or where ranks meet: it places nobody."""
_DEVICES = frozenset({Cause.DEVICE_FAULT, Cause.OOM_DEVICE})


def spelled_host(match: LogMatch, table: HostTable) -> str | None:
    """The host a line is about, as spelled; ``None`` where it does not tell.

    A device is its printer's own, and a kernel speaks of its host, unless the line says that it speaks of another one:
    a monitor may watch many. Where it mentions others without saying so, it is about nobody that can be told.

    Args:
        match: the line.
        table: the attempt's hosts.
    """
    if match.host is not None:
        return _certain(match.host, table)
    kernel = match.emitter == "kernel"
    if not kernel and (match.rank is not None or match.cause not in _DEVICES):
        return None
    printer = None if match.reporter is None else _certain(match.reporter, table)
    if match.rank is not None or not table.known or match.cause not in _DEVICES:
        return printer
    mentioned = {host: at for host, at in _mentioned(match.text, table) if host != table.name(printer)}
    if not mentioned:
        return printer
    placed = [host for host, at in mentioned.items() if at]
    if len(mentioned) == 1 and (placed or printer is None):
        return next(iter(mentioned))
    return None


def _certain(spelled: str, table: HostTable) -> str | None:
    """The name; a tag or a heading, in brackets, only if it is a host of the attempt, as it may be anything."""
    if not spelled.startswith("["):
        return spelled
    name = spelled.strip("[]")
    return name if table.known and table.name(name) else None


def _mentioned(text: str, table: HostTable) -> list[tuple[str, bool]]:
    """Hosts of the attempt in a text, each with whether the words before it say that something is there."""
    found = []
    for word in _WORD.finditer(text):
        host = table.name(word.group())
        before = text[max(0, word.start() - 16) : word.start()]
        if host is not None and _ELSEWHERE.search(before) is None and _ADDRESS.match(text, word.end()) is None:
            found.append((host, _AT.search(before) is not None))
    return found
