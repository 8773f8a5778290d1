"""What all connections of one agent to a run in etcd share: which run it is, and the leases that keep it and the agent.

A run is known by the revision at which its first record was created. Nothing is written to, or found missing in, a run
that is not the one this agent knows: it may have been removed, and another one begun in its place.

A heartbeat has a channel of its own and asks the next member long before the agent's lease is over. Its lease is
granted for longer than the agent's promise, by as much as a member that hangs may cost.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from typing import Any
from urllib.parse import quote

from rendezvous.stores import RunGone
from rendezvous.stores.etcd_client import EtcdClient, LeaseTaken

__all__ = ["RUN_TTL", "Run", "born", "grant", "lease_id", "refresh"]

RUN_TTL = 24 * 3600
"""Seconds for which the records of a run outlive the last sign of its last agent: longer than any outage."""

RUN_RENEWAL = 600.0
"""Seconds between two renewals of the run's lease by one agent."""

FIRST = "job"
"""The record with which every run begins."""

BEATS_LOST = 0.2
"""Part of a lease's time for which its renewal waits before it asks another member: a member that hangs costs that."""

LEAST_PATIENCE = 1.0
"""Seconds it waits at least, or a busy machine would look like a dead member."""


class Run:
    """What all connections of one agent share.

    Args:
        client: the wire.
        run_id: the run.
        keep: leave the records after the run, for a postmortem.
    """

    def __init__(self, client: EtcdClient, run_id: str, keep: bool) -> None:
        self.client, self.keep = client, keep
        self.id, self.prefix = run_id, f"/ezpz/{quote(run_id, safe='')}/"
        self.first = (self.prefix + FIRST).encode()
        self.lease = 0 if keep else lease_id(self.prefix)
        self.held: set[str] = set()
        self.renew_at = -math.inf
        self.users = 0
        self.lock = threading.Lock()
        self._born = 0
        self._pulse: EtcdClient | None = None

    def patience(self, ttl: float) -> float:
        """Seconds for which the renewal of a lease of ``ttl`` seconds waits for one member."""
        return min(max(LEAST_PATIENCE, BEATS_LOST * ttl), self.client.timeout)

    def pulse(self, ttl: float) -> EtcdClient:
        """The wire of the heartbeat: it asks another member long before the lease is over."""
        with self.lock:
            if self._pulse is None:
                self._pulse = self.client.hastier(self.patience(ttl))
            return self._pulse

    def keep_alive(self, client: EtcdClient) -> None:
        """Keep the run's records from expiring, now and then."""
        if self.lease and time.monotonic() >= self.renew_at:
            if not refresh(client, self.lease):
                grant(client, self.lease, RUN_TTL)
            self.renew_at = time.monotonic() + RUN_RENEWAL

    def same(self, etcd: Any) -> list[Any]:
        """What a transaction has to ask so that it changes no other run than this one."""
        return [etcd.transactions.create(self.first) == self._born] if self._born else []

    def recognise(self, born: int) -> None:
        """See that what is there is still this run.

        Args:
            born: the revision at which its first record was created; 0: there is none.

        Raises:
            RunGone: it is another one, or none any more.
        """
        if self._born not in (0, born):
            raise RunGone(f"the records of run {self.id!r} were removed: the job ended while this host was cut off")
        self._born = born

    def close(self) -> None:
        """Close the channels."""
        self.client.close()
        if self._pulse is not None:
            self._pulse.close()


def grant(client: EtcdClient, lease: int, ttl: float) -> None:
    """Take a lease, or find it there already."""
    try:
        client.call(lambda etcd: etcd.lease(max(1, math.ceil(ttl)), lease))
    except LeaseTaken:
        refresh(client, lease)


def refresh(client: EtcdClient, lease: int) -> bool:
    """Keep a lease alive; whether it still was."""
    return client.call(lambda etcd: any(answer.TTL > 0 for answer in etcd.refresh_lease(lease)))


def born(found: list[Any]) -> int:
    """The revision at which a record was created, from ``etcd3``'s answer to a ``get``; 0: it is not there."""
    return int(found[0][1].create_revision) if found else 0


def lease_id(name: str) -> int:
    """A lease number that everybody derives from the name alike: 63 bits, never 0."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 1) or 1
