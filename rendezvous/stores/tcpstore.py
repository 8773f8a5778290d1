"""The embedded store: a c10d ``TCPStore`` that the agent on the endpoint host serves.

Its host is a single point of failure. Nothing here blocks inside C++ for longer than ``OP_TIMEOUT``: waiting is a
short poll with back-off, so that signals, stops and heartbeats are never held up by a waiting client.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from torch.distributed import DistError, TCPStore

from rendezvous.stores import StoreUnavailable

__all__ = ["AddressTaken", "TcpStore", "serve"]

OP_TIMEOUT = 5.0
"""Seconds one operation may take before the store counts as unavailable."""

CONNECT_TIMEOUT = 2.0
"""Seconds one attempt to connect may take."""

POLL = (0.002, 0.025)
"""Seconds between two looks of a waiting client: from the first down to the last, doubling."""

LOOKS = 10_000
"""Looks a second that all waiting agents together may put on the server: about a quarter of one core there."""

HOLE_PATIENCE = 1.0
"""Seconds to wait for a message whose number was taken but which was not written: its writer died in between."""

_VOID = b"void"
_T = TypeVar("_T")


class AddressTaken(OSError):
    """Another program listens at the endpoint."""


def serve(host: str, port: int) -> TCPStore:
    """Serve a store at ``host:port`` for as long as the returned object lives.

    A loopback address is bound exactly, so that several "hosts" of one machine do not see each other's ports; any
    other name is served on all interfaces, because a machine may know its own name by a loopback address.

    Raises:
        AddressTaken: something listens there already.
        OSError: the address is not one of this machine.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    loopback = str(address[0]).startswith("127.") or address[0] == "::1"
    try:
        listener.bind(address if loopback else ("", port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressTaken(error.errno, f"{host}:{port} is in use") from error
        raise
    bound_port = listener.getsockname()[1]
    return TCPStore(
        host,
        bound_port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=OP_TIMEOUT),
        master_listen_fd=listener.detach(),
    )


class TcpStore:
    """One connection to the store of one run.

    Args:
        host, port: the endpoint.
        run_id: namespace of the run's keys.
    """

    def __init__(self, host: str, port: int, run_id: str) -> None:
        self._host, self._port, self._run_id = host, port, run_id
        self._client: TCPStore | None = None
        self._closed = threading.Event()
        self._hole: tuple[int, float] | None = None
        self._longest_pause = POLL[1]

    def connect(self) -> TcpStore:
        """Another connection to the same store."""
        other = TcpStore(self._host, self._port, self._run_id)
        other._longest_pause = self._longest_pause
        return other

    def create(self, key: str, value: bytes) -> bytes:
        """Write ``value`` unless ``key`` exists; the value that is there now."""
        return self._do(lambda client: bytes(client.compare_set(self._key(key), "", value.decode())))

    def get(self, key: str) -> bytes | None:
        """The value of ``key``, or ``None``."""
        return self._do(lambda client: self._get(client, self._key(key)))

    def append(self, value: bytes) -> None:
        """Append a message; each message has a number of its own, so writers never collide."""

        def write(client: TCPStore) -> None:
            while True:
                number = client.add(self._key("inbox"), 1)
                if bytes(client.compare_set(self._message(number), "", value.decode())) == value:
                    return

        self._do(write)

    def read(self, cursor: int, timeout: float) -> tuple[list[bytes], int]:
        """Messages after ``cursor``, waiting up to ``timeout`` seconds for the first."""
        for _ in self._polls(timeout):
            messages, cursor = self._do(partial(self._since, cursor))
            if messages:
                return messages, cursor
        return [], cursor

    def renew(self, lease: str, ttl: float) -> None:
        """Count a beat; ``ttl`` is kept by the observer, whose clock alone times it."""
        del ttl
        self._do(lambda client: client.add(self._key(f"lease/{lease}"), 1))

    def leases(self, leases: Sequence[str]) -> list[int | None]:
        """Beats counted for each lease; ``None`` for one that was never taken."""

        def count(client: TCPStore) -> list[int | None]:
            keys = [self._key(f"lease/{lease}") for lease in leases]
            if not keys:
                return []
            if client.check(keys):
                return [int(value) for value in client.multi_get(keys)]
            values = [self._get(client, key) for key in keys]
            return [None if value is None else int(value) for value in values]

        return self._do(count)

    def wait(self, key: str, timeout: float, wakeup: threading.Event | None = None) -> bytes | None:
        """The value of ``key`` as soon as it exists; ``None`` after ``timeout`` seconds or once ``wakeup`` is set."""
        for _ in self._polls(timeout, wakeup):
            value = self.get(key)
            if value is not None:
                return value
        return None

    def scale(self, agents: int) -> None:
        """Look less often the more agents look, so that the server sees at most ``LOOKS`` a second in all."""
        self._longest_pause = max(POLL[1], agents / LOOKS)

    def close(self) -> None:
        """End this connection; a wait under way in another thread returns at its next look."""
        self._closed.set()
        self._client = None

    def _key(self, key: str) -> str:
        return f"ezpz/{self._run_id}/{key}"

    def _message(self, number: int) -> str:
        return self._key(f"inbox/{number}")

    @staticmethod
    def _get(client: TCPStore, key: str) -> bytes | None:
        return bytes(client.get(key)) if client.check([key]) else None

    def _since(self, cursor: int, client: TCPStore) -> tuple[list[bytes], int]:
        count = int(client.add(self._key("inbox"), 0))
        if count <= cursor:
            return [], cursor
        keys = [self._message(number) for number in range(cursor + 1, count + 1)]
        if client.check(keys):
            return [value for value in map(bytes, client.multi_get(keys)) if value != _VOID], count
        messages: list[bytes] = []
        for number, key in enumerate(keys, start=cursor + 1):
            value = self._get(client, key)
            if value is None and not self._fill(client, number):
                return messages, number - 1
            if value is not None and value != _VOID:
                messages.append(value)
        return messages, count

    def _fill(self, client: TCPStore, number: int) -> bool:
        """Close a hole whose writer has been silent for too long; a late writer then takes a new number."""
        now = time.monotonic()
        if self._hole is None or self._hole[0] != number:
            self._hole = (number, now)
        if now - self._hole[1] < HOLE_PATIENCE:
            return False
        return bytes(client.compare_set(self._message(number), "", _VOID.decode())) == _VOID

    def _polls(self, timeout: float, wakeup: threading.Event | None = None) -> Iterator[None]:
        deadline, pause = time.monotonic() + timeout, POLL[0]
        while True:
            yield
            left = deadline - time.monotonic()
            if left <= 0 or (wakeup or self._closed).wait(min(pause, left)):
                return
            pause = min(pause * 2, self._longest_pause)

    def _do(self, operation: Callable[[Any], _T]) -> _T:
        if self._closed.is_set():
            raise StoreUnavailable("this connection is closed")
        try:
            if self._client is None:
                self._client = self._open()
            return operation(self._client)
        except (DistError, OSError) as error:
            self._client = None
            raise StoreUnavailable(f"store at {self._host}:{self._port}: {error}") from error

    def _open(self) -> TCPStore:
        # A plain socket first: a refused connection is an answer, and the C++ client would log and retry for long.
        with contextlib.closing(socket.create_connection((self._host, self._port), timeout=CONNECT_TIMEOUT)):
            pass
        timeout = timedelta(seconds=OP_TIMEOUT)
        return TCPStore(self._host, self._port, is_master=False, wait_for_workers=False, timeout=timeout)
