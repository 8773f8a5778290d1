"""One attempt: a command is started, everything it says is taken, and its end is seen at once.

One loop waits for all of it: output, the child's end (told by the kernel), our own signals, silence.
The child leads a session of its own, so that Ctrl-C is ours to pass on, and carries a tag in its environment by which
everything it starts is found again, whatever session or parent that moves to. Nothing of it outlives the attempt,
also where it is ourselves who fail.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import msgspec

from ezpz_elastic import guard
from ezpz_elastic.observe.death_watch import DeathWatch
from ezpz_elastic.observe.text import readable
from ezpz_elastic.process_tree import LONGEST_WAIT, Family, stop_all
from ezpz_elastic.retry.stops import Stops
from ezpz_elastic.retry.stream import AttemptLog, ConsoleSink

__all__ = ["IDLE_EXIT", "Attempt", "Ended"]

IDLE_EXIT = 124
"""The exit code of an attempt that was silent for too long, as ``timeout(1)`` has it."""

_PIECE = 1 << 18
_NO_SUCH_COMMAND, _NOT_EXECUTABLE = 127, 126  # as shells say it
_LEFT_OVER = 2.0
"""Seconds in which output that the dead child's relatives still hold is waited for, once they are stopped too."""


class Ended(msgspec.Struct, frozen=True):
    """How an attempt ended.

    Args:
        exit_code: as ``subprocess`` tells it, so negative for a signal; ``IDLE_EXIT`` after silence.
        idle: it was stopped because it was silent.
        signalled: the signal that we were told to stop by, which ended it.
        seconds: how long it lived.
        stopping: seconds that it took to stop what was left.
        left: processes that survived SIGKILL.
    """

    exit_code: int
    idle: bool
    signalled: int | None
    seconds: float
    stopping: float
    left: tuple[int, ...] = ()


class Attempt:
    """A command's life.

    Args:
        tag: value of ``guard.TAG`` in everything the command starts.
        log: takes its output.
        console: takes it too.
        observe: is shown it.
        idle_timeout: seconds of silence after which it is stopped; 0: never.
        grace: seconds that processes get between SIGTERM and SIGKILL.
        stops: tells when we are told to stop.
    """

    def __init__(
        self,
        tag: str,
        log: AttemptLog,
        console: ConsoleSink,
        observe: Callable[[bytes], None],
        idle_timeout: float,
        grace: float,
        stops: Stops,
    ) -> None:
        self._tag, self._log, self._console, self._observe = tag, log, console, observe
        self._idle_timeout, self._grace, self._stops = idle_timeout, grace, stops
        self._family = Family(tag, None)
        self._selector = selectors.DefaultSelector()
        self._heard = time.monotonic()
        self._open = False

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], started: Callable[[int], None] = lambda _: None
    ) -> Ended:
        """Run the command to its end, or to ours.

        Args:
            command: program and arguments.
            environment: of the child.
            started: told the child's pid.

        Raises:
            OSError: it cannot be watched. What was started is stopped then, as after any other exception.
        """
        began = self._heard = time.monotonic()
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                env={**environment, guard.TAG: self._tag},
                start_new_session=True,
            )
        except OSError as error:
            os.close(read)
            self._say(f"{command[0]}: {error.strerror}")
            code = _NO_SUCH_COMMAND if error.errno == errno.ENOENT else _NOT_EXECUTABLE
            return Ended(code, False, self._stops.received, time.monotonic() - began, 0.0)
        finally:
            os.close(write)
        self._family.leaders.add(child.pid)
        try:
            started(child.pid)
            return self._live(child, read, began)
        except BaseException:
            stop_all(self._family, signal.SIGTERM, self._grace)
            raise
        finally:
            os.close(read)

    def _live(self, child: subprocess.Popen[bytes], read: int, began: float) -> Ended:
        """From the command's start to its end and that of all it has started."""
        os.set_blocking(read, False)
        with closing(DeathWatch(child.pid)) as death, self._selector:
            self._selector.register(read, selectors.EVENT_READ, self._take)
            self._selector.register(death, selectors.EVENT_READ, None)
            self._selector.register(self._stops, selectors.EVENT_READ, None)
            self._open = True
            idle = self._watch(death)
            ended = time.monotonic()
            left = self._stop(read, idle, dead=not idle and self._stops.received is None)
        ended_with = child.poll() if left else child.wait()
        return Ended(
            exit_code=IDLE_EXIT if idle or ended_with is None else ended_with,
            idle=idle,
            signalled=self._stops.received,
            seconds=ended - began,
            stopping=time.monotonic() - ended,
            left=tuple(left),
        )

    def _watch(self, death: DeathWatch) -> bool:
        """Until the child has ended, we are told to stop, or it was silent for too long; whether it is the last.

        It was we who did not listen if output is waiting when the time is over.
        """
        while self._stops.received is None:
            left = self._idle_timeout - (time.monotonic() - self._heard) if self._idle_timeout else LONGEST_WAIT
            ready = self._selector.select(min(max(left, 0.0), LONGEST_WAIT))
            for key, _ in ready:
                if key.data is not None:
                    key.data(key.fd)
            if any(key.fileobj is death for key, _ in ready):
                return False
            if left <= 0 and not ready:
                return True
        return False

    def _stop(self, read: int, idle: bool, dead: bool) -> list[int]:
        """End everything that is left, and take what it still says."""
        self._drain(read)
        if dead and not self._family.find():
            return []
        why = f"watchdog: no output for {self._idle_timeout:g} s. " if idle else ""
        # A launcher tells of every rank it kills. Said first, that is our doing and no host's.
        self._say(f"{why}Sending SIGTERM to all processes of this attempt")
        with ThreadPoolExecutor(1, "ezpz-stop") as pool:
            stopping = pool.submit(stop_all, self._family, signal.SIGTERM, self._grace)
            while not stopping.done():
                if self._stops.urgent:
                    self._family.hurry()
                if self._open:
                    self._wait_for_output(read, 0.05)
                else:
                    wait([stopping], 0.05)
        self._drain(read)
        return stopping.result()

    def _wait_for_output(self, read: int, timeout: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(read, selectors.EVENT_READ)
            if not selector.select(timeout):
                return False
        self._take(read)
        return True

    def _drain(self, read: int) -> None:
        """Take what is there, and no more: a relative of the dead child may hold the other end for ever."""
        deadline = time.monotonic() + _LEFT_OVER
        while self._open and time.monotonic() < deadline and self._wait_for_output(read, 0.0):
            continue

    def _take(self, read: int) -> None:
        try:
            data = os.read(read, _PIECE)
        except BlockingIOError:
            return
        if not data:  # everybody has closed it; whoever lives on is silent from now on
            self._open = False
            self._selector.unregister(read)
            return
        self._log.write(data)
        self._observe(data)
        self._console.write(data)
        self._heard = time.monotonic()  # not before: what held us up is no silence of the child's

    def _say(self, text: str) -> None:
        """A line of ours in the log, where the classifier reads it."""
        self._log.write(f"\n[ezpz] {readable(text)}\n".encode())
