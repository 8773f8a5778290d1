"""The last Python traceback in a worker's stderr -> an ErrorRecord."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ezpz_elastic.decide.evidence import ErrorRecord
from ezpz_elastic.observe.text import clean, parse_prefix

__all__ = ["last_error", "last_lines", "parse_traceback"]

_TAIL_BYTES = 512 * 1024
_MESSAGE_LIMIT = 500
_HEADER = re.compile(r"^(?:\s*[+|] )*\s*(?:Exception Group )?Traceback \(most recent call last\):")
_FRAME = re.compile(r'^\s*[|+ ]*File "(.{1,400})", line (\d{1,8})(?:, in (.{1,200}))?$')
_FINAL = re.compile(r"^[|+ ]{0,40}([A-Za-z_][\w.]{0,200})(?:: ?(.*))?$")
_CAUSES = re.compile(r"^[|+ ]{0,40}The above exception was the direct cause of")
_DURING = re.compile(r"^[|+ ]{0,40}During handling of the above exception")
_MEMBER = re.compile(r"^[|+ \-]{1,80}-{4,} (\d{1,6}) -{4,}$")
_NOT_AN_EXCEPTION = frozenset({"return", "raise", "pass", "self", "else", "try", "finally", "continue", "break"})


def last_error(path: Path | str) -> ErrorRecord | None:
    """The exception that ended a worker, as its stderr tells; ``None`` if it left none or no log.

    Args:
        path: the worker's stderr; only its last 512 KiB are read.
    """
    return parse_traceback([parse_prefix(line).rest for line in last_lines(path, 1 << 30)])


def last_lines(path: Path | str, count: int) -> tuple[str, ...]:
    """The last lines of a log, clean; none if it does not exist.

    Args:
        path: the log.
        count: how many lines at most; only the last 512 KiB are read.
    """
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:  # not there, or its file system is away
        return ()
    return tuple(clean(line) for line in data.splitlines()[-count:])


def parse_traceback(lines: list[str]) -> ErrorRecord | None:
    """The last traceback among clean lines.

    Of a chain the exception that began it is returned where it *caused* the last one (``raise … from``) or the last
    one broke out of handling it: the first of the chain is what went wrong, the rest is what became of it. A group's
    first member stands for the group. A ``SyntaxError`` keeps the place in the program's file as its innermost frame.
    """
    blocks: list[tuple[bool, ErrorRecord]] = []
    chained = False
    at = 0
    while at < len(lines):
        if _CAUSES.match(lines[at]) or _DURING.match(lines[at]):
            chained = bool(blocks)
        elif member := _MEMBER.match(lines[at]):
            chained = bool(blocks) and int(member.group(1)) > 1
        elif _HEADER.match(lines[at]):
            record, at = _block(lines, at + 1)
            if record is not None:
                blocks.append((chained, record))
            chained = False
            continue
        at += 1
    if not blocks:
        return None
    place = len(blocks) - 1
    while blocks[place][0] and place > 0:
        place -= 1
    return blocks[place][1]


def _block(lines: list[str], at: int) -> tuple[ErrorRecord | None, int]:
    """One traceback from the line after its header: the record, and where reading goes on."""
    frames: list[tuple[str, int, str]] = []
    while at < len(lines):
        line = lines[at]
        if _HEADER.match(line):
            return None, at  # a group's member begins: it stands for the group
        frame = _FRAME.match(line)
        final = _FINAL.match(line)
        if frame is not None:
            frames.append((frame.group(1), int(frame.group(2)), frame.group(3) or ""))
        elif final is not None and _is_exception(line, final.group(1)):
            name = final.group(1).rpartition(".")[2]
            if name not in {"ExceptionGroup", "BaseExceptionGroup"}:
                message = (final.group(2) or "").strip()[:_MESSAGE_LIMIT]
                return ErrorRecord(name, message, tuple(frames), "stderr"), at + 1
        at += 1
    return None, at


def _is_exception(line: str, name: str) -> bool:
    """Whether an unindented (or group-indented) line is the traceback's last, not a line of source."""
    bare = line.lstrip("|+ ")
    indented = line[:1] == " " and not line.lstrip(" ").startswith("|")
    return not indented and name not in _NOT_AN_EXCEPTION and not bare.startswith(("File ", "---"))
