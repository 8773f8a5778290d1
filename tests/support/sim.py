"""A job in virtual time: hosts with clocks of their own, a store that fails in every way, one thread.

Each host runs the product's ``Part`` (election, leadership, membership) over a ``FaultyStore``, and an agent that does
what ``EzpzRendezvousHandler`` does, without its waiting.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from rendezvous.account import see_the_end_settled
from rendezvous.coordinator import Part
from rendezvous.lead import Means
from rendezvous.records import (
    Action,
    Case,
    Decision,
    Gone,
    JobRecord,
    Joined,
    Member,
    Message,
    Opening,
    Outcome,
    Refusal,
    Report,
    decode,
    decode_decision,
    decode_message,
    decode_opening,
    encode,
)
from rendezvous.replay import decision_key, opening_key, refusal_key
from rendezvous.stores import Mail, StoreUnavailable

Decider = Callable[[Case], Decision]


class Link(Enum):
    """What a host's requests meet."""

    UP = "up"
    REQUESTS_LOST = "requests lost"  # cut off: nothing arrives
    ANSWERS_LOST = "answers lost"  # cut off one way: everything arrives, nothing comes back


class Crash(Exception):
    """The host dies in the middle of an operation."""


@dataclass
class World:
    """The store itself, and the time."""

    now: float = 0.0
    down: bool = False
    records: dict[str, bytes] = field(default_factory=dict)
    inbox: list[Mail] = field(default_factory=list)
    beats: dict[str, int] = field(default_factory=dict)
    limbo: list[bytes] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(0))
    reread: bool = False

    def post(self, value: bytes) -> None:
        self.inbox.append((f"inbox/{len(self.inbox) + 1}", value))

    def deliver_late(self) -> None:
        """Messages whose writers have long given up on them arrive, in any order."""
        self.random.shuffle(self.limbo)
        for value in self.limbo:
            self.post(value)
        self.limbo.clear()

    def messages(self) -> list[Message]:
        return [decode_message(data, key) for key, data in self.inbox]


class FaultyStore:
    """One host's connection; every operation can be dropped, half done, delayed, repeated, or the host's last."""

    durable = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.link = Link.UP
        self.delay_next = False
        self.crash_in: int | None = None
        self.crash_before = False

    def _before(self) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0 and self.crash_before:
                raise Crash
        if self.world.down or self.link is Link.REQUESTS_LOST:
            raise StoreUnavailable("cut off")

    def _after(self) -> None:
        if self.crash_in is not None and self.crash_in < 0:
            raise Crash
        if self.link is Link.ANSWERS_LOST:
            raise StoreUnavailable("no answer")

    def connect(self) -> FaultyStore:
        return self

    def create(self, key: str, value: bytes) -> bytes:
        self._before()
        winner = self.world.records.setdefault(key, value)
        self._after()
        return winner

    def get(self, key: str) -> bytes | None:
        self._before()
        self._after()
        return self.world.records.get(key)

    def append(self, value: bytes) -> None:
        self._before()
        if self.delay_next:
            self.delay_next = False
            self.world.limbo.append(value)
            raise StoreUnavailable("slow")
        self.world.post(value)
        self._after()

    def read(self, cursor: int, timeout: float) -> tuple[list[Mail], int]:
        del timeout
        self._before()
        if self.world.reread:
            cursor = max(0, cursor - self.world.random.randint(0, 5))
        self._after()
        return self.world.inbox[cursor:], len(self.world.inbox)

    def renew(self, lease: str, ttl: float) -> None:
        del ttl
        self._before()
        self.world.beats[lease] = self.world.beats.get(lease, 0) + 1
        self._after()

    def leases(self, leases: Sequence[str]) -> list[int | None]:
        self._before()
        self._after()
        return [self.world.beats.get(lease) for lease in leases]

    def wait(self, key: str, timeout: float) -> bytes | None:
        del timeout
        return self.get(key)

    def wake(self) -> None:
        pass

    def end(self, lease: str, over: bool) -> None:
        pass

    def scale(self, agents: int) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class Notes:
    """A ledger that remembers how often each round was written down."""

    opened_rounds: list[int] = field(default_factory=list)
    decided_rounds: list[int] = field(default_factory=list)

    def opened(self, opening: Opening, *_: object) -> None:
        self.opened_rounds.append(opening.round)

    def decided(self, case: Case | None, decision: Decision, *_: object) -> None:
        self.decided_rounds.append(decision.round)

    def ended(self, *_: object) -> None:
        raise AssertionError("no store to say goodbye to")


