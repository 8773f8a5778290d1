"""The corpus format: a case is a console log and what an expert would say of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Case", "read_cases"]


@dataclass(frozen=True)
class Case:
    """One labelled case; ``cause`` is ``any`` where only the kind matters."""

    name: str
    file: str
    machine: str
    exit_code: int | None
    remaining: float | None
    hosts: tuple[str, ...]
    ranks_per_host: int | None
    log: bytes
    kind: str
    cause: str
    expected: tuple[str, ...]
    provenance: tuple[str, ...]
    why: str


def read_cases(path: Path) -> list[Case]:
    """All cases of one file."""
    parts = re.split(r"(?m)^case (\S+)[ \t]*\n", path.read_text(encoding="utf-8"))
    return [_case(path.name, name, body) for name, body in zip(parts[1::2], parts[2::2], strict=True)]


def _case(file: str, name: str, body: str) -> Case:
    head, log, expect, why = re.split(r"(?m)^--- (?:log|expect|why)[ \t]*\n?", body)
    given, wanted = _fields(head), _fields(expect)
    return Case(
        name=name,
        file=file,
        machine=given.get("machine", "auto"),
        exit_code=None if given.get("exit", "unknown") == "unknown" else int(given["exit"]),
        remaining=_seconds(given.get("remaining", "unknown")),
        hosts=tuple(given.get("hosts", "").split()),
        ranks_per_host=int(given["ranks_per_host"]) if given.get("ranks_per_host") else None,
        log=_unescape(log),
        kind=wanted["kind"],
        cause=wanted.get("cause", "any") or "any",
        expected=tuple(wanted.get("hosts", "").split()),
        provenance=tuple(wanted.get("provenance", "").split()),
        why=why.strip(),
    )


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition("#")[0].partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _seconds(text: str) -> float | None:
    if text in {"unknown", ""}:
        return None
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(text[-1])
    return float(text) if unit is None else float(text[:-1]) * unit


def _unescape(text: str) -> bytes:
    raw = text.encode("utf-8").replace(rb"\e", b"\x1b")
    return re.sub(rb"\\x([0-9a-fA-F]{2})", lambda found: bytes([int(found.group(1), 16)]), raw)
