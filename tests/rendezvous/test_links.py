"""An agent's standing connections go on, or say that they cannot; neither ends in silence."""

from __future__ import annotations

import threading
import time

import pytest
from support.fake_store import FakeStore, World
from support.frozen import server_process

from rendezvous.links import Heart, RoundLink
from rendezvous.stores import StoreUnavailable


class Surprising(FakeStore):
    """Fails once in a way that no store should."""

    surprised = False

    def _surprise(self) -> None:
        if not self.surprised:
            self.surprised = True
            raise ValueError("stoll")

    def renew(self, lease: str, ttl: float) -> None:
        self._surprise()
        super().renew(lease, ttl)

    def wait(self, key: str, timeout: float) -> bytes | None:
        self._surprise()
        return super().wait(key, timeout)


def test_a_heart_goes_on_after_a_failure_that_nobody_has_thought_of(caplog):
    world = World()
    heart = Heart(Surprising(world), "a", 0.1)
    heart.start()
    deadline = time.monotonic() + 30
    while world.beats.get("a", 0) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert world.beats["a"] >= 2
    heart.stop()
    heart.join(60)
    assert not heart.is_alive()
    assert "the heartbeat of a failed and goes on" in caplog.text


def test_a_line_that_fails_tells_its_agent_instead_of_letting_it_wait_for_ever():
    woken = threading.Event()
    link = RoundLink(Surprising(World()), 1, woken.set)
    assert woken.wait(30)
    assert isinstance(link.failure, ValueError)
    link.stop()


def test_a_line_to_a_store_that_has_stopped_says_since_when_and_ends_when_it_is_told_to(monkeypatch):
    monkeypatch.setattr("rendezvous.stores.tcpstore.OP_TIMEOUT", 0.5)
    monkeypatch.setattr("rendezvous.stores.tcpstore.GREETING_TIMEOUT", 0.2)
    with server_process() as frozen:
        link = RoundLink(frozen.client(), 1, lambda: None)
        frozen.stop()
        deadline = time.monotonic() + 60
        while link.away_since is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert link.away_since is not None
        link.stop()
        link.join(60)
        assert frozen.is_stopped(), "the fault did not happen"
        assert not link.is_alive()
        assert not link.spent, "the next round's may use the connection"


class Stuck(FakeStore):
    """Whose connecting does not end before the test says so, as torch's may last for 15 s."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.free = threading.Event()

    def wait(self, key: str, timeout: float) -> bytes | None:
        self.free.wait(60)
        return super().wait(key, timeout)


def test_an_agent_does_not_wait_for_a_line_that_cannot_end_and_the_line_is_of_no_use_afterwards(monkeypatch):
    monkeypatch.setattr("rendezvous.links.STOP_PATIENCE", 0.05)
    store = Stuck(World())
    link = RoundLink(store, 1, lambda: None)
    link.stop()
    assert link.is_alive()
    assert link.spent
    store.free.set()
    link.join(60)
    assert not link.is_alive()
    assert link.spent
    with pytest.raises(StoreUnavailable):
        store.get("k")


def test_a_heart_that_failed_does_not_let_a_whole_beat_pass_before_it_tries_again():
    world, pauses = World(), []

    class Cut(FakeStore):
        def renew(self, lease: str, ttl: float) -> None:
            raise StoreUnavailable("cut off")

    class Patient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return len(pauses) == 3

    heart = Heart(Cut(world), "a", 50.0)
    heart._stopping = Patient()
    heart.run()
    assert pauses == [5.0, 0.2, 0.2]
