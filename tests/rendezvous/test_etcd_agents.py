"""Agents on a real etcd of three: a member that hangs costs no host, and who was cut off from the end learns of it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.builders import job, member, retire_the_lost
from support.etcd import Etcd, insist, until
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousStateError

from rendezvous.fencing import is_current
from rendezvous.handler import EzpzRendezvousHandler, new_id
from rendezvous.links import RoundLink
from rendezvous.liveness import Listener
from rendezvous.records import Gone, decode_message
from rendezvous.seat import Seat
from rendezvous.stores import RunGone
from rendezvous.stores.etcd import EtcdStore
from rendezvous.stores.etcd_client import EtcdClient


class Ledger:
    """What an agent's coordinator would have written down."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def opened(self, *_: object) -> None:
        self.written.append("opened")

    def decided(self, *_: object) -> None:
        self.written.append("decided")

    def ended(self, *_: object) -> None:
        self.written.append("ended")


class Agents:
    """Handlers of one job, each with a client of its own."""

    def __init__(self, hosts: int, lease_ttl: float) -> None:
        self.job = job(run_id="run", min_hosts=hosts, max_hosts=hosts, settle=0.1, lease_ttl=lease_ttl)
        self.handlers: list[EzpzRendezvousHandler] = []
        self.ledgers: list[Ledger] = []
        self.links: list[RoundLink] = []

    def add(self, client: EtcdClient) -> None:
        """One more agent; it has joined when this returns."""
        listener, name = Listener("127.0.0.1"), f"h{len(self.handlers)}"
        who = member(name, id=new_id(), port=listener.port)
        self.ledgers.append(Ledger())
        store = EtcdStore(client, "run")
        made = EzpzRendezvousHandler(store, self.job, who, listener, retire_the_lost, self.ledgers[-1])
        self.handlers.append(made)
        made.join()

    def take_seats(self) -> None:
        """The first round: every agent has its seat and follows the round."""
        seats: dict[int, Seat] = {}

        def sit(number: int) -> None:
            seats[number] = self.handlers[number].next_seat()

        threads = [threading.Thread(target=sit, args=(number,)) for number in range(len(self.handlers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.links = [handler.watch(seats[number], lambda: None) for number, handler in enumerate(self.handlers)]

    def close(self) -> None:
        for link in self.links:
            link.stop()
        for handler in self.handlers:
            handler.interrupted.set()
            handler.shutdown()


@pytest.fixture
def agents() -> Iterator[Callable[[int, float], Agents]]:
    made: list[Agents] = []

    def make(hosts: int, lease_ttl: float) -> Agents:
        made.append(Agents(hosts, lease_ttl))
        return made[-1]

    yield make
    for each in made:
        each.close()


def keys(etcd: Etcd, member: int) -> str:
    """All keys of the runs as this member knows them; ``?`` if it does not answer now."""
    try:
        return etcd.ctl("get", "--prefix", "/ezpz/", "--keys-only", member=member)
    except RuntimeError:
        return "?"


def follower(etcd: Etcd) -> int:
    return (etcd.leader() + 1) % 3


def bring_back(pulse: EtcdClient, member: int) -> None:
    """Have a heart ask a member which it has left because the machine stood still for a second."""
    with pulse._changed:
        left, pulse._client, pulse._at = pulse._client, None, member
    if left is not None:
        left.close()


def test_a_member_that_hangs_costs_no_host_although_it_is_everybodys(three, agents):
    hung = follower(three)
    crew = agents(3, 5.0)
    for _ in range(3):
        crew.add(EtcdClient(three.endpoints, first=hung))
    crew.take_seats()
    pulses = [handler._store._run.pulse(5.0) for handler in crew.handlers]
    for pulse in pulses:
        if pulse._at != hung:
            bring_back(pulse, hung)
    assert [pulse._at for pulse in pulses] == [hung] * 3
    other = EtcdStore(three.client(only=(hung + 1) % 3), "run")
    insist(lambda: other.renew("silent", 5.0))  # ends when the agents' leases would, if they were not renewed
    three.signal(hung, signal.SIGSTOP)
    until(lambda: hung not in [pulse._at for pulse in pulses], "every heart asks another member")
    until(lambda: insist(lambda: other.leases(["silent"])) == [None], "a lease that nobody renews ends")
    assert None not in insist(lambda: other.leases([handler.member.id for handler in crew.handlers]))
    until(lambda: all(handler._store._client._at != hung for handler in crew.handlers), "everybody has left it")
    coordinator = crew.handlers[0]._coordinator
    assert coordinator is not None
    assert coordinator._part._lead is not None
    clock, now = coordinator._part._lead._clock, time.monotonic()
    until(lambda: clock._last is not None and clock._last > now, "the coordinator looks after the hosts again")
    told = [decode_message(data, key) for key, data in insist(lambda: other.read(0, 0.0))[0]]
    assert [message for message in told if isinstance(message, Gone)] == []
    assert [link.decision for link in crew.links] == [None] * 3
    three.signal(hung, signal.SIGCONT)
    other.close()


def test_whoever_was_cut_off_when_the_job_ended_learns_of_it_and_begins_nothing(three, agents):
    mine = follower(three)
    rest = [endpoint for number, endpoint in enumerate(three.endpoints) if number != mine]
    crew = agents(2, 4.0)
    crew.add(EtcdClient(rest))
    crew.add(three.client(only=mine))
    crew.take_seats()
    (stays, away), (link, line) = crew.handlers, crew.links
    assert insist(lambda: is_current(away._store.connect(), 1))
    three.signal(mine, signal.SIGKILL)
    until(lambda: link.decision, "the others decide without it")
    link.stop()
    with pytest.raises(RendezvousClosedError):
        stays.obey(link.decision)
    stays.shutdown()
    until(lambda: not keys(three, (mine + 1) % 3), "all is removed")
    assert line.away_since is not None
    assert line.decision is None
    three.start(mine)
    until(lambda: line.failure, "it learns of it")
    assert isinstance(line.failure, RunGone)
    until(away.coordination_failure, "it coordinates nothing any more")
    with pytest.raises(RendezvousStateError, match="the job ended while this host was cut off"):
        away.next_seat()
    assert not insist(lambda: is_current(EtcdStore(three.client(), "run"), 1))
    assert not insist(lambda: is_current(away._store.connect(), 1))
    assert crew.ledgers[1].written == []
    assert three.all_keys() == []
