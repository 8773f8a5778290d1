"""The run's records in etcd: they outlive any host of the job and one etcd member in three.

Everything of a run lies below ``/ezpz/<run_id>/`` and hangs on one etcd lease of the run, which every agent keeps
alive: what nobody removes expires ``RUN_TTL`` after the last agent's last sign. Each agent also holds a lease of its
own with the key ``alive/<id>``; etcd times it, and the key's end is the agent's end.

A message of the inbox is a key of its own, and its place in the order is the revision etcd gave it; so writers never
collide, and a reader goes on from the last revision it has seen.

The last agent of a job removes everything. Whoever was cut off meanwhile is told so (``RunGone``) instead of beginning
anew in what is empty then, or of following a later job of the same name.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rendezvous.stores import Mail, StoreUnavailable
from rendezvous.stores.etcd_client import EtcdClient, LeaseUnknown
from rendezvous.stores.etcd_run import RUN_TTL, Run, born, grant, lease_id, refresh
from rendezvous.stores.grpc_forks import etcd3

__all__ = ["EtcdStore"]

rpc = etcd3.etcdrpc

PART = 1 << 20
"""Bytes of a value that go into one key; etcd's limit for a whole request is 1.5 MiB."""

_PARTS = b"\0ezpz parts\0"
"""Begins a value that lies elsewhere in parts; what follows is a ``_Parts`` as JSON."""


class _Parts(msgspec.Struct, frozen=True):
    """Where a large value lies: ``part/<id>/0`` … ``part/<id>/<count - 1>``."""

    id: str
    count: int
    size: int


class _Watch:
    """One watch and what it has brought; filled by gRPC's thread, emptied by the connection's own.

    Args:
        bell: rung when something has come.
    """

    def __init__(self, bell: threading.Event) -> None:
        self.bell = bell
        self.events: deque[Any] = deque()
        self.lost = False
        self.cancel: Callable[[], None] | None = None

    def __call__(self, response: Any) -> None:
        events = getattr(response, "events", None)
        if events is None:
            self.lost = True  # the stream's end or an error
        else:
            self.events.extend(event for event in events if isinstance(event, etcd3.events.PutEvent))
        self.bell.set()


