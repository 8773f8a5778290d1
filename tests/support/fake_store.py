"""A store in memory for tests: one process, virtual or real time, and faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from rendezvous.stores import Mail, StoreUnavailable


@dataclass
class World:
    """What all connections share."""

    records: dict[str, bytes] = field(default_factory=dict)
    inbox: list[bytes] = field(default_factory=list)
    beats: dict[str, int] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    down: bool = False

    def change(self, down: bool | None = None) -> None:
        """Wake all who wait; optionally take the store down or up."""
        with self.changed:
            if down is not None:
                self.down = down
            self.changed.notify_all()


class FakeStore:
    """One connection. Operations can be counted and made to fail through the shared ``World``."""

    durable = False

    def __init__(self, world: World) -> None:
        self.world = world
        self.closed = False
        self._woken = False

    def _enter(self) -> None:
        if self.world.down or self.closed:
            raise StoreUnavailable("the fake store is down")

    def connect(self) -> FakeStore:
        return FakeStore(self.world)

    def create(self, key: str, value: bytes) -> bytes:
        with self.world.changed:
            self._enter()
            winner = self.world.records.setdefault(key, value)
            self.world.changed.notify_all()
            return winner

    def get(self, key: str) -> bytes | None:
        with self.world.changed:
            self._enter()
            return self.world.records.get(key)

    def append(self, value: bytes) -> None:
        with self.world.changed:
            self._enter()
            self.world.inbox.append(value)
            self.world.changed.notify_all()

    def read(self, cursor: int, timeout: float) -> tuple[list[Mail], int]:
        with self.world.changed:
            self.world.changed.wait_for(lambda: self._away() or len(self.world.inbox) > cursor, timeout)
            self._enter()
            messages = enumerate(self.world.inbox[cursor:], start=cursor + 1)
            return [(f"inbox/{number}", data) for number, data in messages], len(self.world.inbox)

    def renew(self, lease: str, ttl: float) -> None:
        del ttl
        with self.world.changed:
            self._enter()
            self.world.beats[lease] = self.world.beats.get(lease, 0) + 1

    def leases(self, leases: Sequence[str]) -> list[int | None]:
        with self.world.changed:
            self._enter()
            return [self.world.beats.get(lease) for lease in leases]

    def wait(self, key: str, timeout: float) -> bytes | None:
        with self.world.changed:
            self.world.changed.wait_for(lambda: self._away() or self._woken or key in self.world.records, timeout)
            self._woken = False
            self._enter()
            return self.world.records.get(key)

    def wake(self) -> None:
        self._woken = True
        self.world.change()

    def end(self, lease: str, over: bool) -> None:
        with self.world.changed:
            self._enter()
            self.world.beats.pop(lease, None)
            if over and not self.world.beats:
                self.world.records.clear()
                self.world.inbox.clear()

    def scale(self, agents: int) -> None:
        del agents

    def close(self) -> None:
        self.closed = True
        self.world.change()

    def _away(self) -> bool:
        return self.closed or self.world.down
