"""Copies the workers' log files to the agent's console as they grow, whole lines only, bytes unchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

__all__ = ["Console"]

INTERVAL = 0.1
"""Seconds between two looks at the files; torch's own tail uses the same."""

_BROKEN = (b"onnection closed by peer", b"onnection reset by peer", b"ncclRemoteError")
"""What gloo, sockets and NCCL say when the other side is gone; a teardown takes a second or more after that."""

CHUNK = 1 << 20
"""Bytes taken from one file at a time."""


@dataclass
class _Source:
    path: Path
    sink: BinaryIO
    prefix: bytes
    offset: int = 0
    partial: bytearray = field(default_factory=bytearray)


class Console:
    """One thread that follows all of an agent's log files.

    Files are added when workers start; ``drain`` copies what is there to the last byte.

    Args:
        echo: called when a rank says that its connection to a peer broke, long before it has ended of that.
    """

    def __init__(self, echo: Callable[[], None] = lambda: None) -> None:
        self._echo = echo
        self._sources: list[_Source] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ezpz-console", daemon=True)
        self._thread.start()

    def add(self, path: Path, sink: BinaryIO, prefix: str) -> None:
        """Follow one file.

        Args:
            path: the log; it may not exist yet.
            sink: where its lines go.
            prefix: printed before each line.
        """
        with self._lock:
            self._sources.append(_Source(path, sink, prefix.encode()))

    def copy(self) -> None:
        """Copy everything written so far, now."""
        with self._lock:
            self._copy()

    def drain(self) -> None:
        """Copy everything written so far, unfinished last lines included, and forget the files."""
        with self._lock:
            self._copy()
            for source in self._sources:
                if source.partial:
                    self._print(source, source.partial + b"\n")
            self._sources.clear()

    def close(self) -> None:
        """Copy what is left and end the thread."""
        self._stopping.set()
        self._thread.join()
        self.drain()

    def _listen(self, text: bytearray) -> None:
        if any(words in text for words in _BROKEN):
            self._echo()

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            self.copy()

    def _copy(self) -> None:
        for source in self._sources:
            while self._copy_some(source):
                continue

    def _copy_some(self, source: _Source) -> bool:
        try:
            if source.path.stat().st_size == source.offset:
                return False  # ten times a second for every file: opening it is what costs
            with source.path.open("rb") as file:
                file.seek(source.offset)
                data = file.read(CHUNK)
        except FileNotFoundError:
            return False
        source.offset += len(data)
        source.partial += data
        self._listen(source.partial)
        end = source.partial.rfind(b"\n") + 1
        if end:
            self._print(source, source.partial[:end])
            del source.partial[:end]
        elif len(source.partial) > CHUNK:
            self._print(source, source.partial)
            source.partial.clear()
        return len(data) == CHUNK

    @staticmethod
    def _print(source: _Source, text: bytearray) -> None:
        if source.prefix:
            text = bytearray(b"".join(source.prefix + line for line in text.splitlines(keepends=True)))
        try:
            source.sink.write(text)
            source.sink.flush()
        except (OSError, ValueError):
            # The console is gone (a closed pipe or terminal); the log files still have everything.
            return
