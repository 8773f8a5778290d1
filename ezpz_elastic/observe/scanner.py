"""Bytes of a log, in chunks of any size -> the lines that hold the fixed words of some signature.

Hyperscan runs in streaming mode over the raw bytes, so a word split between two chunks is found; memory is bounded by
the chunk and one line's tail, however long a line is. Only lines that are hit are ever cut out and decoded.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import hyperscan
import msgspec

from ezpz_elastic.observe.steps import StepTracker
from ezpz_elastic.observe.text import clean, strip_escapes
from ezpz_elastic.signatures import Library

__all__ = ["FRAME", "HitLine", "Scanner", "warm_up"]

FRAME = -1
"""Id under which stack-frame lines are reported, beside the indexes of the library's signatures."""

_SCRATCH = threading.Lock()
"""Hyperscan's scratch memory belongs to the database, which all scanners share."""
_FRAME_WORDS = '", line '
_SPLIT_WORD = r"[A-Za-z](?:\x1b\[[0-9;:?]*[A-Za-z]|\x00)+[A-Za-z]|\x1b\]|\x1b\[[0-9;:?]{8,}"
"""An escape sequence or a NUL inside a word, a hyperlink, a sequence too long for a trigger's gap."""
_LONG = 64 * 2**20
_NEWLINE = 10
_BEFORE = 8192
_AFTER = 4096
_END = 2048
_BELOW = 5
"""How many lines below a stack frame are handed over with it: its code, marks under the code, the traceback's end."""
_ABOVE = 1024
"""How many bytes above a line are looked at for the heading it stands under."""
_PIECES = 64
"""How many pieces of one endless line are reported."""


class HitLine(msgspec.Struct, frozen=True):
    """A line that was hit.

    Args:
        number: from 1.
        text: clean, at most 8 KiB before and 4 KiB after the first hit.
        ids: indexes into ``library.signatures``, or ``FRAME``.
        step: the last training step shown before it.
        below: for a stack frame the lines that follow it, clean, at most five.
        above: for a line that may stand under a heading the lines before it, clean, the nearest last, of one KiB.
    """

    number: int
    text: str
    ids: tuple[int, ...]
    step: int | None
    below: tuple[str, ...] = ()
    above: tuple[str, ...] = ()


