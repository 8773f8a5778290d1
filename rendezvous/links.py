"""An agent's standing connections: its heartbeat, and its line to the store while its workers run.

Each has a connection and a thread of its own, so that neither a slow store nor a waiting read holds up the agent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from rendezvous.coordinator import RETRY
from rendezvous.lead import BEATS_PER_LEASE
from rendezvous.records import Decision, RecordError, Report, decode_decision, encode
from rendezvous.replay import decision_key
from rendezvous.stores import RunGone, Store, StoreUnavailable

__all__ = ["Heart", "RoundLink"]

logger = logging.getLogger(__name__)

LOOK = 5.0
"""Seconds one wait for the decision lasts before it is begun again."""

STOP_PATIENCE = 6.0
"""Seconds the agent waits for its line to end: a request may take 5 s. Who is still connecting then ends by itself."""


class Heart(threading.Thread):
    """Renews the agent's lease on a connection of its own."""

    def __init__(self, store: Store, lease: str, ttl: float) -> None:
        super().__init__(name="ezpz-heart", daemon=True)
        self._store, self._lease, self._ttl = store, lease, ttl
        self._stopping = threading.Event()

    def run(self) -> None:
        beat = pause = self._ttl / BEATS_PER_LEASE
        while not self._stopping.wait(pause):
            pause = beat
            try:
                self.beat()
            except StoreUnavailable as error:
                logger.debug("heartbeat: %s", error)
                pause = min(beat, RETRY)  # what the lease has left counts
            except Exception:
                # Whatever it is: a heart that stops is a healthy host that is lost.
                logger.exception("the heartbeat of %s failed and goes on", self._lease)

    def beat(self) -> None:
        """Renew the lease once.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        self._store.renew(self._lease, self._ttl)

    def stop(self) -> None:
        """Stop beating."""
        self._stopping.set()
        self._store.close()


class RoundLink(threading.Thread):
    """Sends an agent's reports and waits for the decision of one round, so that the agent itself never waits.

    Args:
        store: a connection that nobody else uses until ``stop``.
        round_number: the round.
        wake: called from this thread when ``decision`` or ``failure`` is set.
    """

    def __init__(self, store: Store, round_number: int, wake: Callable[[], None]) -> None:
        super().__init__(name="ezpz-round", daemon=True)
        self._store, self._wake = store, wake
        self._round, self._key = round_number, decision_key(round_number)
        self._outbox: deque[Report] = deque()
        self._stopping = threading.Event()
        self._closed = False
        self.decision: Decision | None = None
        self.failure: Exception | None = None
        self.away_since: float | None = None
        self.start()

    def report(self, report: Report) -> None:
        """Send a report as soon as the store takes it."""
        self._outbox.append(report)
        self._store.wake()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._send()
                data = self._store.wait(self._key, LOOK)
                self.away_since = None
                if data is not None:
                    self.decision = decode_decision(data, self._round, self._key)
                    self._wake()
                    return
            except RunGone as error:
                self.failure = error
                self._wake()
                return
            except StoreUnavailable as error:
                self.away_since = self.away_since or time.monotonic()
                logger.debug("round link: %s", error)
                self._stopping.wait(RETRY)
            except Exception as error:  # a malformed record, or what nobody has thought of: the agent must not wait on
                if not isinstance(error, RecordError):
                    logger.exception("the line of round %d failed", self._round)
                self.failure = error
                self._wake()
                return

    def _send(self) -> None:
        while self._outbox:
            self._store.append(encode(self._outbox[0]))
            self._outbox.popleft()

    def stop(self) -> None:
        """End the thread; the connection stays open for the next round's.

        If the thread has not ended in ``STOP_PATIENCE`` the connection is closed instead (see ``spent``).
        """
        self._stopping.set()
        self._store.wake()
        self.join(STOP_PATIENCE)
        if self.is_alive():
            self._closed = True
            self._store.close()

    @property
    def spent(self) -> bool:
        """Whether nobody else may use the connection: it was closed, or this thread uses it still."""
        return self._closed or self.is_alive()
