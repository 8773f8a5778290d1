"""An agent's standing connections go on, or say that they cannot; neither ends in silence."""

from __future__ import annotations

import threading
import time

from support.fake_store import FakeStore, World

from rendezvous.links import Heart, RoundLink


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
    heart.join(10)
    assert not heart.is_alive()
    assert "the heartbeat of a failed and goes on" in caplog.text


def test_a_line_that_fails_tells_its_agent_instead_of_letting_it_wait_for_ever():
    woken = threading.Event()
    link = RoundLink(Surprising(World()), 1, woken.set)
    assert woken.wait(30)
    assert isinstance(link.failure, ValueError)
    link.stop()
