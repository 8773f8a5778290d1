"""From a pattern to the fixed words that must stand in a line before the pattern is worth trying.

The scanner looks for these words in the raw bytes, where an escape sequence may stand between any two of them, and
runs the pattern itself only on the lines that have them. A pattern whose run time could grow faster than the line is
refused here, so that no log can stop the scanner.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

_NEW = sys.version_info >= (3, 11)  # where the parser moved; it has no public name in either place
sre = import_module("re._constants" if _NEW else "sre_constants")
sre_parse = import_module("re._parser" if _NEW else "sre_parse")

__all__ = ["GAP", "PatternError", "check_bounded", "trigger"]

GAP = ".{%d,16}"
"""What may stand between two words: escape sequences with it. Bounded and unspecific, so that the words stay literals
to Hyperscan: naming the escape sequences here costs two thirds of the speed, and a wider gap the time to compile."""

_WORDS = re.compile(r"[A-Za-z]+|[0-9]+")
_MIN_LETTERS = 4
_MAX_REPEAT = 512
_VARIABLE = "\x00"


class PatternError(ValueError):
    """A pattern this scanner cannot run safely, with why."""


def trigger(pattern: str) -> str:
    """A regular expression over raw bytes, in the common subset of Hyperscan and ``re``.

    Args:
        pattern: the expanded pattern.

    Returns:
        the longest run of fixed words of every alternative, joined by gaps.

    Raises:
        PatternError: an alternative has no fixed word of four letters.
    """
    tree = sre_parse.parse(pattern)
    parts = []
    for items in _alternatives(list(tree)):
        run = _longest_run(items)
        if _letters(run) < _MIN_LETTERS:
            raise PatternError(f"no fixed text of at least {_MIN_LETTERS} letters to look for")
        parts.append(f"(?:{_join(run)})")
    caseless = "(?i)" if tree.state.flags & re.IGNORECASE else ""
    return caseless + "|".join(dict.fromkeys(parts))


def check_bounded(pattern: str) -> None:
    """Refuse a pattern whose repeats are unbounded or nested, or that looks back at what it captured.

    Raises:
        PatternError: with the offending construct.
    """
    _check(list(sre_parse.parse(pattern)), 1)


def _check(items: Sequence[Any], outer: int) -> None:
    for op, value in items:
        if op in {sre.MAX_REPEAT, sre.MIN_REPEAT}:
            _, high, body = value
            if high == sre.MAXREPEAT or high > _MAX_REPEAT:
                raise PatternError(
                    f"a repeat without an upper bound of at most {_MAX_REPEAT}: write {{0,200}}, not * or +"
                )
            if high > 1 and outer > 1 and high * outer > _MAX_REPEAT:
                raise PatternError("a repeat inside a repeat")
            _check(list(body), max(outer, high))
        elif op in {sre.GROUPREF, sre.GROUPREF_EXISTS}:
            raise PatternError("a back reference")
        elif op is sre.SUBPATTERN:
            _check(list(value[-1]), outer)
        elif op is sre.BRANCH:
            for branch in value[1]:
                _check(list(branch), outer)
        elif op in {sre.ASSERT, sre.ASSERT_NOT}:
            _check(list(value[1]), outer)


def _alternatives(items: list[Any]) -> Iterator[list[Any]]:
    """The pattern with its alternatives written out, as far as one needs them to find fixed text in each."""
    if _letters(_longest_run(items)) < _MIN_LETTERS:
        for place, (op, value) in enumerate(items):
            before, after = items[:place], items[place + 1 :]
            if op is sre.BRANCH:
                for branch in value[1]:
                    yield from _alternatives([*before, *branch, *after])
                return
            if op is sre.SUBPATTERN and any(inner is sre.BRANCH for inner, _ in value[-1]):
                yield from _alternatives([*before, *value[-1], *after])
                return
    yield items


def _longest_run(items: Sequence[Any]) -> str:
    runs = "".join(_characters(items)).split(_VARIABLE)
    return max(runs, key=_letters, default="")


def _characters(items: Sequence[Any]) -> Iterator[str]:
    for op, value in items:
        if op is sre.LITERAL:
            yield chr(value)
        elif op is sre.SUBPATTERN:
            yield from _characters(list(value[-1]))
        elif op in {sre.AT, sre.ASSERT, sre.ASSERT_NOT}:
            continue
        elif op in {sre.MAX_REPEAT, sre.MIN_REPEAT} and value[0] >= 1 and _is_space(list(value[2])):
            yield " "
        else:
            yield _VARIABLE


def _is_space(items: list[Any]) -> bool:
    """Whether it matches white space and nothing else."""
    if len(items) != 1:
        return False
    op, value = items[0]
    if op is sre.LITERAL:
        return chr(value) in " \t"
    return op is sre.IN and all(
        (o is sre.CATEGORY and v is sre.CATEGORY_SPACE) or (o is sre.LITERAL and chr(v) in " \t") for o, v in value
    )


def _letters(run: str) -> int:
    return sum(character.isalpha() and character.isascii() for character in run)


def _join(run: str) -> str:
    """The words of a run; between two words something must stand, between letters and digits something may."""
    joined, end = "", 0
    for word in _WORDS.finditer(run):
        if joined:
            joined += GAP % (1 if word.start() > end else 0)
        joined, end = joined + word.group(), word.end()
    return joined