class Scanner:
    """One pass over one log.

    Args:
        library: the signatures to look for.
        on_line: called for every line that is hit, in order.
        ignored: what need not be reported any more, as indexes into the signatures plus one; may change at any time.

    Attributes:
        inside_words: whether lines are looked at again in which an escape sequence stands *inside* a word. It costs
            most of the speed on a log full of escapes, so a caller with gigabytes turns it off for the bulk of them.
        steps: the training steps shown so far.
    """

    def __init__(
        self, library: Library, on_line: Callable[[HitLine], None], ignored: Collection[int] = frozenset()
    ) -> None:
        self.ignored = ignored
        self._on_line = on_line
        self._library = library
        self.steps = StepTracker()
        self._hits: list[tuple[int, int]] = []
        self._headed = {number for number, signature in enumerate(library.signatures) if signature.entry.heading}
        self._tail = b""
        self._above = b""  # what stands before the tail
        self._end = b""
        self._cut = False  # the tail begins within a line
        self._pieces = 0
        self._base = 0  # offset of the tail's first byte in the log
        self._number = 1  # line number at the tail's first byte
        # The binding borrows what a stream is made of: database and callback must be kept alive from here.
        self._database = _database(library)
        self._callback = self._hit
        self._stream = self._database.stream(match_event_handler=self._callback)
        self._stream.__enter__()
        self._open, self._ended = True, True
        self.inside_words = True
        self.bytes = 0

    @property
    def last_step(self) -> int | None:
        """The last training step shown so far."""
        return self.steps.last

    @property
    def lines(self) -> int:
        """How many lines were read; a last one without an end counts once the scanner is finished."""
        return self._number - 1 if self._ended else self._number

    def feed(self, chunk: bytes) -> None:
        """Scan the next bytes of the log.

        Raises:
            ValueError: the scanner was finished or closed before.
        """
        if not self._open:
            raise ValueError("the scanner was closed")
        if not chunk:
            return
        self.bytes += len(chunk)
        self._end = (self._end + chunk)[-_END:] if len(chunk) < _END else chunk[-_END:]
        with _SCRATCH:
            self._stream.scan(chunk)
        if (self.inside_words and b"\x1b" in chunk) or b"\x00" in chunk:
            self._look_inside(self._tail + chunk)
        if self._hits or b"\n" not in chunk:
            self._advance(self._tail + chunk, final=False)
        else:
            self._skip(chunk)

    def finish(self) -> None:
        """The log has ended: report what waited for the end of its line."""
        if self._open:
            self._ended = self._tail == b""
            self._advance(self._tail, final=True)
            self.steps.end(self._end)
            self.close()

    def close(self) -> None:
        """Give the stream's memory back, without reporting anything more."""
        if self._open:
            self._open = False
            with _SCRATCH:
                self._stream.__exit__(None, None, None)

    def _look_inside(self, data: bytes) -> None:
        """Find words that are whole only without the escapes and NULs inside them, as hits on their raw lines."""
        split: list[int] = []
        found: list[tuple[int, int]] = []

        def hit(number: int, start: int, end: int, flags: int, context: object) -> None:
            del start, flags, context
            if number not in self.ignored:
                found.append((end, number + FRAME))

        with _SCRATCH:
            _compiled((_SPLIT_WORD,), streaming=False).scan(data, match_event_handler=lambda *_: split.append(1))
            if not split:
                return
            bare = strip_escapes(data)
            _database(self._library, streaming=False).scan(bare, match_event_handler=hit)
        ends = [place.start() for place in re.finditer(b"\n", data)] if found else []
        line, at = 0, 0
        for end, number in sorted(found):
            line, at = line + bare.count(b"\n", at, end), end
            self._hits.append((self._base + (ends[line] if line < len(ends) else len(data)), number))

    def _hit(self, number: int, start: int, end: int, flags: int, context: object) -> None:
        del start, flags, context
        if number not in self.ignored:
            self._hits.append((end, number + FRAME))

    def _skip(self, chunk: bytes) -> None:
        """Nothing was hit: count lines, keep the tail."""
        cut = chunk.rfind(b"\n") + 1
        if not self.steps.see(chunk, cut, whole=True) and self._tail:
            first = self._tail + chunk[: chunk.find(b"\n") + 1]
            self.steps.see(first, len(first))
        self._cut = False
        self._number += self._tail.count(b"\n") + self._count(chunk, cut)
        self._base += len(self._tail) + cut
        self._above = chunk[cut - _ABOVE : cut] if cut >= _ABOVE else (self._above + self._tail + chunk[:cut])[-_ABOVE:]
        self._tail = chunk[cut:]

    def _count(self, chunk: bytes, end: int) -> int:
        """Newlines before ``end``; with numpy where a log is long and numpy is there, four times as fast."""
        if self.bytes > _LONG and (numpy := _numpy()) is not None:
            return int(numpy.count_nonzero(numpy.frombuffer(chunk, numpy.uint8, end) == _NEWLINE))
        return chunk.count(b"\n", 0, end)

    def _advance(self, data: bytes, *, final: bool) -> None:
        position, seen, number = 0, 0, self._number
        hits = sorted(self._hits)
        taken = 0
        while taken < len(hits):
            local = hits[taken][0] - self._base
            left, right = _line_bounds(data, local)
            if right is None:
                if not final and len(data) - local < _AFTER:
                    break
                right = min(len(data), local + _AFTER)
            ids: list[int] = []
            while taken + len(ids) < len(hits) and hits[taken + len(ids)][0] - self._base <= right:
                ids.append(hits[taken + len(ids)][1])
            following = _following(data, right) if FRAME in ids else []
            if FRAME in ids and not final and len(following) < _BELOW and len(data) - right < _AFTER:
                break
            taken += len(ids)
            number += data.count(b"\n", position, left)
            position = left
            self.steps.see(data, left, seen)
            seen = max(seen, left)
            text = clean(data[left:right])
            within = data[left - 1] not in b"\r\n" if left else self._cut
            self._pieces = self._pieces + 1 if within else 0
            if self._pieces < _PIECES:
                below = tuple(clean(line) for line in following)
                above = self._lines_above(data, left) if not self._headed.isdisjoint(ids) else ()
                self._on_line(HitLine(number, text, tuple(sorted(set(ids))), self.steps.last, below, above))
        waiting = hits[taken:]
        keep = _line_bounds(data, waiting[0][0] - self._base)[0] if waiting else data.rfind(b"\n") + 1
        keep = len(data) if final else max(keep, len(data) - _BEFORE - _AFTER)
        self.steps.see(data, keep, seen)
        self._number += data.count(b"\n", 0, keep)
        self._base += keep
        self._cut = 0 < keep < len(data) and data[keep - 1] not in b"\r\n"
        self._above = data[keep - _ABOVE : keep] if keep >= _ABOVE else (self._above + data[:keep])[-_ABOVE:]
        self._tail = data[keep:]
        self._hits = waiting

    def _lines_above(self, data: bytes, left: int) -> tuple[str, ...]:
        """The whole lines that end within one KiB before a line's start."""
        before = data[left - _ABOVE : left] if left >= _ABOVE else (self._above + data[:left])[-_ABOVE:]
        lines = before.split(b"\n")[:-1]
        whole = lines[1:] if len(before) == _ABOVE else lines
        return tuple(clean(line) for line in whole)


