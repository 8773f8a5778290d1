"""A complaint about a peer has ports asked at once; with leases as long as here, nothing else would tell in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest
from support.builders import job, member, report, retire_the_lost
from support.fake_store import FakeStore, World

from rendezvous.coordinator import Part
from rendezvous.lead import Means
from rendezvous.liveness import Listener, refused
from rendezvous.records import CoordinatorRecord, Decision, Joined, Member, encode
from rendezvous.replay import decision_key, opening_key
from rendezvous.stores import Mail

LEASE = 600.0


class Prompt(FakeStore):
    """A store that never waits: the clock is the test's."""

    def read(self, cursor: int, timeout: float) -> tuple[list[Mail], int]:
        return super().read(cursor, 0.0)

    def wait(self, key: str, timeout: float) -> bytes | None:
        return super().wait(key, 0.0)


class Silent:
    """A ledger that notes nothing."""

    def opened(self, *told: object) -> None:
        pass

    def decided(self, *told: object) -> None:
        pass


class Hosts:
    """Three agents of which the test plays the coordinators turn by turn, on a clock that it sets."""

    def __init__(self) -> None:
        self.world, self.now = World(), 0.0
        self.store = FakeStore(self.world)
        self.limits = job(lease_ttl=LEASE, settle=8.0, min_hosts=2, max_hosts=2)
        self.listeners: dict[str, Listener] = {}
        self.members: dict[str, Member] = {}
        self.parts: dict[str, Part] = {}
        for name in ("a", "b", "c"):
            self.listeners[name] = Listener("127.0.0.1")
            who = self.members[name] = member(name, port=self.listeners[name].port)
            self.store.renew(who.id, LEASE)
            self.store.create(f"member/{who.id}", encode(who))
            self.store.append(encode(Joined(who)))
            store = Prompt(self.world)
            means = Means(store, self.limits, who, retire_the_lost, Silent(), lambda: self.now, self.ask)
            self.parts[name] = Part(means)

    @staticmethod
    def ask(members: Sequence[Member], timeout: float) -> list[Member]:
        """Every one of these ports answers or refuses at once, if the machine does not stand still just then."""
        del timeout
        return refused(members, 60.0)

    def turns(self, name: str, seconds: float = 0.0) -> None:
        """Let one host's coordinator have a few turns, after some time."""
        self.now += seconds
        for _ in range(4):
            self.parts[name].turn()

    def decision(self) -> Decision | None:
        data = self.world.records.get(decision_key(1))
        return None if data is None else msgspec.json.decode(data, type=Decision)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    made.turns("a")
    assert opening_key(1) in made.world.records
    assert made.parts["a"].leads
    made.turns("b")
    yield made
    for listener in made.listeners.values():
        listener.close()


def test_a_leader_in_doubt_asks_everybody_and_decides_after_a_part_of_the_settle_window(hosts):
    hosts.listeners["b"].close()
    hosts.turns("a", 0.5)
    assert hosts.decision() is None, "no lease is late yet"
    hosts.parts["a"].doubt()
    hosts.turns("a")
    hosts.turns("a", 1.9)
    assert hosts.decision() is None, "others may be lost with it"
    hosts.turns("a", 0.2)
    assert [item.host for item in hosts.decision().retired] == ["b"]


def test_a_first_failure_that_is_reported_has_the_silent_ones_asked(hosts):
    hosts.listeners["b"].close()
    hosts.store.append(encode(report(hosts.members["a"], 1, conclusive=False)))
    hosts.turns("a", 0.5)
    hosts.turns("a", 0.1)
    assert [item.host for item in hosts.decision().retired] == ["b"], "everybody has been heard or lost"


def test_a_follower_in_doubt_asks_the_leader_and_takes_over(hosts):
    hosts.listeners["a"].close()
    hosts.turns("b", 0.5)
    assert "coordinator/2" not in hosts.world.records
    hosts.parts["b"].doubt()
    hosts.turns("b")
    leader = msgspec.json.decode(hosts.world.records["coordinator/2"], type=CoordinatorRecord)
    assert leader.host == "b"
    hosts.turns("b", 2.1)
    assert [item.host for item in hosts.decision().retired] == ["a"]


def test_doubt_about_hosts_that_answer_changes_nothing(hosts):
    for name in ("a", "b"):
        hosts.parts[name].doubt()
        hosts.turns(name, 0.5)
    hosts.turns("a", 9.0)
    assert hosts.decision() is None
    assert "coordinator/2" not in hosts.world.records
