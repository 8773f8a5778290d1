"""Leases are timed by the observer's own clock; a refused port answers at once."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from support.builders import member

from rendezvous.liveness import LeaseClock, Listener, refused


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


def test_a_lease_that_is_no_longer_asked_for_is_forgotten():
    clock = LeaseClock(5.0)
    clock.observe({"a": 1}, 0.0)
    clock.observe({}, 1.0)
    assert clock.observe({"a": 1}, 2.0) == {"a": 0.0}


def test_a_port_answers_while_its_agent_lives_and_refuses_when_it_is_gone():
    listener = Listener("127.0.0.1")
    alive = member("alive", port=listener.port)
    assert refused([alive], 1.0) == []
    listener.drain()
    listener.close()
    assert refused([alive], 1.0) == [alive]


def test_a_slow_name_service_holds_up_one_question_and_not_one_for_each_agent(monkeypatch):
    asked = []

    class Slow(socket.socket):
        def connect(self, address):
            asked.append(address)
            time.sleep(0.2)  # socket.connect asks for the name itself
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "socket", Slow)
    assert refused([member(f"h{number}", addr=f"h{number}.invalid") for number in range(50)], 0.1) == []
    assert len(asked) == 1


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
        assert refused([member(1, host="127.0.0.1", port=dead.port)], 1.0) == []
        asked.setblocking(False)
    listener.drain()
    assert refused([member(1, host="127.0.0.1", port=dead.port)], 1.0) != []
    listener.close()
