"""A random life of a job with two coordinators that read one store; the invariants hold whatever happens.

The machine plays the store: first writer wins for records, the inbox keeps its order. Each coordinator applies what it
has read so far, in its own time, can crash and start again from the store, and its messages can be read twice.
"""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.builders import decision, job, member, report

from rendezvous.membership import Decide, Effect, Event, Membership, Open, Phase, Tick
from rendezvous.records import Action, Case, Decision, Gone, Joined, Member, Message, Opening, Outcome, Retirement

HOSTS = [f"h{i}" for i in range(10)]
MIN, MAX = 2, 4


def decide(case: Case, picked: int, bench: bool) -> Decision:
    """Lost hosts are retired; sometimes one more is picked; the ledger counts decisions."""
    count = (msgspec.json.decode(case.ledger) or 0) + 1
    ledger = msgspec.Raw(msgspec.json.encode(count))
    if case.roster is None:
        return decision(case.round, Action.STOP, ledger=ledger)
    hosts = [item.host for item in case.roster.members]
    lost = [item.member.host for item in case.lost]
    if not lost and {r.member_id for r in case.reports if r.outcome is Outcome.SUCCEEDED} >= {
        item.id for item in case.roster.members
    }:
        return decision(case.round, Action.FINISH, ledger=ledger)
    retired = [Retirement(host, "lost", "gone") for host in lost]
    alive = [host for host in hosts if host not in lost]
    if case.spares and picked < len(alive):
        retired.append(Retirement(alive[picked], "blind" if bench else "scraped", "picked", benched=bench))
    return msgspec.structs.replace(decision(case.round, ledger=ledger), retired=tuple(retired))


class Store:
    """Committed records and the inbox."""

    def __init__(self) -> None:
        self.openings: dict[int, Opening] = {}
        self.decisions: dict[int, Decision] = {}
        self.inbox: list[Message] = []

    def open(self, opening: Opening) -> Opening:
        if opening.ended is not None and opening.round not in self.openings:
            self.decisions[opening.round] = opening.ended
        return self.openings.setdefault(opening.round, opening)

    def decide(self, answer: Decision) -> Decision:
        return self.decisions.setdefault(answer.round, answer)


class Coordinator:
    """A coordinator that has read up to ``cursor``."""

    def __init__(self, store: Store, now: float) -> None:
        self.store, self.cursor = store, 0
        self.membership = Membership(job(min_hosts=MIN, max_hosts=MAX, last_call=5.0, join_timeout=600.0))
        while True:
            number = self.membership.round
            running = self.membership.phase is Phase.RUNNING
            event: Event | None = (store.decisions if running else store.openings).get(number)
            if event is None or self.membership.phase is Phase.FINISHED:
                return
            self.membership.apply(event, now)

    def read(self, now: float, picked: int, bench: bool) -> None:
        for message in self.store.inbox[self.cursor :]:
            self.step(message, now, picked, bench)
        self.cursor = len(self.store.inbox)
        self.step(Tick(), now, picked, bench)

    def step(self, event: Event, now: float, picked: int, bench: bool) -> None:
        pending: list[Effect] = self.membership.apply(event, now)
        while pending:
            effect = pending.pop(0)
            if isinstance(effect, Open):
                pending += self.membership.apply(self.store.open(effect.opening), now)
            elif isinstance(effect, Decide):
                answer = decide(effect.case, picked, bench)
                if effect.before_start:
                    pending += self.membership.apply(self.store.open(Opening(answer.round, ended=answer)), now)
                else:
                    pending += self.membership.apply(self.store.decide(answer), now)


