"""Ctrl-C, SIGTERM and their like, turned into a flag and a wake-up instead of an exception at a random place."""

from __future__ import annotations

import contextlib
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

    A handler runs wherever the main thread stands, which may hold any lock, so all it does is to write to a pipe. A
    thread reads there and does the rest.

    SIGHUP stays ignored where it is ignored already: that is what ``nohup`` is for.

    Args:
        wake: called when a signal has arrived.
        flag: set when a signal has arrived; whoever waits for the store looks at it.
        hurry: called on the second and every further signal: the person is out of patience.
    """

    def __init__(self, wake: Callable[[], None], flag: threading.Event, hurry: Callable[[], None]) -> None:
        self._wake, self._flag, self._hurry = wake, flag, hurry
        self._previous: dict[signal.Signals, object] = {}
        self._pid = os.getpid()
        self._read = self._write = -1
        self.received: int | None = None
        names = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", _DEFAULT).split(",")
        self._signals = [signal.Signals[name.strip()] for name in names if name.strip() in signal.Signals.__members__]

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != self._pid:  # a worker that was forked from the agent inherits this, and nobody told the agent
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
            return
        with contextlib.suppress(BlockingIOError):  # thousands are waiting there already
            os.write(self._write, bytes([signum]))

    def _follow(self) -> None:
        while word := os.read(self._read, 1):
            if self.received is not None:
                self._hurry()
                continue
            self._flag.set()  # first, since who sees the number relies on it
            self.received = word[0]
            self._wake()

    def __enter__(self) -> StopSignals:
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._follow, name="ezpz-signals", daemon=True)
        self._thread.start()
        if threading.current_thread() is threading.main_thread():  # no other one can
            for signum in self._signals:
                ignored = signum == signal.SIGHUP and signal.getsignal(signum) is signal.SIG_IGN
                self._previous[signum] = signal.signal(signum, _ignore if ignored else self._on_signal)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        del kind, trace
        for signum, previous in self._previous.items():
            handler = previous
            if isinstance(error, SystemExit) and previous is not signal.SIG_IGN:
                handler = partial(_exit_again, error.code)
            signal.signal(signum, handler)  # type: ignore[arg-type]  # what signal.signal gave us it takes back
        self._previous.clear()
        os.close(self._write)
        self._thread.join()
        os.close(self._read)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Unlike SIG_IGN, this is no legacy of the workers: torch's have every handled signal at its default."""
    del signum, frame


def _exit_again(code: str | int | None, signum: int, frame: FrameType | None) -> None:
    """The process is on its way out and its exit code is settled: a late signal must not replace it."""
    del signum, frame
    raise SystemExit(code)
