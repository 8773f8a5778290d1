"""One small store protocol; the backends live beside this file.

Every agent holds several connections to one store (``connect`` makes another): one for its own reading and
writing, one for its heartbeat, one for its coordinator. A connection is used by one thread at a time; only ``wake``
and ``close`` may be called from another.

The protocol needs four things of a backend and no more:

- *records* that the first writer wins (``create``) and that never change afterwards;
- an append-only *inbox* with many writers that is read from a cursor;
- *leases*: an agent renews its own, an observer reads whether others still do;
- *waiting* for a record, told by the backend where it can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Mail", "RunGone", "Store", "StoreGone", "StoreRefused", "StoreUnavailable"]

Mail = tuple[str, bytes]
"""A message of the inbox: the key it stands at, for errors, and its bytes."""


class StoreUnavailable(Exception):
    """The store did not answer. Nothing is known about whether the operation took place; it may be repeated."""


class StoreGone(StoreUnavailable):
    """The store was there and its server has ended; a server that keeps nothing on disk does not come back."""


class RunGone(StoreGone):
    """The store is there and what the run had in it is not any more: the job ended while this agent was cut off."""


class StoreRefused(StoreUnavailable):
    """What answers there will not serve this run; trying again will not help. The message says why."""


class Store(Protocol):
    """One connection to the job's store.

    ``durable`` says whether what it holds outlives its being away, so that it is worth waiting for.

    Keys are relative to the run. Every method but ``connect``, ``wake``, ``scale`` and ``close`` raises
    ``StoreUnavailable``.
    """

    durable: bool

    def connect(self) -> Store:
        """Another connection to the same store, for another thread."""

    def create(self, key: str, value: bytes) -> bytes:
        """Write ``value`` unless ``key`` exists. Returns the value that is there now: the first writer's."""

    def get(self, key: str) -> bytes | None:
        """The value of ``key``, or ``None``."""

    def append(self, value: bytes) -> None:
        """Append a message to the inbox."""

    def read(self, cursor: int, timeout: float) -> tuple[list[Mail], int]:
        """Messages after ``cursor`` (0 = from the beginning) and the cursor to go on from.

        Waits up to ``timeout`` seconds for the first one. A message can be delivered twice, never lost.
        """

    def renew(self, lease: str, ttl: float) -> None:
        """Renew (or take) the lease ``lease`` for ``ttl`` seconds."""

    def leases(self, leases: Sequence[str]) -> list[int | None]:
        """For each lease a number that changes while it is renewed; ``None`` if it was never taken or has ended."""

    def wait(self, key: str, timeout: float) -> bytes | None:
        """The value of ``key`` as soon as it exists; ``None`` after ``timeout`` seconds or a ``wake``."""

    def wake(self) -> None:
        """End the wait that is under way in another thread, or else the next one."""

    def end(self, lease: str, over: bool) -> None:
        """This agent is gone: give its lease up. If the job is ``over``, the last one may remove what the run left."""

    def scale(self, agents: int) -> None:
        """A hint: about how many agents wait at this store, so that a polling backend spreads its looks."""

    def close(self) -> None:
        """End this connection; a wait under way in another thread ends with ``StoreUnavailable``."""
