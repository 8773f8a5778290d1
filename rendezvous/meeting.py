"""The round's own store, fresh in every round: slot 0's agent serves it, the others learn from a record where it is."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from torch.distributed import DistError, TCPStore

from rendezvous.records import Roster
from rendezvous.replay import decision_key
from rendezvous.seat import NotServed, Seat, meeting_place, seat_at
from rendezvous.stores import Store, StoreUnavailable
from rendezvous.stores.tcpstore import serve_c10d

__all__ = ["SLICE", "Meeting"]

logger = logging.getLogger(__name__)

SLICE = 0.25
"""Seconds a wait lasts before signals are looked at again."""

SERVE_PATIENCE = 15.0
"""Seconds for which slot 0's agent tries to serve the round's store: a name service may be away."""


class Meeting:
    """One agent's way to the store of each round.

    Args:
        store: where the record stands.
        addr: this agent's address, at which it serves if it has slot 0.
        check: raises if the agent has to go.
        interrupted: set when it has to.
    """

    def __init__(self, store: Store, addr: str, check: Callable[[], None], interrupted: threading.Event) -> None:
        self._store, self._addr, self._check, self._interrupted = store, addr, check, interrupted
        self._server: TCPStore | None = None

    def seat(self, roster: Roster, slot: int) -> Seat | None:
        """Meet the others of a round; ``None`` if the round ends before that.

        Args:
            roster: the round's roster.
            slot: this agent's slot.

        Raises:
            RecordError: the record says nowhere.
        """
        key = f"round/{roster.round}/master"
        give_up_at = time.monotonic() + SERVE_PATIENCE
        mine: bytes | None = None
        while True:
            self._check()
            if slot == 0 and mine is None:
                try:
                    mine = self._serve()
                except NotServed as error:
                    logger.debug("%s", error)
                    if time.monotonic() >= give_up_at:
                        return Seat(roster, slot, self._addr, 0, problem=error)
            try:
                place = self._store.wait(key, SLICE) if mine is None else self._store.create(key, mine)
                if place is not None:
                    return seat_at(place, roster, slot, key)
                if self._store.get(decision_key(roster.round)) is not None:
                    return None
            except StoreUnavailable:
                self._interrupted.wait(SLICE)

    def _serve(self) -> bytes:
        try:
            self._server = serve_c10d(self._addr)
        except (OSError, DistError) as error:
            raise NotServed(f"the round's store cannot be served at {self._addr}: {error}") from error
        return meeting_place(self._addr, self._server.port)

    def close(self) -> None:
        """Serve no more."""
        self._server = None
