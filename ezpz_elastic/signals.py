"""Ctrl-C, SIGTERM and their like, turned into a flag and a wake-up instead of an exception at a random place."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

__all__ = ["StopSignals"]

_DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class StopSignals:
    """Handles the signals that ``--signals-to-handle`` names, as long as it is entered.

    SIGHUP stays ignored where it is ignored already: that is what ``nohup`` is for.

    Args:
        wake: called when a signal has arrived.
        flag: set when a signal has arrived; whoever waits for the store looks at it.
        hurry: called on the second and every further signal: the person is out of patience.
    """

    def __init__(self, wake: Callable[[], None], flag: threading.Event, hurry: Callable[[], None]) -> None:
        self._wake, self._flag, self._hurry = wake, flag, hurry
        self._previous: dict[signal.Signals, object] = {}
        self.received: int | None = None
        names = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", _DEFAULT).split(",")
        self._signals = [signal.Signals[name.strip()] for name in names if name.strip() in signal.Signals.__members__]
        self._ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    def install(self) -> None:
        """Put the handlers in place (again); only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in self._signals:
            ignored = signum == signal.SIGHUP and self._ignores_hangup  # torch's handler may be there by now
            previous = signal.signal(signum, signal.SIG_IGN if ignored else self._on_signal)
            self._previous.setdefault(signum, previous)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            self._hurry()
            return
        self.received = signum
        self._flag.set()
        self._wake()

    def __enter__(self) -> StopSignals:
        self.install()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        del kind, trace
        for signum, previous in self._previous.items():
            handler = previous
            if isinstance(error, SystemExit) and previous is not signal.SIG_IGN:
                handler = partial(_exit_again, error.code)
            signal.signal(signum, handler)  # type: ignore[arg-type]  # what signal.signal gave us it takes back
        self._previous.clear()


def _exit_again(code: str | int | None, signum: int, frame: FrameType | None) -> None:
    """The process is on its way out and its exit code is settled: a late signal must not replace it."""
    del signum, frame
    raise SystemExit(code)
