"""Signals that mean "stop", turned into something that can be waited for."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

__all__ = ["Stops"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Stops:
    """Takes the signals as long as it is entered; only in the main thread.

    SIGHUP stays ignored where it is: that is what ``nohup`` is for.

    Attributes:
        received: the first signal; ``None`` before it.
        urgent: a second one has come: the person is out of patience.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.urgent = False
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._previous: dict[int, object] = {}

    def fileno(self) -> int:
        """Readable from the first signal on."""
        return self._read

    def wait(self, seconds: float) -> bool:
        """Sleep; ``True`` at once when told to stop."""
        if self.received is None:
            select.select((self._read,), (), (), max(seconds, 0.0))
        return self.received is not None

    def _take(self, signum: int, frame: FrameType | None) -> None:
        del frame
        self.urgent = self.received is not None
        if self.received is None:
            self.received = signum
            os.write(self._write, b"s")

    def __enter__(self) -> Stops:
        for signum in _SIGNALS:
            if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
                self._previous[signum] = signal.signal(signum, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        del error
        for signum, previous in self._previous.items():
            signal.signal(signum, previous)  # type: ignore[arg-type]  # what signal.signal gave us it takes back
        os.close(self._read)
        os.close(self._write)