def _line_bounds(data: bytes, at: int) -> tuple[int, int | None]:
    """Start and end of the line around ``at``; a carriage return ends a line too; no end: ``None``."""
    floor = max(0, at - _BEFORE)
    left = max(data.rfind(b"\n", floor, at), data.rfind(b"\r", floor, at)) + 1
    ends = [end for end in (data.find(b"\n", at, at + _AFTER), data.find(b"\r", at, at + _AFTER)) if end >= 0]
    return max(left, floor), min(ends) if ends else None


def _following(data: bytes, right: int) -> list[bytes]:
    """The whole lines after the one that ends at ``right``, a few and bounded."""
    start = right + data[right : right + 2].count(b"\r")
    if data[start : start + 1] != b"\n":
        return []
    return [line[:_END] for line in data[start + 1 : start + _AFTER].split(b"\n")[:-1][:_BELOW]]


@lru_cache(maxsize=1)
def _numpy() -> Any:
    """The numpy module, or ``None``: torch usually brings it along, and nothing here needs it."""
    return import_module("numpy") if find_spec("numpy") is not None else None


@lru_cache(maxsize=8)
def _compiled(expressions: tuple[str, ...], *, streaming: bool) -> hyperscan.Database:
    plain = [expression.removeprefix("(?i)").encode() for expression in expressions]
    flags = [
        (hyperscan.HS_FLAG_CASELESS if expression.startswith("(?i)") else 0)
        | (hyperscan.HS_FLAG_SINGLEMATCH if expression == _SPLIT_WORD else 0)
        for expression in expressions
    ]
    database = hyperscan.Database(mode=hyperscan.HS_MODE_STREAM if streaming else hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=plain, ids=list(range(len(plain))), elements=len(plain), flags=flags)
    return database


def _database(library: Library, *, streaming: bool = True) -> hyperscan.Database:
    words: Sequence[str] = [_FRAME_WORDS, *(signature.trigger for signature in library.signatures)]
    return _compiled(tuple(words), streaming=streaming)


def warm_up(library: Library) -> None:
    """Compile what a scan of this library needs, now rather than in the first scan."""
    _database(library)
