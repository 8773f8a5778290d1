"""Coordinators on a fake store, in real threads: election, takeover from the store alone, a store that goes away."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from support.builders import job, member, report, retire_the_lost
from support.fake_store import FakeStore, World
from support.ports import mute

from rendezvous.coordinator import Coordinator
from rendezvous.lead import Leader, Means
from rendezvous.liveness import Listener
from rendezvous.records import (
    Case,
    CoordinatorRecord,
    Decision,
    Gone,
    Joined,
    Member,
    Opening,
    Refusal,
    Roster,
    decode_message,
    encode,
)
from rendezvous.replay import decision_key, opening_key, refusal_key
from rendezvous.stores import StoreUnavailable


class Notes:
    """A ledger that remembers."""

    def __init__(self) -> None:
        self.openings: list[int] = []
        self.decisions: list[int] = []

    def opened(self, opening: Opening, *_: object) -> None:
        self.openings.append(opening.round)

    def decided(self, case: Case, answer: Decision, *_: object) -> None:
        self.decisions.append(answer.round)


class Hearts(FakeStore):
    """What the coordinators see of hearts that beat between any two looks, even if this test's thread stands still."""

    def __init__(self, job_: Job) -> None:
        super().__init__(job_.world)
        self._job = job_

    def connect(self) -> Hearts:
        return Hearts(self._job)

    def leases(self, leases: Sequence[str]) -> list[int | None]:
        with self.world.changed:
            self._enter()
            beaten = self._job.beating - self._job.late
            self._job.late = frozenset()
            for lease in beaten & set(leases) & self.world.beats.keys():
                self.renew(lease, 0.5)
            return super().leases(leases)


class Job:
    """Agents and the coordinators among them.

    Those ``beating`` renew their leases by themselves; those who are ``late`` not before the next look.
    """

    def __init__(self) -> None:
        self.world = World()
        self.beating: frozenset[str] = frozenset()
        self.late: frozenset[str] = frozenset()
        self.store = FakeStore(self.world)
        self.limits = job(lease_ttl=0.5, settle=0.1, min_hosts=2, max_hosts=2)
        self.notes = Notes()
        self.listeners: dict[str, Listener] = {}
        self.coordinators: dict[str, Coordinator] = {}

    def join(self, name: str, coordinate: bool = False, **changes: object) -> Member:
        self.listeners[name] = Listener("127.0.0.1")
        who = member(name, **{"port": self.listeners[name].port, **changes})
        self.store.renew(who.id, 0.5)
        self.beating |= {who.id}
        self.store.create(f"member/{who.id}", encode(who))
        self.store.append(encode(Joined(who)))
        if coordinate:
            self.coordinators[name] = Coordinator(Means(Hearts(self), self.limits, who, retire_the_lost, self.notes))
            self.coordinators[name].start()
        return who

    def until(self, what: Callable[[], object], why: str, beating: tuple[Member, ...] = ()) -> None:
        """Wait until something is so, while these members beat and no others."""
        self.beating = frozenset(who.id for who in beating)
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, why
            with self.world.changed:
                self.world.changed.wait(0.02)

    def record(self, key: str, kind: type) -> object:
        data = self.world.records.get(key)
        return None if data is None else msgspec.json.decode(data, type=kind)

    def close(self) -> None:
        for coordinator in self.coordinators.values():
            coordinator.stop()
            coordinator.join(60)
            assert not coordinator.is_alive()
        for listener in self.listeners.values():
            listener.close()


@pytest.fixture
def jobs() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def test_one_leads_and_commits_each_record_once(jobs):
    a, b = jobs.join("a", coordinate=True), jobs.join("b", coordinate=True)
    jobs.until(lambda: opening_key(1) in jobs.world.records, "round 1", (a, b))
    jobs.store.append(encode(report(a, 1, conclusive=True)))
    jobs.until(lambda: opening_key(2) in jobs.world.records, "round 2", (a, b))
    assert (jobs.notes.openings, jobs.notes.decisions) == ([1, 2], [1])
    assert "coordinator/2" not in jobs.world.records


