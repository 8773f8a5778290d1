"""The embedded store: a c10d ``TCPStore`` that the agent on the endpoint host serves.

Its host is a single point of failure. No request blocks inside C++ for longer than ``OP_TIMEOUT``, whatever has become
of the server (``sockets.py`` sees to that), and waiting is a short poll with back-off, so that signals, stops and
heartbeats are never held up by a waiting client. Only to connect may take longer, see ``OPEN_TIMEOUTS``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec
from torch.distributed import DistError, TCPStore

from rendezvous.ports import bound, listen
from rendezvous.stores import Mail, StoreGone, StoreRefused, StoreUnavailable
from rendezvous.stores.sockets import limited

__all__ = ["AddressTaken", "ForeignEndpoint", "StoreServer", "TcpStore", "greet", "serve_c10d"]

OP_TIMEOUT = 5.0
"""Seconds one request may go without any answer before the store counts as unavailable."""

BUSY = 8
"""How many times ``OP_TIMEOUT`` a server gets that greets and still does not answer in time. It is busy, not silent: to
ask it the same again as soon would add to that. Twice the time at each failure, and the usual time after a success."""

OPEN_TIMEOUTS = (2.0, OP_TIMEOUT, 15.0)
"""Seconds torch's client may take to connect: at first, and when that was not enough. It asks the name service for the
peer's name before it does so, for an address in figures too, and nothing switches that off; a resolver asks again after
5 s when a packet was lost, and gives up after a multiple of it. Whether the store is there at all is known before, from
its greeting; if it goes in between, torch tries on until the time is over, twice, and cannot be interrupted. So the
endpoint has to greet before each attempt, and the long ones come last: with a name service that answers, an agent that
is told to go meanwhile has gone within 5 s."""

DESCRIPTORS = 1 << 16
"""Descriptors that the process which serves the store may have: enough for 10,000 agents."""

DOOR_PAUSE = 0.1
"""Seconds until the next caller is looked at when one could not be taken, for want of a descriptor mostly."""

GREETING_TIMEOUT = 2.0
"""Seconds the endpoint may take to say that the store is there."""

SILENT_PART = 10
"""That part of a lease is how long the connection that renews it may be unheard: nothing that was sent is acknowledged,
or the endpoint cannot be reached. TCP itself would pause 6 s and more after a cut of 4 s, longer than the lease lasts.
A server that is only slow is not cut off by it, since its kernel acknowledges."""

SHORTEST_SILENCE = 0.25
"""Seconds: what any network may take, however short the lease; the kernel repeats what was lost after 0.2 s."""

POLL = (0.002, 0.125)
"""Seconds between two looks of a waiting client: the first, and what it doubles to while nothing happens. A look wakes
two threads here and one at the server, and an agent has two waiting clients while its workers train."""

LOOKS = 10_000
"""Looks a second that all waiting agents together may put on the server: about a quarter of one core there."""

WAITING = 2
"""Connections of an agent that wait: its coordinator's, and that of its round."""

HOLE_PATIENCE = 1.0
"""Seconds to wait for a message whose number was taken but which was not written: its writer died in between."""

SERVICE = "ezpz-elastic store 1"
"""What the endpoint says it is."""

logger = logging.getLogger(__name__)

_LONGEST_GREETING = 4096
_OPENING = b'{"run_id":'
_VOID = b"void"
_T = TypeVar("_T")


class AddressTaken(OSError):
    """Another program listens at the endpoint."""


class ForeignEndpoint(StoreRefused):
    """What answers at the endpoint is not this run's store."""


class Greeting(msgspec.Struct, frozen=True):
    """What the endpoint says to everyone who connects, before closing: whose store this is and where it listens."""

    run_id: str
    port: int
    service: str = SERVICE


