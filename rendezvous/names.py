"""The addresses that other hosts' names stand for, asked for in the background: an answer may take as long as it likes.

The system's resolver waits for an answer that was lost for five seconds and more, and nothing can interrupt it. Whoever
times leases must not wait with it.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any

from rendezvous.records import Member

__all__ = ["Address", "Names"]

logger = logging.getLogger(__name__)

MOST = 8
"""Names asked for at the same time: most resolvers answer in a millisecond, and one that does not keeps a thread."""

Address = tuple[socket.AddressFamily, tuple[Any, ...]]
"""What ``socket.socket`` and its ``connect`` take; in figures, so that connecting asks nobody."""


class Names:
    """What has been found out so far, for each incarnation of an agent: while it lives it keeps its address, and a name
    that is given to somebody else later is not asked for again."""

    def __init__(self) -> None:
        self._found: dict[Member, list[Address]] = {}
        self._asked: dict[Member, None] = {}  # in the order of asking; the latest is looked up first
        self._under_way: set[Member] = set()
        self._threads = 0
        self._changed = threading.Condition()

    def of(self, members: Sequence[Member], timeout: float) -> dict[Member, list[Address]]:
        """The addresses of these members as far as they are known in time.

        Args:
            members: whose; what is not known is asked for, and goes on being asked for when the time is up.
            timeout: seconds to wait for what is not known yet.
        """
        with self._changed:
            for member in members:
                self._ask(member)
            self._changed.wait_for(lambda: all(self._settled(member) for member in members), timeout)
            return {member: self._found[member] for member in members if member in self._found}

    def _settled(self, member: Member) -> bool:
        return member not in self._asked and member not in self._under_way

    def _ask(self, member: Member) -> None:
        if member in self._found or member in self._under_way:
            return
        try:
            self._found[member] = _look_up(member, socket.AI_NUMERICHOST)
        except socket.gaierror:
            self._asked.pop(member, None)
            self._asked[member] = None
            self._start()
        except (OSError, ValueError, TypeError):
            self._found[member] = []  # no name at all

    def _start(self) -> None:
        if self._threads >= MOST:
            return
        self._threads += 1
        try:
            threading.Thread(target=self._run, name="ezpz-names", daemon=True).start()
        except RuntimeError as error:  # no thread is left in this system; those that run look further
            self._threads -= 1
            if not self._threads:
                self._asked.clear()
            logger.debug("names are not looked up now: %s", error)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._asked:
                    self._threads -= 1
                    return
                member, _ = self._asked.popitem()
                self._under_way.add(member)
            found: list[Address] | None = None
            try:
                found = _look_up(member, 0)
            except (OSError, ValueError, TypeError) as error:
                logger.debug("%s is not known now: %s", member.addr, error)  # it is asked for again when it is needed
            finally:
                with self._changed:
                    self._under_way.discard(member)
                    if found is not None:
                        self._found[member] = found
                    self._changed.notify_all()


def _look_up(member: Member, flags: int) -> list[Address]:
    answers = socket.getaddrinfo(member.addr, member.port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in answers]
