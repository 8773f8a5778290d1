"""Leases are timed by the observer's own clock; a refused port answers at once."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from support.builders import member
from support.ports import mute

from rendezvous.liveness import AT_ONCE, LeaseClock, Listener, refused
from rendezvous.names import MOST, Names

LIMITS = (2.0, 6.0)
"""Seconds that are all used up where somebody does not answer; the second for a machine that stood still meanwhile."""


def test_a_lease_ends_when_its_number_has_not_changed_for_its_time():
    clock = LeaseClock(5.0)
    for second in range(5):
        assert clock.observe({"a": 1, "b": second}, float(second)) == {"a": float(second), "b": 0.0}
    assert clock.observe({"a": 1, "b": 4}, 5.0)["a"] >= 5.0


def test_an_observer_that_was_away_accuses_nobody():
    clock = LeaseClock(5.0)
    clock.observe({"a": 1}, 0.0)
    assert clock.observe({"a": 1}, 100.0) == {"a": 0.0}
    assert clock.observe({"a": 1}, 102.0) == {"a": 2.0}


def test_a_lease_that_the_store_has_ended_is_over_at_once():
    clock = LeaseClock(5.0)
    clock.observe({"a": 7}, 0.0)
    assert clock.observe({"a": None}, 1.0) == {"a": 5.0}


def test_an_observer_that_was_away_gives_a_lease_that_has_ended_meanwhile_its_full_time():
    """What kept the observer from the store may have kept the others from it."""
    clock = LeaseClock(5.0)
    clock.observe({"back": 7, "lost": 7}, 0.0)
    assert clock.observe({"back": None, "lost": None}, 6.0) == {"back": 0.0, "lost": 0.0}
    assert clock.observe({"back": 8, "lost": None}, 8.0) == {"back": 0.0, "lost": 2.0}
    assert clock.observe({"back": 9, "lost": None}, 10.0) == {"back": 0.0, "lost": 4.0}
    assert clock.observe({"back": 10, "lost": None}, 11.0) == {"back": 0.0, "lost": 5.0}


def test_a_lease_that_is_no_longer_asked_for_is_forgotten():
    clock = LeaseClock(5.0)
    clock.observe({"a": 1}, 0.0)
    clock.observe({}, 1.0)
    assert clock.observe({"a": 1}, 2.0) == {"a": 0.0}


def test_a_port_answers_while_its_agent_lives_and_refuses_when_it_is_gone():
    listener = Listener("127.0.0.1")
    alive = member("alive", port=listener.port)
    assert refused([alive], 30.0) == []
    listener.drain()
    listener.close()
    assert refused([alive], 30.0) == [alive]


class NameService:
    """Answers for names, and for some of them only once it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **names: Sequence[str]) -> None:
        self.asked: list[str] = []
        self.let_go, self._names, self._ask = threading.Event(), names, socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.answer)

    def answer(self, host: str, port: int, **more: Any) -> list[Any]:
        if more.get("flags") == socket.AI_NUMERICHOST:
            return self._ask(host, port, **more)
        self.asked.append(host)
        if host.startswith("slow"):
            self.let_go.wait(60)
        if host not in self._names:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [found for address in self._names[host] for found in self._ask(address, port, **more)]


@pytest.fixture
def dead() -> int:
    """A port of this machine at which nobody listens any more."""
    listener = Listener("127.0.0.1")
    listener.close()
    return listener.port


def test_names_that_nobody_answers_for_keep_no_other_host_from_being_asked(monkeypatch, dead):
    service, names = NameService(monkeypatch), Names()
    slow = [member(f"slow{number}", addr=f"slow{number}") for number in range(50)]
    gone = [member(f"gone{number}", port=dead) for number in range(3)]
    assert any(refused(slow + gone, limit, names) == gone for limit in LIMITS)
    assert refused(slow, 0.1, names) == []
    assert len(service.asked) <= MOST, "and none of them is asked for again while its answer is awaited"
    service.let_go.set()


def test_a_name_that_comes_late_is_asked_the_next_time(monkeypatch, dead):
    service, names = NameService(monkeypatch, slow=["127.0.0.1"]), Names()
    gone = member("gone", addr="slow", port=dead)
    assert refused([gone], 0.1, names) == []
    service.let_go.set()
    assert names.of([gone], 30.0)
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert refused([gone], 30.0, names) == [gone], "its address is known for as long as it lives"


def test_a_name_that_is_known_only_by_ipv6_is_asked_there(monkeypatch):
    if not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6")
    listener, names = Listener("::1"), Names()
    NameService(monkeypatch, node7=["::1"])
    assert refused([member("alive", addr="node7", port=listener.port)], 30.0, names) == []
    gone = member("gone", addr="node7", port=listener.port)
    listener.close()
    assert refused([gone], 30.0, names) == [gone]


def test_a_name_with_several_addresses_refuses_only_if_each_of_them_does(monkeypatch, dead):
    listener, names = Listener("127.0.0.1"), Names()
    NameService(monkeypatch, both=["127.0.0.77", "127.0.0.1"], none=["127.0.0.77", "127.0.0.78"])
    assert refused([member("alive", addr="both", port=listener.port)], 30.0, names) == []
    gone = member("gone", addr="none", port=listener.port)
    assert refused([gone], 30.0, names) == [gone]
    listener.close()


@pytest.mark.parametrize("silent", [1, 2 * AT_ONCE])
def test_hosts_that_do_not_answer_hide_no_refusal_behind_them(dead, silent):
    with mute() as port:
        silence = [member(f"mute{number}", port=port) for number in range(silent)]
        gone = [member(f"gone{number}", port=dead) for number in range(AT_ONCE + 44)]
        assert any(refused(silence + gone, limit) == gone for limit in LIMITS)


def test_an_unreachable_address_is_no_refusal():
    assert refused([member("nowhere", addr="no-such-host.invalid", port=1)], 0.2) == []


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, before[1]))
        taken = []
        try:
            while True:
                taken.append(socket.socket())
        except OSError:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for item in taken:
                item.close()


def test_an_agent_that_has_no_descriptor_left_answers_all_the_same_and_accuses_nobody():
    listener, dead = Listener("127.0.0.1"), Listener("127.0.0.1")
    dead.close()
    with socket.create_connection(("127.0.0.1", listener.port)) as asked, no_descriptor_left():
        listener.drain()
        assert refused([member(1, host="127.0.0.1", port=dead.port)], 30.0) == []
        asked.setblocking(False)
    listener.drain()
    assert refused([member(1, host="127.0.0.1", port=dead.port)], 30.0) != []
    listener.close()
