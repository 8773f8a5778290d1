"""Programs forked from a process that has imported what they need: a start takes a tenth of a second, not two.

Most tests are about what agents do, not about how they come to be; those of the start itself begin with a new
interpreter. The process is the product's own fork server: what it forks is what a new interpreter would have become and
ends by the interpreter's own way out (``tests/warm``). ``/proc`` shows the server's words and environment for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO

from ezpz_elastic.warm.client import WarmServer

__all__ = ["Program", "fork"]

AGENTS = ("support.imported",)
"""What a torchrun with our agent imports."""

PATIENCE = 60.0
"""Seconds to import everything; two of them on an idle machine."""


_ONE_AT_A_TIME = threading.Lock()


class Program:
    """One that runs or has run; as much of ``subprocess.Popen`` as a test needs."""

    def __init__(self, server: WarmServer, words: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> None:
        self._words = words
        self._forked = server.fork(words, dict(env), log.fileno(), log.fileno(), None)
        self.pid = self._forked.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, minus the signal's number if one ended it.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            end = self._forked.wait(timeout)
            if end is None:
                raise subprocess.TimeoutExpired(list(self._words), timeout or 0)
            assert end.seen, "the process that forked it has ended, and with it the knowledge of how it ended"
            self._forked.close()
            self.returncode = os.waitstatus_to_exitcode(end.status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def fork(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], log: IO[bytes], ahead: Sequence[str] = AGENTS
) -> Program:
    """Start a Python program in a session of its own.

    Args:
        words: ``SCRIPT …``.
        cwd, env, log: its directory, its whole environment, and where its output goes.
        ahead: what to import before the first one of this script.
    """
    with _ONE_AT_A_TIME, _in(cwd):
        return Program(_server(words[0], tuple(ahead)), words, env, log)


@lru_cache(maxsize=2)
def _server(script: str, ahead: tuple[str, ...]) -> WarmServer:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), before)))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            server = WarmServer(sys.executable, [script], ahead, "no agent's", Path(scratch))
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    assert server.ready(PATIENCE), "it imports for too long"
    return server


@contextlib.contextmanager
def _in(directory: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
