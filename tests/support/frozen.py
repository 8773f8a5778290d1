"""Processes that stand still, and an embedded store in one, as the tests of silent servers need them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from ezpz_elastic.faults.outside import stop_all
from ezpz_elastic.faults.scene import Targets
from rendezvous.stores import StoreUnavailable
from rendezvous.stores.tcpstore import TcpStore

__all__ = ["ServerProcess", "halt", "server_process"]

_SERVE = """
import sys
from rendezvous.stores.tcpstore import StoreServer
server = StoreServer(sys.argv[1], 0, "run")
print(server.port, flush=True)
sys.stdin.read()
"""


def halt(pid: int) -> None:
    """SIGSTOP to a process; when this returns, none of its threads does anything any more."""
    assert stop_all(Targets({pid: "to stand still"})).landed, "the fault did not happen"


class ServerProcess:
    """A process that serves the run ``run`` at ``host:port``."""

    def __init__(self, host: str, prefix: list[str]) -> None:
        self.host = host
        command = [*prefix, sys.executable, "-c", _SERVE, host]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def client(self) -> TcpStore:
        """A connection that is there already, with the time limits that hold now; a busy machine may need several."""
        store, deadline = TcpStore(self.host, self.port, "run"), time.monotonic() + 60
        while True:
            try:
                store.get("connected")
            except StoreUnavailable:
                if time.monotonic() >= deadline:
                    raise
            else:
                return store

    def stop(self) -> None:
        """From here on it does nothing; the kernel goes on to take what is sent to it."""
        halt(self._process.pid)

    def is_stopped(self) -> bool:
        return psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def server_process(host: str = "127.0.0.1", prefix: list[str] | None = None) -> Iterator[ServerProcess]:
    """One that is gone afterwards; ``prefix`` is the command that starts it, e.g. in a namespace."""
    made = ServerProcess(host, prefix or [])
    try:
        yield made
    finally:
        made.close()
