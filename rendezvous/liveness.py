"""Is that agent still there? Two answers, both timed by the observer alone (no two hosts' clocks are compared).

A lease that is no longer renewed answers late but always. A port that refuses connections answers at once: the
kernel of the host says that the process which listened there is gone.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Mapping, Sequence

from rendezvous.ports import listen
from rendezvous.records import Member

__all__ = ["LeaseClock", "Listener", "refused"]


class Listener:
    """The port by which others can tell that this agent's process exists. The kernel answers for it.

    Args:
        addr: address to listen on.
    """

    def __init__(self, addr: str) -> None:
        self._socket = listen(addr, 0)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def fileno(self) -> int:
        """For a selector: readable when somebody has asked."""
        return self._socket.fileno()

    def drain(self) -> None:
        """Take the connections of those who asked off the queue."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                # The queue is empty; or this caller's connection has failed meanwhile, or no descriptor is left, and
                # neither is a reason for the agent to end: the kernel has answered already.
                return
            connection.close()

    def close(self) -> None:
        """Stop answering: from now on this agent counts as gone."""
        self._socket.close()


AT_ONCE = 256
"""Ports asked at the same time: well below the 1,024 open files that many systems allow a process."""


def refused(members: Sequence[Member], timeout: float) -> list[Member]:
    """Which of these members' ports refuse a connection.

    Args:
        members: whom to ask, ``AT_ONCE`` at a time.
        timeout: seconds for all of them; no answer in time is not a refusal, nor is a question that was not put.
    """
    gone: list[Member] = []
    deadline = time.monotonic() + timeout
    for first in range(0, len(members), AT_ONCE):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        gone += _ask(members[first : first + AT_ONCE], left)
    return gone


def _ask(members: Sequence[Member], timeout: float) -> list[Member]:
    gone: list[Member] = []
    deadline = time.monotonic() + timeout
    with selectors.PollSelector() as selector:  # needs no descriptor of its own
        for member in members:
            if time.monotonic() >= deadline:
                break  # a name service that is slow to answer must not hold up who decides
            try:
                probe = socket.socket(socket.AF_INET6 if ":" in member.addr else socket.AF_INET, socket.SOCK_STREAM)
            except OSError:
                break  # no descriptor is left: a question that is not put
            probe.setblocking(False)
            try:
                probe.connect((member.addr, member.port))
            except BlockingIOError:
                selector.register(probe, selectors.EVENT_WRITE, member)
                continue
            except ConnectionRefusedError:
                gone.append(member)
            except (OSError, ValueError, TypeError):
                # Unreachable, unresolvable or (the last two) no address at all is no refusal; the lease will tell.
                pass
            probe.close()
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED:
                    gone.append(key.data)
                selector.unregister(sock)
                sock.close()
        for key in list(selector.get_map().values()):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            sock.close()
    return gone


class LeaseClock:
    """Times leases from how often their numbers change.

    Args:
        ttl: seconds without a change after which a lease has ended.

    An observer that was itself away (suspended, or cut off from the store) for more than half of ``ttl`` has seen
    nothing and accuses nobody: all leases start afresh.
    """

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._seen: dict[str, tuple[int | None, float]] = {}
        self._last: float | None = None

    def observe(self, numbers: Mapping[str, int | None], now: float) -> dict[str, float]:
        """Take one observation in.

        Args:
            numbers: for each lease the store's number; ``None`` if the store says that it has ended.
            now: the observer's monotonic clock, seconds.

        Returns:
            For each of these leases the seconds since it was last seen renewed; ``ttl`` or more means ended.
        """
        away = self._last is not None and now - self._last > self._ttl / 2
        self._last = now
        ages: dict[str, float] = {}
        for lease, number in numbers.items():
            before = self._seen.get(lease)
            if before is None or before[0] != number or away:
                self._seen[lease] = (number, now)
            ages[lease] = now - self._seen[lease][1]
            if number is None and before is not None and before[0] is not None:
                ages[lease] = self._ttl
        for lease in self._seen.keys() - numbers.keys():
            del self._seen[lease]
        return ages