class EtcdStore:
    """One connection to the records of one run.

    Args:
        client: the wire, shared by all connections of this agent.
        run_id: namespace of the run's keys.
        keep: leave the records in etcd after the run.
    """

    durable = True

    def __init__(self, client: EtcdClient, run_id: str, keep: bool = False) -> None:
        self._begin(Run(client, run_id, keep))

    def _begin(self, run: Run) -> None:
        self._run, self._client = run, run.client
        self._closed = self._woken = False
        self._bell = threading.Event()
        self._record: tuple[bytes, _Watch] | None = None
        self._tail: tuple[int, _Watch] | None = None
        self._looks = 0
        with run.lock:
            run.users += 1

    def connect(self) -> EtcdStore:
        """Another connection over the same channel."""
        other = EtcdStore.__new__(EtcdStore)
        other._begin(self._run)
        return other

    # -- records -----------------------------------------------------------------------------------------------------

    def create(self, key: str, value: bytes) -> bytes:
        """Write ``value`` unless ``key`` exists, in one transaction; the value that is there now."""
        stored = self._split(value)
        winner = self._write(self._key(key), stored)
        if winner == stored:
            return value
        if stored.startswith(_PARTS):
            self._drop_parts(stored)
        return self._join(winner)

    def get(self, key: str) -> bytes | None:
        """The value of ``key``, or ``None``."""
        value, _ = self._look(self._key(key))
        return None if value is None else self._join(value)

    def wait(self, key: str, timeout: float) -> bytes | None:
        """The value of ``key``, as soon as etcd tells of it. Waiting again for the same key costs etcd nothing."""
        deadline, place = time.monotonic() + timeout, self._key(key)
        while True:
            self._check()
            value = self._told(place)
            if value is not None:
                return self._join(value)
            left = deadline - time.monotonic()
            if left <= 0 or self._wakes():
                return None
            if self._bell.wait(left):
                self._bell.clear()

    def _told(self, place: bytes) -> bytes | None:
        """What is known of the record waited for; watched from the revision at which it was not there yet."""
        if self._record is not None and (self._record[0] != place or self._record[1].lost):
            self._unwatch(self._record[1])
            self._record = None
        if self._record is None:
            value, revision = self._look(place)
            if value is not None:
                return value
            self._record = (place, self._watch(place, start_revision=revision + 1))
        events = self._record[1].events
        return bytes(events[0].value) if events else None

    # -- the inbox ---------------------------------------------------------------------------------------------------

    def append(self, value: bytes) -> None:
        """Append a message under a key of its own."""
        self._write(self._key(f"inbox/{uuid.uuid4().hex}"), self._split(value))

    def read(self, cursor: int, timeout: float) -> tuple[list[Mail], int]:
        """Messages after the revision ``cursor``, waiting up to ``timeout`` seconds for the first."""
        deadline = time.monotonic() + timeout
        while True:
            self._check()
            messages, cursor = self._since(cursor)
            left = deadline - time.monotonic()
            if messages or left <= 0 or self._wakes():
                return messages, cursor
            if self._bell.wait(left):
                self._bell.clear()

    def _since(self, cursor: int) -> tuple[list[Mail], int]:
        if self._tail is not None and (self._tail[0] != cursor or self._tail[1].lost):
            self._unwatch(self._tail[1])
            self._tail = None
        inbox = self._key("inbox/")
        if self._tail is None:
            response = self._client.call(
                lambda etcd: etcd.get_prefix_response(
                    inbox, sort_order="ascend", sort_target="mod", min_mod_revision=cursor + 1
                )
            )
            self._look(self._run.first)  # that it was this run's
            cursor = max(cursor, response.header.revision)
            watch = self._watch(inbox, range_end=etcd3.utils.prefix_range_end(inbox), start_revision=cursor + 1)
            self._tail = (cursor, watch)
            return [self._mail(kv.key, kv.value) for kv in response.kvs], cursor
        watch, messages = self._tail[1], list[Mail]()
        while watch.events:
            event = watch.events[0]  # left there if its parts cannot be fetched now
            messages.append(self._mail(event.key, event.value))
            cursor = max(cursor, event.mod_revision)
            watch.events.popleft()
        self._tail = (cursor, watch)
        return messages, cursor

    def _mail(self, key: bytes, value: bytes) -> Mail:
        return key.decode(errors="replace"), self._join(value)

    # -- leases ------------------------------------------------------------------------------------------------------

    def renew(self, lease: str, ttl: float) -> None:
        """Keep an agent's lease alive; take it (again) where there is none. etcd times it, in whole seconds."""
        self._check()
        run, number = self._run, lease_id(self._run.prefix + lease)
        etcd, key = run.pulse(ttl), self._key(f"alive/{lease}")
        if lease not in run.held or not refresh(etcd, number):
            run.held.discard(lease)
            # It must not end before the next member has been asked.
            grant(etcd, number, ttl + run.patience(ttl))

            def put(client: Any) -> None:
                alive = client.transactions.put(key, b"", lease=number)
                won, answers = client.transaction(run.same(client), [alive], [client.transactions.get(run.first)])
                if not won:
                    run.recognise(born(answers[0]))

            etcd.call(put)
            run.held.add(lease)
        run.keep_alive(etcd)

    def leases(self, leases: Sequence[str]) -> list[int | None]:
        """A number that is new at every look for each lease that etcd still has."""
        alive = self._key("alive/")
        self._looks += 1
        if len(leases) <= 1:
            there = {lease for lease in leases if self._look(self._key(f"alive/{lease}"))[0] is not None}
        else:
            response = self._client.call(lambda etcd: etcd.get_prefix_response(alive, keys_only=True))
            there = {kv.key[len(alive) :].decode(errors="replace") for kv in response.kvs}
        return [self._looks if lease in there else None for lease in leases]

    def end(self, lease: str, over: bool) -> None:
        """Give the lease up. Once the job is over and nobody else is alive, everything of the run is removed."""
        number, alive = lease_id(self._run.prefix + lease), self._key("alive/")
        self._run.held.discard(lease)
        if refresh(self._client, number):
            self._client.call(lambda etcd: etcd.revoke_lease(number))
        if not over or self._run.keep:
            return

        def remove(etcd: Any) -> None:
            nobody = etcd.transactions.create(alive, range_end=etcd3.utils.prefix_range_end(alive)) == 0
            everything = self._run.prefix.encode()
            delete = etcd.transactions.delete(everything, etcd3.utils.prefix_range_end(everything))
            etcd.transaction([nobody, *self._run.same(etcd)], [delete], [])

        self._client.call(remove)

    # -- the connection ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """End the wait that is under way in another thread, or else the next one."""
        self._woken = True
        self._bell.set()

    def scale(self, agents: int) -> None:
        """Nothing to do: etcd tells its watchers, they do not look."""

    def close(self) -> None:
        """End this connection and its watches; the last one of the agent closes the channels."""
        with self._run.lock:
            if self._closed:
                return
            self._closed = True
            self._run.users -= 1
            last = self._run.users == 0
        self._bell.set()
        if last:
            self._run.close()
            return
        for _, watch in filter(None, (self._record, self._tail)):
            self._unwatch(watch)

    # -- parts of the above ------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise StoreUnavailable("this connection is closed")

    def _key(self, key: str) -> bytes:
        return (self._run.prefix + key).encode()

    def _look(self, place: bytes) -> tuple[bytes | None, int]:
        """The value at a key as it is stored, and the revision at which this was so."""
        self._check()
        ranges = [rpc.RangeRequest(key=place), rpc.RangeRequest(key=self._run.first, keys_only=True)]
        request = rpc.TxnRequest(success=[rpc.RequestOp(request_range=asked) for asked in ranges])
        # etcd3's own transaction does not hand on the revision.
        answer = self._client.call(lambda etcd: etcd.kvstub.Txn(request, etcd.timeout, metadata=etcd.metadata))
        found, first = (response.response_range.kvs for response in answer.responses)
        self._run.recognise(first[0].create_revision if first else 0)
        return (bytes(found[0].value) if found else None), answer.header.revision

    def _write(self, place: bytes, value: bytes) -> bytes:
        """Store a value unless the key exists; what is stored there now."""
        self._check()
        run = self._run

        def write(etcd: Any) -> bytes:
            conditions = [etcd.transactions.create(place) == 0, *run.same(etcd)]
            put = etcd.transactions.put(place, value, lease=run.lease or None)
            reads = [etcd.transactions.get(place), etcd.transactions.get(run.first)]
            won, answers = etcd.transaction(conditions, [put], reads)
            if won:
                return value
            run.recognise(born(answers[1]))
            return bytes(answers[0][0][0])

        try:
            return self._client.call(write)
        except LeaseUnknown:
            grant(self._client, run.lease, RUN_TTL)
        return self._client.call(write)

    def _wakes(self) -> bool:
        """Whether somebody has ended this wait; each ``wake`` ends one."""
        woken, self._woken = self._woken, False
        return woken

    def _watch(self, place: bytes, **options: Any) -> _Watch:
        watch = _Watch(self._bell)
        watch.cancel = self._client.watch(place, watch, **options)
        if self._closed:  # meanwhile, by another thread
            self._unwatch(watch)
        self._check()
        return watch

    def _unwatch(self, watch: _Watch) -> None:
        if not watch.lost and watch.cancel is not None:
            watch.cancel()

    def _split(self, value: bytes) -> bytes:
        """What to store for a value: itself, or where its parts lie, which are written before."""
        if len(value) <= PART and not value.startswith(_PARTS):
            return value
        pieces = [value[at : at + PART] for at in range(0, len(value), PART)]
        parts = _Parts(uuid.uuid4().hex, len(pieces), len(value))
        for number, piece in enumerate(pieces):
            self._write(self._key(f"part/{parts.id}/{number}"), piece)
        return _PARTS + msgspec.json.encode(parts)

    def _join(self, value: bytes) -> bytes:
        """The value for what is stored. What pretends to lie in parts and does not is handed on for the reader to
        refuse by its key."""
        if not value.startswith(_PARTS):
            return value
        try:
            parts = msgspec.json.decode(value[len(_PARTS) :], type=_Parts)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return value
        pieces: list[bytes] = []
        for number in range(min(parts.count, -(-parts.size // PART))):
            piece, _ = self._look(self._key(f"part/{parts.id}/{number}"))
            if piece is None:
                return value
            pieces.append(piece)
        whole = b"".join(pieces)
        return whole if len(whole) == parts.size else value

    def _drop_parts(self, stored: bytes) -> None:
        parts = msgspec.json.decode(stored[len(_PARTS) :], type=_Parts)
        self._client.call(lambda etcd: etcd.delete_prefix(self._key(f"part/{parts.id}/")))
