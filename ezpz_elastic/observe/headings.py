"""Whose a line is that stands under a heading: the lines above it -> a host's name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ezpz_elastic.observe.text import parse_prefix

__all__ = ["heading", "list_head"]

_NAME_ALONE = re.compile(r"(?:NodeName=)?(?P<host>[A-Za-z0-9][\w.\-]{0,200})(?: [A-Z]\w{1,30}=|:?$)")
"""The head of a list of a node's properties."""
_RULED = re.compile(
    r"[-=#*+>~]{2,60} {0,4}(?:[a-z]{2,12}:? ){0,4}[\[(]?(?P<host>[A-Za-z0-9][\w.\-]{0,200})[\])]?:? {0,4}"
    r"[-=#*+<~]{0,60}$"
)
_RULER = re.compile(r"[-=#*~]{3,200}$")
"""How a heading stands out from what it heads: behind a ruler, or between two."""
_OUTPUT = re.compile(r"\b(?:step|iter|iteration|epoch|loss)\b|\[rank\d|\brank \d", re.I)
"""What a job prints, and no heading's messages are."""


def list_head(above: Sequence[str], text: str) -> str | None:
    """The node in whose list of properties a line stands: the nearest name alone above it.

    Args:
        above: the lines before it, the nearest last.
        text: the line itself. Where a property stands twice from the name on, another name is missing in between.
    """
    told = {_property(parse_prefix(text).rest)}
    for line in (parse_prefix(line).rest for line in reversed(above)):
        if line[:1] in {" ", "\t"}:
            if _property(line) in told:
                return None
            told.add(_property(line))
            continue
        head = _NAME_ALONE.match(line)
        if head is not None:
            return head.group("host")
    return None


def heading(above: Sequence[str]) -> str | None:
    """The name in the heading that a line stands under, in brackets: it may be a host's and anything else."""
    lines = [parse_prefix(text).rest for text in above]
    for place in range(len(lines) - 1, -1, -1):
        text = lines[place]
        if _OUTPUT.search(text):
            return None
        if _RULER.match(text):  # the lower of two, with the name between them
            named = place > 1 and _RULER.match(lines[place - 2])
            found = _NAME_ALONE.match(lines[place - 1]) if named else None
            return f"[{found.group('host')}]" if found is not None else None
        found = _RULED.match(text)
        if found is not None:
            return f"[{found.group('host')}]"
    return None


def _property(text: str) -> str:
    """What a line of a list tells: the word before its first equals sign."""
    return text.partition("=")[0].strip()
