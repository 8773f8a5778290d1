"""Logs -> evidence: one pass over a console log, a worker's own log, or a log that is still being written."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ezpz_elastic.decide.evidence import LogMatch
from ezpz_elastic.observe.matching import Matcher
from ezpz_elastic.observe.scanner import Scanner
from ezpz_elastic.observe.sources import CHUNK_BYTES, chunks, open_log, packing
from ezpz_elastic.observe.tracebacks import last_error, last_lines
from ezpz_elastic.signatures import Library, load_library

__all__ = ["LogFollower", "LogScan", "last_error", "last_lines", "scan_log", "scan_rank_log", "scan_since"]


_FIRST_BYTES = 2 * 2**20
_LAST_BYTES = 8 * 2**20
_STRETCH_BYTES = 256 * 2**20


class LogScan(msgspec.Struct, frozen=True):
    """What one pass over a log found.

    Args:
        matches: the lines that a signature matched, in file order; of one signature the first 1500 and the last 500.
        last_step: the last training step shown; ``None`` if none was.
        bytes: how many bytes were read, decompressed.
    """

    matches: tuple[LogMatch, ...]
    last_step: int | None
    bytes: int


def scan_log(
    path: Path | str, library: Library | None = None, *, rank: int | None = None, host: str | None = None
) -> LogScan:
    """Scan a whole log, plain or compressed, in bounded memory.

    Args:
        path: the log.
        library: signatures; the package's own and ``EZPZ_SIGNATURES`` by default.
        rank: the rank that writes this log, for a log of one worker.
        host: that worker's host, as the allocation spells it.

    Raises:
        UsageError: the log cannot be read.
    """
    path, library = Path(path), library or load_library()
    matcher = Matcher(library, str(path), rank, host)
    scanner = Scanner(library, matcher.take, matcher.ignored)
    try:
        bulk = _bulk(path)
        stretch = 0
        for chunk in chunks(path):
            inside = scanner.bytes not in bulk
            if inside != scanner.inside_words or scanner.bytes - stretch > _STRETCH_BYTES:
                matcher.look_again()
                stretch = scanner.bytes
            scanner.inside_words = inside
            scanner.feed(chunk)
        scanner.finish()
    finally:
        scanner.close()
    return LogScan(_completed(matcher, scanner), scanner.steps.last, scanner.bytes)


def _completed(matcher: Matcher, scanner: Scanner) -> tuple[LogMatch, ...]:
    """The matches of a log that has ended, each with what followed it."""
    steps, lines = scanner.steps, scanner.lines
    return tuple(
        msgspec.structs.replace(match, last_step=steps.since(match.step), after=lines - match.line)
        for match in matcher.take_all()
    )


def scan_rank_log(
    path: Path | str, *, rank: int, host: str, library: Library | None = None, last: int | None = None
) -> tuple[LogMatch, ...]:
    """Matches in one worker's own stdout or stderr, for the agent that is its parent; a missing log has none.

    Args:
        path: the worker's log, which may still grow.
        rank: its global rank.
        host: its host, as the allocation spells it.
        library: as for :func:`scan_log`.
        last: of a longer log only so many bytes at its end are read; lines are counted from there then, and the
            file's name says from where.

    Raises:
        UsageError: the log exists and cannot be read.
    """
    if not Path(path).exists():
        return ()
    start = 0 if last is None else max(0, Path(path).stat().st_size - last)
    if not start:
        return scan_log(path, library, rank=rank, host=host).matches
    return scan_since(path, start, library, rank=rank, host=host)


def scan_since(
    path: Path | str, start: int, library: Library | None = None, *, rank: int | None = None, host: str | None = None
) -> tuple[LogMatch, ...]:
    """Matches in the end of a plain log; lines are counted from there, and the file's name says from where.

    Args:
        path: the log.
        start: offset in bytes; a line that has begun before is left out.
        library, rank, host: as for :func:`scan_log`.

    Raises:
        OSError: the log cannot be read.
    """
    library = library or load_library()
    matcher = Matcher(library, f"{path} (from byte {start})" if start else str(path), rank, host)
    scanner = Scanner(library, matcher.take, matcher.ignored)
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, start - 1))
            if start:
                file.readline()
            while chunk := file.read(CHUNK_BYTES):
                scanner.feed(chunk)
        scanner.finish()
    finally:
        scanner.close()
    return _completed(matcher, scanner)


def _bulk(path: Path) -> range:
    """Offsets between the beginning and the end of a long log, where words with escapes inside are not looked for."""
    with open_log(path) as file:
        if packing(path, file):
            return range(0)
    return range(_FIRST_BYTES, max(path.stat().st_size - _LAST_BYTES, 0))


class LogFollower:
    """A log that is still being written: every ``poll`` reads what was added since the last one.

    A log that was rotated (another file under the same name) or truncated is read from its new beginning. It never
    waits: the caller decides when to look.

    Args:
        path: the log; it need not exist yet.
        library, rank, host: as for :func:`scan_log`.
    """

    def __init__(
        self, path: Path | str, library: Library | None = None, *, rank: int | None = None, host: str | None = None
    ) -> None:
        self._path = Path(path)
        self._library = library or load_library()
        self._matcher = Matcher(self._library, str(path), rank, host)
        self._scanner = Scanner(self._library, self._matcher.take, self._matcher.ignored)
        self._last_step: int | None = None
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._closed = False

    @property
    def last_step(self) -> int | None:
        """The last training step shown so far, earlier files of a rotated log included."""
        step = self._scanner.last_step
        return self._last_step if step is None else step

    def poll(self) -> tuple[LogMatch, ...]:
        """The matches in whole lines that were added since the last call; none after ``close``.

        A stack frame and what follows it wait until five more lines, or ``close``, show how the traceback ends.
        """
        if self._closed:
            return ()
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return self._take()
        try:
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino)
            if (self._file not in {None, identity}) or status.st_size < self._offset:
                self._restart()
            self._file = identity
            os.lseek(descriptor, self._offset, os.SEEK_SET)
            while chunk := os.read(descriptor, CHUNK_BYTES):
                self._offset += len(chunk)
                self._scanner.feed(chunk)
        finally:
            os.close(descriptor)
        return self._take()

    def close(self) -> tuple[LogMatch, ...]:
        """The writer has ended: the matches in what is left, the last line without an end included."""
        taken = self.poll()
        self._closed = True
        self._scanner.finish()
        return taken + self._take()

    def _restart(self) -> None:
        self._last_step = self.last_step
        self._scanner.finish()
        self._scanner = Scanner(self._library, self._matcher.take, self._matcher.ignored)
        self._offset = 0

    def _take(self) -> tuple[LogMatch, ...]:
        self._matcher.look_again()
        return tuple(self._matcher.take_all())
