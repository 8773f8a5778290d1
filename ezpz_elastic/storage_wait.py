"""After a storage failure the next round waits until two hosts have written to it; one host's part in that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ezpz_elastic.journal import Journal
from ezpz_elastic.ledger import say
from ezpz_elastic.observe.writable import await_writable, place_of
from rendezvous.records import Decision, Member, Roster, Writable, encode
from rendezvous.seating import to_write
from rendezvous.stores import Store, StoreUnavailable

__all__ = ["StorageWait"]

PATIENCE = 10.0
"""Seconds that a word to a store that does not answer may take."""

RETRY = 1.0
"""Seconds to the next attempt to tell a store that does not answer."""


class StorageWait:
    """Finds out whether storage takes writes, in a thread of its own.

    Args:
        connect: makes a connection to the job's store.
        journal: this host's journal.
    """

    def __init__(self, connect: Callable[[], Store], journal: Journal) -> None:
        self._connect, self._journal = connect, journal
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, me: Member, roster: Roster, decision: Decision) -> None:
        """Write to storage if a decision wants to know, and wants it from this host.

        Args:
            me: this agent.
            roster: of the round that the decision has ended.
            decision: the decision.
        """
        left = {item.host for item in decision.retired}
        seats = (member if member.host not in left else None for member in roster.members)
        if decision.hold is None or me.id not in {member.id for member in to_write(seats)}:
            return
        self._over = over = threading.Event()
        self._thread = threading.Thread(
            target=self._find_out, args=(me, decision, over), name="ezpz-storage", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """It need not be known any more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)  # a thread inside the store's C++ when the interpreter ends is an abort

    def _find_out(self, me: Member, decision: Decision, over: threading.Event) -> None:
        began, number = time.monotonic(), decision.round
        directory = place_of(decision.hold.path if decision.hold is not None else "", self._journal.directory)
        told = ""

        def refused(why: str) -> None:
            nonlocal told
            self._journal.write("host_probed", number, probes={"storage": why}, unhealthy=["storage"])
            if not told:
                say(f"{me.host} waits for storage at {directory}: {why}")
            told = why

        if not await_writable(directory, over, refused):
            return
        detail = f"{directory} took a write after {time.monotonic() - began:.1f} s"
        self._journal.write("host_probed", number, probes={"storage": detail}, unhealthy=[])
        if told:
            say(f"{me.host}: {detail}")
        self._tell(Writable(number, me.id), over)

    def _tell(self, word: Writable, over: threading.Event) -> None:
        store = self._connect()
        try:
            while not over.is_set():
                try:
                    store.append(encode(word))
                    return
                except StoreUnavailable:
                    over.wait(RETRY)
        finally:
            store.close()
