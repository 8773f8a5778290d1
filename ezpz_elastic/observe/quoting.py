"""Whether a line that holds a signature's text says it itself, or quotes it, asks, denies it or tells a story of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ezpz_elastic.decide.verdict import Cause

__all__ = ["is_quotation", "is_story"]

_MENTION = re.compile(
    r"\b(?:previous(?:ly)?|last (?:week|month|night|time|attempt|job|run)|prior|yesterday|earlier (?:attempt|job|run)"
    r"|see (?:the )?(?:wiki|docs|manual|README|FAQ)|resumed after|was (?:down|drained|replaced|offline)|if you see"
    r"|in case of|known issue|e\.g\.|for example|grep"
    r"|ignor(?:ed?|ing)|suppress(?:ed|ing)|recovered from|retr(?:y|ied|ying) (?:after|on))\b",
    re.I,
)
"""Words before a signature's text that make the line a story about something else."""
_ITEM = re.compile(r"[ \t]{0,8}-[ \t]")
"""A list's item; behind a time a dash is a logger's."""
_QUOTATION = re.compile(r"[ \t]{0,8}(?:[+*<>]|\d{1,2}[.)])[ \t]")
"""A whole line that is quoted: a list's item, a mail's or a diff's mark, a shell's trace of its commands."""
_DENIED = re.compile(
    r"\*?[\"']?(?: ?\?| ?[:=] ?(?:[Nn]o|[Nn]one|[Ff]alse|0|[Oo][Kk]|[Pp]assed|n/a)[ .,;]{0,4}$"
    r"| (?:check|test|probe|watch|handler|detection|event|error)s?\b[ :=]{1,3}"
    r"(?:passed|ok|OK|none|no|0|done|registered)\b)"
)
"""Words behind a signature's text that ask whether it is so, deny it or say that it is looked for."""
_LISTED = re.compile(r"[\"'], {0,2}[\"']")
_INDENTED = re.compile(r"\t| {4}")
"""How a block that is cited begins: a launcher's own words are not indented."""
_TABLE = re.compile(r"[ \t]{0,8}[|\u2502\u2503\u2551]")
"""How a row of a table begins: no launcher's own words, but an exception in a group has a bar before it, too."""


def is_quotation(text: str, begins: Sequence[int], *, launcher: bool, headed: bool = False) -> bool:
    """Whether a whole line is quoted: an item of a list, of a mail, of a shell's trace; a row of a table; a block's.

    Args:
        text: the clean line.
        begins: where its own text may begin: behind any of the labels that stand before it.
        launcher: whether a launcher's own words are looked for, which stand in no table.
        headed: whether they are told below a heading, where they may be indented.
    """
    if _ITEM.match(text) or any(_QUOTATION.match(text, at) for at in begins):
        return True
    if launcher and not headed and _INDENTED.match(text):
        return True
    return launcher and any(_TABLE.match(text, at) for at in begins)


def is_story(before: str, found: re.Match[str], cause: Cause) -> bool:
    """Whether the words around a signature's text make it a mention.

    Args:
        before: what stands before it, labels left out.
        found: the text, in its line.
        cause: what it would be evidence of.
    """
    if _MENTION.search(before) or _is_denied(found, cause):
        return True
    return before.count('"') % 2 == 1 or before.count("`") % 2 == 1 or before[-1:] in {"'", '"'}


def _is_denied(found: re.Match[str], cause: Cause) -> bool:
    """Whether what would name a host is denied by what follows it, or reaches over several strings of a list."""
    if cause is Cause.DEVICE_FAULT and _LISTED.search(found.group()):
        return True
    return cause in {Cause.DEVICE_FAULT, Cause.HOST_LOST} and _DENIED.match(found.string, found.end()) is not None
