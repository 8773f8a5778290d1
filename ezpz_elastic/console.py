"""Copies the workers' log files to the agent's console as they grow, whole lines only, bytes unchanged.

Whoever reads the console may have stopped: a pager, a terminal after Ctrl-S, an ssh whose network hangs. A write would
then wait with it, and the agent must not: it is asked first whether it takes more, and what it does not take stays in
the files until it does.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO

__all__ = ["Console", "open_streams", "takes"]

INTERVAL = 0.1
"""Seconds between two looks at the files; torch's own tail uses the same."""

PATIENCE = 1.0
"""Seconds the agent waits for a console that does not read, so that a worker's last words come before its own."""

LAST_PATIENCE = 15.0
"""The same when the agent ends: what is not shown then is only in the files."""

BREATH = 0.005
"""Seconds for which a thread that has more to show lets others have their turn."""

ECHO_PAUSE = 1.0
"""Seconds from one echo to the next: such words may stand in any program's output, and each has ports asked."""

_BROKEN = (b"onnection closed by peer", b"onnection reset by peer", b"ncclRemoteError")
"""What gloo, sockets and NCCL say when the other side is gone; a teardown takes a second or more after that."""

CHUNK = 1 << 20
"""Bytes taken from one file at a time."""

PIECE = 4096
"""Bytes written at a time: what a pipe takes without waiting if it takes anything (PIPE_BUF)."""


def takes(sink: IO[bytes] | IO[str], timeout: float) -> bool:
    """Whether a console takes ``PIECE`` bytes without keeping the writer.

    Args:
        sink: the console; one that is closed takes anything, and says so when it is written to.
        timeout: seconds to wait until it does.
    """
    try:
        descriptor = sink.fileno()
    except (OSError, ValueError):
        return True  # in memory, or closed
    look = select.poll()
    look.register(descriptor, select.POLLOUT)
    return bool(look.poll(1000 * max(0.0, timeout)))


def open_streams() -> None:
    """Put ``/dev/null`` where this process was started with a standard stream closed (``>&-``, some daemons).

    Else the next socket or pipe would become standard output, and every child would inherit it as that.
    """
    for number, mode in ((0, "r"), (1, "w"), (2, "w")):
        try:
            os.fstat(number)
        except OSError:
            flags = os.O_RDONLY if mode == "r" else os.O_WRONLY
            os.set_inheritable(os.open(os.devnull, flags), True)  # gets the lowest number that is free
        name = ("stdin", "stdout", "stderr")[number]
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  # as long as the process


@dataclass
class _Source:
    path: Path
    sink: BinaryIO
    prefix: bytes
    offset: int = 0
    partial: bytearray = field(default_factory=bytearray)
    ready: bytearray = field(default_factory=bytearray)
    over: bool = False

    def release(self, size: int) -> None:
        """The first ``size`` bytes of what was read may be shown."""
        text = self.partial[:size]
        del self.partial[:size]
        if self.prefix:
            text = bytearray(b"".join(self.prefix + line for line in text.splitlines(keepends=True)))
        self.ready += text


class Console:
    """One thread that follows all of an agent's log files.

    Files are added when workers start; ``drain`` copies what is there to the last byte.

    Args:
        echo: called when a rank says that its connection to a peer broke, long before it has ended of that.
    """

    def __init__(self, echo: Callable[[], None] = lambda: None) -> None:
        self._echo, self._heard, self._echo_at = echo, False, 0.0
        self._sources: list[_Source] = []
        self._lock = threading.Lock()
        self._held = False
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
        """Copy everything written so far, now; as much of it as the console takes in ``PATIENCE`` seconds."""
        with self._lock:
            self._copy(0.0 if self._held else PATIENCE)

    def drain(self) -> None:
        """Copy everything written so far, unfinished last lines included, and forget each file that has been shown."""
        self._drain(0.0 if self._held else PATIENCE)

    def close(self) -> None:
        """Copy what is left, as far as the console takes it, and end the thread."""
        self._stopping.set()
        self._thread.join()
        self._drain(LAST_PATIENCE)

    def _drain(self, patience: float) -> None:
        with self._lock:
            for source in self._sources:
                source.over = True
            self._copy(patience)

    def _pass_on(self) -> None:
        """Tell of what was heard: at once, or as soon as the last time is long enough ago."""
        if self._heard and time.monotonic() >= self._echo_at:
            self._heard, self._echo_at = False, time.monotonic() + ECHO_PAUSE
            self._echo()

    def _run(self) -> None:
        while not self._stopping.wait(BREATH if self._held else INTERVAL):
            with self._lock:
                self._copy(INTERVAL)

    def _copy(self, patience: float) -> None:
        """Show what there is until the time is up; ``_held`` tells whether something is left."""
        deadline = time.monotonic() + patience
        held: list[BinaryIO] = []
        for source in list(self._sources):
            if any(sink is source.sink for sink in held):
                continue  # in the order of the files, also when the console goes on
            while self._show(source, deadline) and self._read(source):
                continue
            if source.ready:
                held.append(source.sink)
            elif source.over:
                self._sources.remove(source)
        self._held = bool(held)
        self._pass_on()

    def _read(self, source: _Source) -> bool:
        """Take in some of a file; whether there is something to show then."""
        data = b""
        try:
            if source.path.stat().st_size != source.offset:  # ten times a second for every file: opening is what costs
                with source.path.open("rb") as file:
                    file.seek(source.offset)
                    data = file.read(CHUNK)
        except OSError:
            data = b""  # not there yet, or its file system is away
        source.offset += len(data)
        source.partial += data
        self._heard = self._heard or (bool(data) and any(words in source.partial for words in _BROKEN))
        end = source.partial.rfind(b"\n") + 1
        if end or len(source.partial) > CHUNK:
            source.release(end or len(source.partial))
        elif source.over and not data and source.partial:
            source.partial += b"\n"
            source.release(len(source.partial))
        return bool(data) or bool(source.ready)

    @staticmethod
    def _show(source: _Source, deadline: float) -> bool:
        """Write what is ready; whether all of it was taken."""
        while source.ready:
            if not takes(source.sink, deadline - time.monotonic()):
                return False
            try:
                source.sink.write(source.ready[:PIECE])
                source.sink.flush()
            except (OSError, ValueError):
                # The console is gone (a closed pipe or terminal); the log files still have everything.
                source.ready.clear()
            else:
                del source.ready[:PIECE]
        return True
