"""Where a child's output goes: the console and the attempt's log. Bytes, and nothing that happens to either stops it.

A console that is slow is waited for; one that takes nothing for a while is left out until it takes something again. A
log that cannot be written (a full disk) loses bytes and never the job: its end is in memory as well, and the failure is
judged by that.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["AttemptLog", "ConsoleSink"]

logger = logging.getLogger(__name__)

_WAITING = 4 << 20
"""Bytes that may wait for a slow console before the child has to wait for it too."""

PATIENCE = 5.0
"""Seconds in which a console that takes nothing at all is waited for."""

_TAIL = 4 << 20
"""Bytes of a log's end that are kept in memory, for a log that cannot be written."""


class ConsoleSink:
    """Copies output to a descriptor, from a thread of its own.

    Args:
        descriptor: where to; ``None`` if there is no console.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._missed = 0
        self._moved = time.monotonic()
        self._change = threading.Condition()
        if descriptor is not None:
            threading.Thread(target=self._run, name="ezpz-console", daemon=True).start()

    def write(self, data: bytes) -> None:
        """Take a piece of output. Waits for a slow console, and no longer than ``PATIENCE`` seconds for a stuck one."""
        with self._change:
            if not self._room():
                self._missed += len(data)
                return
            if self._missed:
                logger.warning("the console was stuck and missed %d bytes; the log has them", self._missed)
                self._missed = 0
            self._waiting.append(data)
            self._size += len(data)
            self._change.notify_all()

    def flush(self) -> None:
        """Wait until everything taken so far is out, as long as the console moves."""
        with self._change:
            while self._size and self._descriptor is not None:
                left = PATIENCE - (time.monotonic() - self._moved)
                if left <= 0:
                    return
                self._change.wait(left)

    def _room(self) -> bool:
        while self._size > _WAITING and self._descriptor is not None:
            left = PATIENCE - (time.monotonic() - self._moved)
            if left <= 0:
                return False
            self._change.wait(left)
        return self._descriptor is not None

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting)
                data = memoryview(self._waiting.popleft())
                self._moved = time.monotonic()
            while data and self._descriptor is not None:
                data = data[self._write(self._descriptor, data) :]

    def _write(self, descriptor: int, data: memoryview) -> int:
        try:
            count = os.write(descriptor, data)
        except BlockingIOError:  # somebody made our standard output non-blocking; it may be shared
            select.select((), (descriptor,), ())
            return 0
        except OSError:
            count = len(data)  # a closed pipe or terminal
            descriptor = -1
        with self._change:
            self._moved = time.monotonic()
            self._size -= count
            if descriptor < 0:
                self._descriptor, self._size = None, 0
                self._waiting.clear()
            self._change.notify_all()
        return count


class AttemptLog:
    """``attempt-N.log``: what an attempt has printed, and a file that a classifier can read in any case.

    Args:
        path: the log; an older file of that name is replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self.lost = 0
        self._file = self._open()

    def write(self, data: bytes) -> None:
        """Append; whatever cannot be written is counted in ``lost``."""
        self._tail.append(data)
        self._kept += len(data)
        while self._kept - len(self._tail[0]) >= _TAIL:
            self._kept -= len(self._tail.popleft())
        if self._file is None:
            self._file = self._open()
        rest = memoryview(data)
        while rest and self._file is not None:
            try:
                rest = rest[os.write(self._file, rest) :]
            except OSError as error:
                self._complain(error)
                break
        self.lost += len(rest)

    def close(self) -> None:
        """Nothing more comes. A file system may tell only now that it has not taken what it was given."""
        if self._file is None:
            return
        try:
            os.close(self._file)
        except OSError as error:
            self._complain(error)
            self.lost += self._kept
        self._file = None

    @contextmanager
    def readable(self) -> Iterator[Path]:
        """A file with what is known: the log, or what memory has of it where the disk did not take it.

        Raises:
            OSError: there is no memory left for a copy.
        """
        if not self.lost:
            yield self.path
            return
        with os.fdopen(os.memfd_create(self.path.name), "wb") as file:  # no disk, full or not, is asked for room
            file.write(b"".join(self._tail))
            file.flush()
            yield Path(f"/proc/self/fd/{file.fileno()}")

    def _open(self) -> int | None:
        try:
            return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._complain(error)
            return None

    def _complain(self, error: OSError) -> None:
        if not self.lost:
            logger.warning("cannot write %s: %s; the job goes on, its output is on the console", self.path, error)