@contextmanager
def _taking(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressTaken(error.errno, f"{host}:{port} is in use") from error
        raise


def raise_descriptor_limit() -> None:
    """Take as many descriptors as this process may: every agent holds half a dozen connections to the store, and 1,024,
    the usual limit until somebody asks for more, are used up by 170 agents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve_c10d(host: str) -> TCPStore:
    """Serve a fresh c10d store on a port that the system chooses, for as long as the returned object lives."""
    listener = listen(host, 0)
    store = TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=OPEN_TIMEOUTS[-1]),
        master_listen_fd=listener.detach(),
    )
    store.set_timeout(timedelta(seconds=OP_TIMEOUT))
    return store


class StoreServer:
    """The run's store, served by the agent at the endpoint.

    The endpoint itself only greets: torch's C++ client waits for ever on a port where another program listens, so
    nobody lets it connect before the endpoint has said that the store is there. The endpoint listens when it can greet.

    Args:
        host, port: the endpoint.
        run_id: the run it serves.

    Raises:
        AddressTaken: something listens at the endpoint already.
        OSError: the address is not one of this machine.
    """

    def __init__(self, host: str, port: int, run_id: str) -> None:
        raise_descriptor_limit()
        with _taking(host, port):
            self._door = bound(host, port)
        self._closed = threading.Event()
        try:
            self._store = serve_c10d(host)
            with _taking(host, port):
                self._door.listen(socket.SOMAXCONN)
        except BaseException:
            self._door.close()
            raise
        self.port: int = self._door.getsockname()[1]
        self.endpoint = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._greeting = msgspec.json.encode(Greeting(run_id, self._store.port))
        threading.Thread(target=self._greet, name="ezpz-endpoint", daemon=True).start()

    def _greet(self) -> None:
        told = False
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError as error:
                if self._closed.wait(DOOR_PAUSE):
                    return
                if not told:
                    logger.warning("a connection to the store could not be taken: %s", error)
                    told = True
                continue
            with connection, contextlib.suppress(OSError):  # whoever asked has gone already
                connection.sendall(self._greeting)

    def close(self) -> None:
        """Stop serving."""
        self._closed.set()
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        del self._store


def greet(host: str, port: int, reach: float = GREETING_TIMEOUT) -> Greeting:
    """Ask an endpoint what it serves.

    Args:
        host, port: the endpoint.
        reach: seconds in which the connection has to be there; the greeting may take ``GREETING_TIMEOUT`` after that.

    Raises:
        ForeignEndpoint: something else answers there.
        OSError: nothing listens there, or it cannot be reached, or (``TimeoutError``) it says nothing.
    """
    heard = b""
    with socket.create_connection((host, port), timeout=reach) as connection:
        deadline = time.monotonic() + GREETING_TIMEOUT
        with contextlib.suppress(TimeoutError):  # what was heard by then is looked at
            while (left := deadline - time.monotonic()) > 0 and len(heard) < _LONGEST_GREETING:
                connection.settimeout(left)
                data = connection.recv(_LONGEST_GREETING)
                if not data:
                    break
                heard += data
    try:
        greeting = msgspec.json.decode(heard, type=Greeting)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if _OPENING.startswith(heard[: len(_OPENING)]):  # not one wrong byte: too slow, stopped, or about to end
            raise TimeoutError(f"{host}:{port} takes connections and says nothing") from None
        raise ForeignEndpoint(f"{host}:{port} is taken by another program") from None
    if greeting.service != SERVICE:
        raise ForeignEndpoint(f"{host}:{port} is taken by another program")
    return greeting


class _Pace:
    """How long a pause between two looks may become: one for all connections of an agent, so a hint reaches each."""

    longest = POLL[1]


class TcpStore:
    """One connection to the store of one run.

    Args:
        host, port: the endpoint.
        run_id: namespace of the run's keys.
    """

    durable = False

    def __init__(self, host: str, port: int, run_id: str) -> None:
        self._host, self._port, self._run_id = host, port, run_id
        self._client: TCPStore | None = None
        self._closed = False
        self._bell = threading.Event()
        self._met = False
        self._hole: tuple[int, float] | None = None
        self._pause, self._pace = POLL[0], _Pace()
        self._answer = OP_TIMEOUT
        self._unheard: float | None = None

    def connect(self) -> TcpStore:
        """Another connection to the same store."""
        other = TcpStore(self._host, self._port, self._run_id)
        other._pace, other._met = self._pace, self._met
        return other

    def create(self, key: str, value: bytes) -> bytes:
        """Write ``value`` unless ``key`` exists; the value that is there now."""
        self._pause = POLL[0]  # whoever has just written something waits for what others make of it
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

        self._pause = POLL[0]
        self._do(write)

    def read(self, cursor: int, timeout: float) -> tuple[list[Mail], int]:
        """Messages after ``cursor``, waiting up to ``timeout`` seconds for the first."""
        for _ in self._polls(timeout):
            messages, cursor = self._do(partial(self._since, cursor))
            if messages:
                self._pause = POLL[0]
                return messages, cursor
        return [], cursor

    def renew(self, lease: str, ttl: float) -> None:
        """Count a beat; ``ttl`` is kept by the observer, whose clock alone times it.

        A connection whose first use this is does not outlast a cut of the network: the next beat dials anew.
        """
        self._unheard = max(SHORTEST_SILENCE, ttl / SILENT_PART)
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

    def wait(self, key: str, timeout: float) -> bytes | None:
        """The value of ``key`` as soon as it exists; ``None`` after ``timeout`` seconds or a ``wake``."""
        for _ in self._polls(timeout):
            value = self.get(key)
            if value is not None:
                self._pause = POLL[0]
                return value
        return None

    def wake(self) -> None:
        """End the wait that is under way in another thread, or else the next one."""
        self._bell.set()

    def end(self, lease: str, over: bool) -> None:
        """Nothing to do: a lease ends by not being renewed, and everything ends with the agent that serves it."""

    def scale(self, agents: int) -> None:
        """Look less often the more agents look, so that the server sees at most ``LOOKS`` a second in all."""
        self._pace.longest = max(POLL[1], agents * WAITING / LOOKS)

    def close(self) -> None:
        """End this connection; a wait under way in another thread returns at its next look."""
        self._closed = True
        self._bell.set()
        self._client = None

    def _key(self, key: str) -> str:
        return f"ezpz/{self._run_id}/{key}"

    def _message(self, number: int) -> str:
        return self._key(f"inbox/{number}")

    @staticmethod
    def _get(client: TCPStore, key: str) -> bytes | None:
        return bytes(client.get(key)) if client.check([key]) else None

    def _since(self, cursor: int, client: TCPStore) -> tuple[list[Mail], int]:
        count = int(client.add(self._key("inbox"), 0))
        if count <= cursor:
            return [], cursor
        keys = [self._message(number) for number in range(cursor + 1, count + 1)]
        if client.check(keys):
            values = map(bytes, client.multi_get(keys))
            return [(key, value) for key, value in zip(keys, values, strict=True) if value != _VOID], count
        messages: list[Mail] = []
        for number, key in enumerate(keys, start=cursor + 1):
            value = self._get(client, key)
            if value is None and not self._fill(client, number):
                return messages, number - 1
            if value is not None and value != _VOID:
                messages.append((key, value))
        return messages, count

    def _fill(self, client: TCPStore, number: int) -> bool:
        """Close a hole whose writer has been silent for too long; a late writer then takes a new number."""
        now = time.monotonic()
        if self._hole is None or self._hole[0] != number:
            self._hole = (number, now)
        if now - self._hole[1] < HOLE_PATIENCE:
            return False
        return bytes(client.compare_set(self._message(number), "", _VOID.decode())) == _VOID

    def _polls(self, timeout: float) -> Iterator[None]:
        """When to look; the pause is the connection's, so that a wait that is begun again goes on as it was."""
        deadline = time.monotonic() + timeout
        while True:
            yield
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if self._bell.wait(min(self._pause, left)):
                self._bell.clear()
                self._pause = POLL[0]
                if self._closed:
                    raise StoreUnavailable("this connection is closed")
                return
            self._pause = min(self._pause * 2, self._pace.longest)

    def _do(self, operation: Callable[[Any], _T]) -> _T:
        if self._closed:
            raise StoreUnavailable("this connection is closed")
        try:
            if self._client is None:
                self._client = self._open()
                self._met = True
            done = operation(self._client)
        except ConnectionRefusedError as error:
            kind = StoreGone if self._met else StoreUnavailable
            raise kind(f"store at {self._host}:{self._port}: {error}") from error
        except (DistError, OSError) as error:
            if self._client is not None:
                self._answer = min(self._answer * 2, OP_TIMEOUT * BUSY)
            self._client = None
            raise StoreUnavailable(f"store at {self._host}:{self._port}: {error}") from error
        self._answer = OP_TIMEOUT
        return done

    def _open(self) -> TCPStore:
        *first, last = OPEN_TIMEOUTS
        for timeout in first:
            with contextlib.suppress(DistError):  # slow, or gone meanwhile: the next greeting tells
                return self._dial(timeout)
        return self._dial(last)

    def _dial(self, timeout: float) -> TCPStore:
        greeting = greet(self._host, self._port, min(GREETING_TIMEOUT, self._unheard or GREETING_TIMEOUT))
        if self._closed:
            raise StoreUnavailable("this connection is closed")
        if greeting.run_id != self._run_id:
            raise ForeignEndpoint(f"{self._host}:{self._port} serves the run {greeting.run_id!r}, not {self._run_id!r}")
        allowed = timedelta(seconds=timeout)
        with limited(greeting.port, self._answer, self._unheard):
            client = TCPStore(self._host, greeting.port, is_master=False, wait_for_workers=False, timeout=allowed)
        client.set_timeout(timedelta(seconds=OP_TIMEOUT))
        return client
