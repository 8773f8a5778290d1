"""One small store protocol; the backends live beside this file.

Every agent holds several connections to one store (``connect`` makes another): one for its own reading and
writing, one for its heartbeat, one for its coordinator. A connection is used by one thread at a time.

The protocol needs four things of a backend and no more:

- *records* that the first writer wins (``create``) and that never change afterwards;
- an append-only *inbox* with many writers that is read from a cursor;
- *leases*: an agent renews its own, an observer reads whether others still do;
- *waiting* for a record, told by the backend where it can tell.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

__all__ = ["Store", "StoreGone", "StoreUnavailable"]


class StoreUnavailable(Exception):
    """The store did not answer. Nothing is known about whether the operation took place; it may be repeated."""


class StoreGone(StoreUnavailable):
    """The store was there and its server has ended; a server that keeps nothing on disk does not come back."""


class Store(Protocol):
    """One connection to the job's store.

    Keys are relative to the run. Every method but ``connect``, ``scale`` and ``close`` raises ``StoreUnavailable``.
    """

    def connect(self) -> Store:
        """Another connection to the same store, for another thread."""

    def create(self, key: str, value: bytes) -> bytes:
        """Write ``value`` unless ``key`` exists. Returns the value that is there now: the first writer's."""

    def get(self, key: str) -> bytes | None:
        """The value of ``key``, or ``None``."""

    def append(self, value: bytes) -> None:
        """Append a message to the inbox."""

    def read(self, cursor: int, timeout: float) -> tuple[list[bytes], int]:
        """Messages after ``cursor`` (0 = from the beginning) and the cursor to go on from.

        Waits up to ``timeout`` seconds for the first one. A message can be delivered twice, never lost.
        """

    def renew(self, lease: str, ttl: float) -> None:
        """Renew (or take) the lease ``lease`` for ``ttl`` seconds."""

    def leases(self, leases: Sequence[str]) -> list[int | None]:
        """For each lease a number that changes when it is renewed; ``None`` if it is known to have ended."""

    def wait(self, key: str, timeout: float, wakeup: threading.Event | None = None) -> bytes | None:
        """The value of ``key`` as soon as it exists; ``None`` after ``timeout`` seconds or once ``wakeup`` is set."""

    def scale(self, agents: int) -> None:
        """A hint: about how many agents wait at this store, so that a polling backend spreads its looks."""

    def close(self) -> None:
        """End this connection."""