def test_a_round_that_waits_for_hosts_says_once_who_is_there(jobs, monkeypatch, caplog):
    monkeypatch.setattr("rendezvous.lead.SHORT_PATIENCE", 0.1)
    a = jobs.join("a", coordinate=True)
    jobs.until(lambda: "1 of at least 2 are there (a)" in caplog.text, "the line", (a,))
    told_at = time.monotonic()
    jobs.until(lambda: time.monotonic() > told_at + 0.3, "several beats", (a,))
    assert caplog.text.count("of at least") == 1
    b = jobs.join("b")
    jobs.until(lambda: opening_key(1) in jobs.world.records, "round 1", (a, b))


def test_a_killed_coordinator_is_replaced_and_its_host_is_lost_to_the_round(jobs):
    a = jobs.join("a", coordinate=True)
    jobs.until(lambda: "coordinator/1" in jobs.world.records, "a leads", (a,))
    b, c = jobs.join("b", coordinate=True), jobs.join("c")
    jobs.until(lambda: opening_key(1) in jobs.world.records, "round 1", (a, b, c))
    jobs.coordinators.pop("a").stop()
    jobs.listeners.pop("a").close()
    jobs.until(lambda: opening_key(2) in jobs.world.records, "round 2 under b", (b, c))
    leader = jobs.record("coordinator/2", CoordinatorRecord)
    assert leader.host == "b"
    ended = jobs.record(decision_key(1), Decision)
    assert [item.host for item in ended.retired] == ["a"]
    assert [m.host for m in jobs.record(opening_key(2), Opening).roster.members] == ["c", "b"]


def test_a_new_leader_decides_a_case_its_predecessor_left_open(jobs):
    """The reports are in the store; the leader died before it could decide."""
    a = jobs.join("a")
    jobs.store.create("coordinator/1", encode(CoordinatorRecord(1, a.id, "a")))
    b, c = jobs.join("b"), jobs.join("c")
    roster = Opening(1, roster=Roster(1, (b, c)))
    jobs.store.create(opening_key(1), encode(roster))
    jobs.store.append(encode(report(b, 1, conclusive=True)))
    jobs.listeners.pop("a").close()
    jobs.coordinators["c"] = Coordinator(Means(Hearts(jobs), jobs.limits, c, retire_the_lost, jobs.notes))
    jobs.coordinators["c"].start()
    jobs.until(lambda: decision_key(1) in jobs.world.records, "the decision", (b, c))
    assert jobs.notes.decisions == [1]
    jobs.until(lambda: opening_key(2) in jobs.world.records, "round 2", (b, c))


class Overtaking(Hearts):
    """Another leader is a moment faster with every decision, and dies of it."""

    def create(self, key: str, value: bytes) -> bytes:
        if key == decision_key(1):
            theirs = msgspec.structs.replace(msgspec.json.decode(value, type=Decision), by="the other one")
            super().create(key, encode(theirs))
        return super().create(key, value)


def test_what_a_rival_has_committed_and_not_lived_to_write_down_is_written_down(jobs):
    a, b = jobs.join("a"), jobs.join("b")
    leader = Leader(Means(Overtaking(jobs), jobs.limits, a, retire_the_lost, jobs.notes), 1)
    leader.turn()
    jobs.store.append(encode(report(b, 1, conclusive=True)))
    with pytest.raises(StoreUnavailable, match="round/1/decision was committed by another leader"):
        leader.turn()
    assert jobs.notes.decisions == []
    leader.turn()
    assert jobs.notes.decisions == [1]
    assert jobs.record(decision_key(1), Decision).by == "the other one"
    assert jobs.notes.openings == [1, 2]