class Job(RuleBasedStateMachine):
    """Agents come, report and vanish; coordinators read, crash and overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.now = 0.0
        self.coordinators = [Coordinator(self.store, 0.0), Coordinator(self.store, 0.0)]
        self.alive: dict[str, Member] = {}
        self.incarnations = itertools.count()

    @initialize(count=st.integers(MIN, 7))
    def begin(self, count: int) -> None:
        for host in HOSTS[:count]:
            self.join(host)
        self.now += 6.0
        self.read(0, 9, False)

    @rule(host=st.sampled_from(HOSTS))
    def join(self, host: str) -> None:
        if host not in self.alive:
            self.alive[host] = member(host, next(self.incarnations))
            self.store.inbox.append(Joined(self.alive[host]))

    def active(self) -> list[str]:
        """Living hosts of the newest roster, else all living hosts."""
        roster = self.store.openings[max(self.store.openings)].roster if self.store.openings else None
        hosts = [item.host for item in roster.members if item.host in self.alive] if roster is not None else []
        return hosts or sorted(self.alive)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), how=st.sampled_from(["expired", "refused", "left"]), any_host=st.booleans())
    def vanish(self, data: st.DataObject, how: str, any_host: bool) -> None:
        host = data.draw(st.sampled_from(sorted(self.alive) if any_host else self.active()))
        self.store.inbox.append(Gone(self.alive.pop(host).id, how))

    @precondition(lambda self: self.store.openings and self.alive)
    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)), conclusive=st.booleans(), stale=st.integers(0, 4))
    def tell(self, data: st.DataObject, outcome: Outcome, conclusive: bool, stale: int) -> None:
        host = data.draw(st.sampled_from(self.active()))
        number = max(self.store.openings) - (1 if stale == 4 else 0)
        self.store.inbox.append(report(self.alive[host], number, outcome, conclusive=conclusive))

    @precondition(lambda self: self.store.openings and self.alive)
    @rule(data=st.data(), lost=st.booleans(), which=st.integers(0, 1), picked=st.integers(0, 8), bench=st.booleans())
    def fail(self, data: st.DataObject, lost: bool, which: int, picked: int, bench: bool) -> None:
        """A failure that is settled at once, so that most lives have many rounds."""
        host = data.draw(st.sampled_from(self.active()))
        who = self.alive.pop(host) if lost else self.alive[host]
        failed = report(who, max(self.store.openings), Outcome.FAILED, conclusive=True)
        self.store.inbox.append(Gone(who.id, "expired") if lost else failed)
        self.read(which, picked, bench)
        if lost:
            self.join(host)

    @rule(
        which=st.integers(0, 1),
        picked=st.integers(0, 8),
        bench=st.booleans(),
        seconds=st.sampled_from([0, 2, 2, 6, 6, 6, 700]),
    )
    def read(self, which: int, picked: int, bench: bool, seconds: float = 2) -> None:
        self.now += seconds
        self.coordinators[which].read(self.now, picked, bench)

    @rule(which=st.integers(0, 1))
    def crash(self, which: int) -> None:
        self.coordinators[which] = Coordinator(self.store, self.now)

    @precondition(lambda self: self.store.inbox)
    @rule(which=st.integers(0, 1), back=st.integers(1, 5))
    def read_again(self, which: int, back: int) -> None:
        coordinator = self.coordinators[which]
        coordinator.cursor = max(0, coordinator.cursor - back)

    @invariant()
    def i1_one_roster_without_retired_hosts_and_every_slot_once(self) -> None:
        retired: set[str] = set()
        for number in sorted(self.store.openings):
            roster = self.store.openings[number].roster
            if roster is not None:
                hosts = [item.host for item in roster.members]
                assert len(hosts) == len(set(hosts))
                assert MIN <= len(hosts) <= MAX
                assert not retired & set(hosts), "I3: a retired host holds no slot again"
            answer = self.store.decisions.get(number)
            if answer is not None:
                retired |= {item.host for item in answer.retired if not item.benched}

    @invariant()
    def i2_rounds_follow_each_other_and_each_ends_once(self) -> None:
        assert sorted(self.store.openings) == list(range(1, len(self.store.openings) + 1))
        assert set(self.store.decisions) <= set(self.store.openings)
        assert len(self.store.openings) - len(self.store.decisions) in (0, 1)

    @invariant()
    def i4_i5_slots_change_hands_only_by_decision_and_survivors_stay(self) -> None:
        before: list[str] | None = None
        emptied: set[str] = set()
        for number in sorted(self.store.openings):
            roster = self.store.openings[number].roster
            if roster is not None:
                now = [item.host for item in roster.members]
                if before is not None:
                    for old, new in zip(before, now, strict=False):
                        if old != new:
                            assert old in emptied, f"I4: round {number} gave {old}'s slot away without a decision"
                        if len(now) >= len(before) and old in now and old not in emptied:
                            assert old == new, f"I5: round {number} moved {old}"
                before, emptied = now, set()
            answer = self.store.decisions.get(number)
            if answer is not None:
                emptied |= {item.host for item in answer.retired}

    @invariant()
    def i8_the_history_counts_every_decision_once_whoever_made_it(self) -> None:
        for position, number in enumerate(sorted(self.store.decisions), start=1):
            assert msgspec.json.decode(self.store.decisions[number].ledger) == position


TestJob = Job.TestCase
TestJob.settings = settings(max_examples=200, stateful_step_count=60, deadline=None, derandomize=True)
