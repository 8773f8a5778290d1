"""The agent's end of a fork server: starting it, asking it for workers, learning how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ezpz_elastic.guard import TAG
from ezpz_elastic.warm import server as program

__all__ = ["End", "Forked", "ServerGone", "Unfit", "WarmServer"]

_LENGTH = struct.Struct("!I")


KILL_PATIENCE = 5.0
"""Seconds a server that was killed is waited for; only uninterruptible sleep lets it take longer."""

ANSWER = 30.0
"""Seconds for a ready server to fork; it takes milliseconds. One that is stopped never does."""

UNKNOWN = 255 << 8
"""Status of a worker whose server has ended before it; stdlib's own fork server says 255 in that case, too."""


class ServerGone(Exception):
    """The server has ended, or did not become ready in time."""


class Unfit(Exception):
    """Importing a module ahead has left threads or open devices behind; its name is the argument."""


class End(msgspec.Struct, frozen=True):
    """How a worker ended.

    Args:
        status: as ``os.waitpid`` gives it.
        peak_rss_bytes: peak resident memory.
        cpu_seconds: processor time of it and its waited-for children.
        at: the server's monotonic clock (of this machine), seconds.
        seen: whether the server saw it; else it has ended itself, and the rest says nothing.
    """

    status: int
    peak_rss_bytes: int
    cpu_seconds: float
    at: float
    seen: bool = True


class Forked:
    """A worker.

    Args:
        pid: its process, a child of the server.
        teller: the end of a pipe that becomes readable when it ends.
    """

    def __init__(self, pid: int, teller: int) -> None:
        self.pid, self._teller = pid, teller
        self._end: End | None = None

    def fileno(self) -> int:
        """For a selector: readable once the worker has ended."""
        return self._teller

    def wait(self, timeout: float | None = None) -> End | None:
        """How it ended; ``None`` if it has not within ``timeout`` seconds.

        If the server ends first nobody can know any more: the status is ``UNKNOWN`` then, alive or not.
        """
        if self._end is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._teller, selectors.EVENT_READ)
                if not selector.select(timeout):
                    return None
            data = os.read(self._teller, 4096)
            self._end = (
                msgspec.json.decode(data, type=End) if data else End(UNKNOWN, 0, 0.0, time.monotonic(), seen=False)
            )
        return self._end

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._teller)


class Grandchild:
    """A process that another server has forked; as much of ``subprocess.Popen`` as a server needs.

    Args:
        pid: its id; the one that has forked it is alive.

    Raises:
        ProcessLookupError: it has ended already.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self._handle = pid, os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Not ``None`` if it has ended; how, only its parent knows."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it has not come.
        """
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._handle, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout)
            os.close(self._handle)
            self.returncode = os.waitstatus_to_exitcode(UNKNOWN)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)


