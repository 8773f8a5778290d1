"""Is that agent still there? Two answers, both timed by the observer alone (no two hosts' clocks are compared).

A lease that is no longer renewed answers late but always. A port that refuses connections answers at once: the
kernel of the host says that the process which listened there is gone.
"""

from __future__ import annotations

import errno
import math
import selectors
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rendezvous.names import Names
from rendezvous.ports import listen
from rendezvous.records import Member

__all__ = ["LeaseClock", "Listener", "meet", "refused"]


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

_NO_WAY = frozenset({errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""This machine has no way to addresses of that kind, whoever is there."""

_NAMES = Names()


def meet(member: Member) -> None:
    """Begin to find out where this member's port is, so that it can be asked at once when it has to be."""
    _NAMES.of([member], 0.0)


def refused(members: Sequence[Member], timeout: float, names: Names = _NAMES) -> list[Member]:
    """Which of these members' ports refuse a connection.

    Args:
        members: whom to ask, ``AT_ONCE`` at a time.
        timeout: seconds for all of them; no answer in time is not a refusal, nor is a question that was not put. Half
            of it may pass until the names are known, and whoever does not answer keeps nobody from being asked.
        names: knows their addresses.
    """
    deadline = time.monotonic() + timeout
    found = names.of(members, timeout / 2)
    questions = [_Question(member, *address) for member in members for address in found.get(member, ())]
    _ask(questions, deadline)
    answers: dict[Member, list[bool]] = {}
    for question in questions:
        if question.refused is not None:
            answers.setdefault(question.member, []).append(question.refused)
    # A name may stand for another machine's address, too: one refusal among several is not enough.
    return [member for member in members if all(answers.get(member, [False]))]


@dataclass
class _Question:
    """Whether one address of a member refuses; ``None`` if this machine cannot reach any such address."""

    member: Member
    family: socket.AddressFamily
    address: tuple[Any, ...]
    refused: bool | None = False
    until: float = 0.0

    def put(self) -> socket.socket | None:
        """Begin to connect; ``None`` if the answer is there, or no question can be put."""
        try:
            probe = socket.socket(self.family, socket.SOCK_STREAM)
        except OSError as error:  # no descriptor is left, mostly
            self._hear(error.errno)
            return None
        probe.setblocking(False)
        try:
            probe.connect(self.address)
        except BlockingIOError:
            return probe
        except OSError as error:
            self._hear(error.errno)
        except (ValueError, TypeError, OverflowError):
            pass  # no address at all
        probe.close()
        return None

    def answer(self, probe: socket.socket) -> None:
        """The connection has been made, or has failed."""
        self._hear(probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _hear(self, number: int | None) -> None:
        self.refused = None if number in _NO_WAY else number == errno.ECONNREFUSED


def _ask(questions: Sequence[_Question], deadline: float) -> None:
    """Put all questions, ``AT_ONCE`` at a time; who keeps others waiting has its share of the time, and no more."""
    waiting = deque(questions)
    share = (deadline - time.monotonic()) / max(1, math.ceil(len(questions) / AT_ONCE))
    put: dict[socket.socket, _Question] = {}  # the oldest first
    with selectors.PollSelector() as selector:  # needs no descriptor of its own

        def forget(probe: socket.socket) -> None:
            selector.unregister(probe)
            probe.close()
            del put[probe]

        while (waiting or put) and (now := time.monotonic()) < deadline:
            if waiting and len(put) < AT_ONCE:
                question = waiting.popleft()
                question.until = now + share
                if (probe := question.put()) is not None:
                    put[probe] = question
                    selector.register(probe, selectors.EVENT_WRITE)
                continue
            oldest = next(iter(put.values()))
            for key, _ in selector.select(max(0.0, (oldest.until if waiting else deadline) - now)):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                put[sock].answer(sock)
                forget(sock)
            if waiting:
                for sock in [sock for sock, question in put.items() if question.until <= now]:
                    forget(sock)
        for sock in list(put):
            forget(sock)


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
            if number is None and before is not None and before[0] is not None and not away:
                ages[lease] = self._ttl
        for lease in self._seen.keys() - numbers.keys():
            del self._seen[lease]
        return ages