def test_a_store_that_goes_away_and_comes_back_loses_nobody(jobs):
    a, b = jobs.join("a", coordinate=True), jobs.join("b")
    jobs.until(lambda: opening_key(1) in jobs.world.records, "round 1", (a, b))
    jobs.until(lambda: jobs.world.beats[b.id] > 1, "the other's lease has been seen", (a, b))
    jobs.world.change(down=True)
    time.sleep(3 * jobs.limits.lease_ttl)  # the outage itself, longer than any lease
    jobs.late = frozenset({a.id, b.id})  # whoever leads may look before anybody has had the time to beat
    jobs.world.change(down=False)
    jobs.until(lambda: not jobs.late, "it looks", (a, b))
    jobs.store.append(encode(report(b, 1, conclusive=True)))
    jobs.until(lambda: opening_key(2) in jobs.world.records, "the job goes on", (a, b))
    assert jobs.record(decision_key(1), Decision).retired == ()


def test_a_silent_host_is_lost_when_its_lease_ends_even_if_its_port_answers(jobs):
    a, b = jobs.join("a", coordinate=True), jobs.join("b")
    jobs.join("c")
    jobs.until(lambda: opening_key(1) in jobs.world.records, "round 1", (a, b))
    jobs.until(lambda: decision_key(1) in jobs.world.records, "the loss", (a,))
    assert Gone(b.id, "expired") in [decode_message(data) for data in jobs.world.inbox]


def test_a_host_is_lost_when_its_lease_ends_although_nothing_answers_where_it_is_asked_for(jobs, monkeypatch):
    """Its name, or its port: waiting for either must not look as if the coordinator itself had been away."""
    let_go, asked, ask = threading.Event(), threading.Event(), socket.getaddrinfo

    def answer(host: str, *arguments: Any, **more: Any) -> Any:
        if host != "silent" or more.get("flags") == socket.AI_NUMERICHOST:
            return ask(host, *arguments, **more)
        asked.set()
        let_go.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    a, b = jobs.join("a", coordinate=True), jobs.join("b", addr="silent")
    with mute() as port:
        c = jobs.join("c", port=port)
        jobs.until(lambda: opening_key(1) in jobs.world.records, "round 1", (a, b, c))
        lost = [Gone(b.id, "expired"), Gone(c.id, "expired")]
        jobs.until(lambda: all(encode(gone) in jobs.world.inbox for gone in lost), "the losses", (a,))
    assert asked.is_set()
    let_go.set()


def test_a_spare_that_was_silent_may_come_back_as_a_new_member(jobs):
    a, b = jobs.join("a", coordinate=True), jobs.join("b")
    c = jobs.join("c")
    jobs.until(lambda: opening_key(1) in jobs.world.records, "round 1", (a, b, c))
    jobs.until(lambda: refusal_key(c.id) in jobs.world.records, "the spare is told", (a, b))
    assert jobs.record(refusal_key(c.id), Refusal).rejoin
    assert decision_key(1) not in jobs.world.records


def test_a_malformed_message_is_logged_and_left_out(jobs, caplog):
    a, b = jobs.join("a", coordinate=True), jobs.join("b")
    jobs.store.append(b"\x80garbage")
    jobs.store.append(b'{"type":"Report","round":"one"}')
    jobs.until(lambda: caplog.text.count("malformed message at 'inbox/") == 2, "two messages are refused", (a, b))
    jobs.until(lambda: opening_key(1) in jobs.world.records, "round 1", (a, b))


def test_a_malformed_committed_record_ends_this_coordinator_and_says_which(jobs, caplog):
    jobs.store.create(opening_key(1), b"{]")
    jobs.join("a", coordinate=True)
    coordinator = jobs.coordinators["a"]
    coordinator.join(60)
    assert "malformed record at 'round/1/opening'" in str(coordinator.failure)


def test_a_decider_that_fails_ends_this_coordinator_and_not_the_job(jobs):
    def broken(case: Case) -> Decision:
        raise ZeroDivisionError("no idea")

    a, b = jobs.join("a"), jobs.join("b")
    jobs.coordinators["a"] = Coordinator(Means(Hearts(jobs), jobs.limits, a, broken, jobs.notes))
    jobs.coordinators["a"].start()
    jobs.until(lambda: opening_key(1) in jobs.world.records, "round 1", (a, b))
    jobs.store.append(encode(report(b, 1, conclusive=True)))
    jobs.coordinators["a"].join(60)
    assert isinstance(jobs.coordinators["a"].failure, ZeroDivisionError)