class WarmServer:
    """A fork server, imported and ready or on its way there.

    Args:
        python: the interpreter, as the worker's command would name it.
        words: what the interpreter is to run: ``[-m] SCRIPT …``.
        modules: what to import ahead, in order.
        tag: the agent's tag.
        scratch: a directory for what the imports print.
        parent: a server of the same words that is ready; this one is forked from it and has its modules at once.
        give_up: looked at four times a second while the parent has not forked yet.

    Raises:
        ServerGone: the parent has ended, or does not fork.
        OSError: there can be no such process.
    """

    def __init__(
        self,
        python: str,
        words: Sequence[str],
        modules: Sequence[str],
        tag: str,
        scratch: Path,
        parent: WarmServer | None = None,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.modules = tuple(modules)
        self._tree = _tree(words)
        self._link, theirs = socket.socketpair()
        self._link.settimeout(ANSWER)
        self._one_at_a_time = threading.Lock()
        self.was_ready = False
        self._process: subprocess.Popen[bytes] | Grandchild
        with contextlib.ExitStack() as undo:
            undo.callback(self._link.close)
            with theirs, _empty(scratch / "imports.out") as out, _empty(scratch / "imports.err") as err:
                if parent is not None:
                    parent._branch(theirs.fileno(), out.fileno(), err.fileno())
                else:
                    self._process = subprocess.Popen(
                        [python, "-u", program.__file__, str(theirs.fileno()), *words],
                        stdout=out,
                        stderr=err,
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,
                        env={**os.environ, TAG: tag},
                    )
            if parent is not None:
                if not self._heard(ANSWER, give_up):
                    raise ServerGone(_silent())
                self._process = Grandchild(int(self._receive()["pid"]))
            undo.pop_all()
        self.pid = self._process.pid
        with contextlib.suppress(ServerGone):  # one that could not even start: ``ready`` tells
            self._send({"modules": list(modules), "tree": self._tree})

    def extend(self, modules: Sequence[str]) -> None:
        """Have a ready server that has no workers import more; ``ready`` tells when it has.

        Raises:
            ServerGone: the server has ended.
        """
        self.modules = (*self.modules, *modules)
        self.was_ready = False
        self._send({"modules": list(modules), "tree": self._tree})

    def ready(self, timeout: float, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until it is ready.

        Args:
            timeout: seconds.
            give_up: looked at four times a second.

        Raises:
            ServerGone, Unfit: it will never be.
        """
        if self._process.poll() is not None or self._link.fileno() < 0:
            raise ServerGone(f"the fork server has ended with {self._process.returncode}")
        if not self.was_ready and self._heard(timeout, give_up):
            message = self._receive()
            if "unfit" in message:
                raise Unfit(message["unfit"])
            self.was_ready = True
        return self.was_ready

    def fork(
        self,
        words: Sequence[str],
        env: dict[str, str],
        stdout: int,
        stderr: int,
        record: Path | None,
        group: Path | None = None,
    ) -> Forked:
        """Start a worker; the server must be ready.

        Args:
            words: ``[-m] SCRIPT …`` with this worker's arguments.
            env: its whole environment.
            stdout, stderr: descriptors for its output.
            record: where to note what it imports.
            group: ``cgroup.procs`` of the control group that it enters before it does anything.

        Raises:
            ServerGone: the server has ended.
            OSError: it cannot fork.
        """
        mine, theirs = os.pipe()
        try:
            job = {"words": list(words), "env": env, "cwd": str(Path.cwd())}
            files = {"record": record and str(record), "group": group and str(group)}
            pid = self._fork(job | files, theirs, stdout, stderr)
        except BaseException as error:
            os.close(mine)
            if isinstance(error, ServerGone):  # what it answers later would be taken for an answer to something else
                self.close()
            raise
        finally:
            os.close(theirs)
        return Forked(pid, mine)

    def _branch(self, link: int, stdout: int, stderr: int) -> None:
        """Have another server forked. It answers, not this one, which may have workers and must not fail for it."""
        with self._one_at_a_time, Path(os.devnull).open("wb") as teller:  # its own link tells of its end
            self._send({}, teller.fileno(), stdout, stderr, link)

    def _fork(self, job: dict[str, Any], *descriptors: int) -> int:
        with self._one_at_a_time:  # a round may begin while somebody branches off
            self._send(job, *descriptors)
            answer = self._receive()
        if "error" in answer:
            raise OSError(answer["errno"], answer["error"])
        return int(answer["pid"])

    def close(self) -> None:
        """End the server; its workers should have ended before. One that SIGKILL does not end is left alone."""
        self._link.close()
        self._process.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it imports from a file system that is away
            self._process.wait(KILL_PATIENCE)

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        # Not msgspec: the environment may hold bytes that are not UTF-8, which only this json carries through.
        data = json.dumps(message).encode()
        try:
            socket.send_fds(self._link, [_LENGTH.pack(len(data))], descriptors)
            self._link.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def _heard(self, timeout: float, give_up: Callable[[], bool]) -> bool:
        """Whether it says something, or ends, within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            while not selector.select(max(0.0, min(left := deadline - time.monotonic(), 0.25))):
                if left <= 0 or give_up():
                    return False
        return True

    def _receive(self) -> dict[str, Any]:
        size = _LENGTH.unpack(self._exactly(_LENGTH.size))[0]
        return msgspec.json.decode(self._exactly(size), type=dict[str, Any])

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                more = self._link.recv(size - len(data))
            except OSError as error:
                raise self._lost(error) from error
            if not more:
                raise ServerGone("the fork server has ended")
            data += more
        return data

    def _lost(self, error: OSError) -> ServerGone:
        if isinstance(error, TimeoutError):
            return ServerGone(_silent())
        return ServerGone(f"the fork server has ended: {error}")


def _silent() -> str:
    return f"the fork server does not answer within {ANSWER:g} s"


def _empty(path: Path) -> BinaryIO:
    return path.open("w+b", buffering=0)


def _tree(words: Sequence[str]) -> str:
    """The directory that holds the program's own modules."""
    return str(Path.cwd() if words[0] == "-m" else Path(words[0]).resolve().parent)