class Host:
    """One host: its clock, its connection, its agent's life (if it lives) and what its workers do."""

    incarnations = itertools.count()

    def __init__(self, world: World, name: str, skew: float, job: JobRecord, decider: Decider, notes: Notes) -> None:
        self.world, self.name, self.skew, self.job = world, name, skew, job
        self.decider, self.notes = decider, notes
        self.store = FaultyStore(world)
        self.alive = self.paused = False
        self.disturbed = False
        self.acted: dict[int, Decision] = {}
        self.left_because = ""

    # -- its life ----------------------------------------------------------------------------------------------------

    def boot(self, probe: Callable[[Sequence[Member], float], list[Member]]) -> None:
        """Start the agent; always a new incarnation."""
        self._probe = probe
        self.alive, self.paused, self.left_because = True, False, ""
        self.store.crash_in, self.store.delay_next = None, False
        self.acted = {}
        self._join()
        self.round, self.opened, self.in_roster = 1, False, False
        self.running: int | None = None

    def _join(self) -> None:
        number = next(Host.incarnations)
        self.member = Member(f"{self.name}#{number}", self.name, self.name, "127.0.0.1", 1, 1, 1)
        self.outbox: list[bytes] = [encode(Joined(self.member))]
        self.reports = 0
        self.announced = False
        clock = self.clock
        self.part = Part(Means(self.store, self.job, self.member, self.decider, self.notes, clock, self._probe))

    def clock(self) -> float:
        return self.world.now + self.skew

    def die(self) -> None:
        self.alive, self.running, self.disturbed = False, None, True

    # -- one look around ---------------------------------------------------------------------------------------------

    def step(self) -> None:
        """What the host's threads do within one beat: heartbeat, agent, coordinator."""
        if not self.alive or self.paused:
            return
        try:
            for act in (self._beat, self._follow, self.part.turn):
                if self.alive:
                    try:
                        act()
                    except StoreUnavailable:
                        continue
        except Crash:
            self.die()

    def _beat(self) -> None:
        self.store.renew(self.member.id, self.job.lease_ttl)
        if not self.announced:
            self.store.create(f"member/{self.member.id}", encode(self.member))
            self.announced = True
        while self.outbox:
            self.store.append(self.outbox[0])
            self.outbox.pop(0)

    def _follow(self) -> None:
        while self.alive:
            key = (decision_key if self.opened else opening_key)(self.round)
            data = self.store.get(key)
            if data is None:
                if not self.in_roster:
                    self._look_for_a_refusal()
                return
            if self.opened:
                self._obey(decode_decision(data, self.round, key))
                continue
            opening = decode_opening(data, self.round, key)
            self.opened = True
            if opening.ended is not None:
                self._obey(opening.ended)
            elif opening.roster is not None:
                self._take_seat(opening)

    def _take_seat(self, opening: Opening) -> None:
        assert opening.roster is not None
        slot = opening.roster.slot_of(self.member.id)
        self.in_roster = slot is not None
        if slot is None:
            return
        self.running, self.reports = opening.round, 0
        if slot == 0:  # the round's own store, at a port the system chose
            master = f"{self.member.id} {next(Host.incarnations)}"
            self.store.create(f"round/{opening.round}/master", master.encode())

    def _obey(self, decision: Decision) -> None:
        if decision.action is not Action.RESTART:
            see_the_end_settled(self.store, self.notes, decision, self.member.id)
        self.acted[decision.round] = decision
        self.running = None
        retired = [item for item in decision.retired if item.host == self.name] if self.in_roster else []
        self.round, self.opened = decision.round + 1, False
        if decision.action is not Action.RESTART:
            self._leave("the job is over")
        elif retired and not retired[0].benched:
            self._leave("retired")

    def _look_for_a_refusal(self) -> None:
        data = self.store.get(refusal_key(self.member.id))
        if data is None:
            return
        if decode(data, Refusal, "refused").rejoin:
            self._join()
        else:
            self._leave("refused")

    def _leave(self, why: str) -> None:
        self.left_because = why
        self.alive, self.running, self.disturbed = False, None, True
        try:
            self.store.append(encode(Gone(self.member.id, "left")))
        except StoreUnavailable:
            return  # the others will notice

    # -- its workers -------------------------------------------------------------------------------------------------

    def report(self, outcome: Outcome, conclusive: bool) -> None:
        """The workers have ended; the agent says so as soon as the store takes it."""
        assert self.running is not None
        self.outbox.append(encode(Report(self.running, self.member.id, self.reports, outcome, conclusive)))
        self.reports += 1


def opening_of(world: World, number: int) -> Opening | None:
    data = world.records.get(opening_key(number))
    return None if data is None else msgspec.json.decode(data, type=Opening)


def decision_of(world: World, number: int) -> Decision | None:
    data = world.records.get(decision_key(number))
    if data is not None:
        return msgspec.json.decode(data, type=Decision)
    opening = opening_of(world, number)
    return opening.ended if opening is not None else None
