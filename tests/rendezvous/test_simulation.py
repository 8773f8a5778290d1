"""Ten hosts and two, with clocks hours apart, over a store that drops, delays, repeats and dies: I1-I11 hold.

Every host runs the product's own election, leadership and membership in virtual time (``support/sim.py``). Hosts die
between any two operations, hang, are cut off both ways or one way and come back; messages arrive late, twice and in
another order; the store goes away. At the end everything is healed, and the job has to go on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.builders import job
from support.sim import Host, Link, Notes, World, decision_of, opening_of

from rendezvous.records import Action, Case, Decision, Gone, Member, Outcome, Readmit, Retire, Retirement, encode

HOSTS = [f"h{i}" for i in range(12)]
MIN, MAX = 2, 5
LIMITS = job(min_hosts=MIN, max_hosts=MAX, lease_ttl=5.0, last_call=2.0, settle=1.0, join_timeout=1e6)
BEAT = 0.5
HOUR = 3600.0


def decide(case: Case) -> Decision:
    """Retires whoever is lost and nobody else; counts decisions; success only when all say so."""
    count = (msgspec.json.decode(case.ledger) or 0) + 1
    ledger = msgspec.Raw(msgspec.json.encode(count))
    members = case.roster.members if case.roster is not None else ()
    happy = {item.member_id for item in case.reports if item.outcome is Outcome.SUCCEEDED}
    if members and not case.lost and happy >= {item.id for item in members}:
        return Decision(case.round, Action.FINISH, "success", "unknown", "all succeeded", ledger=ledger)
    retired = tuple(Retirement(item.member.host, "lost", item.how) for item in case.lost)
    return Decision(case.round, Action.RESTART, "k", "c", "r", retired, elapsed=case.elapsed, ledger=ledger)


class Job(RuleBasedStateMachine):
    """Everything that can happen to twelve hosts and a store."""

    steps = 0  # of all lives together

    def __init__(self) -> None:
        super().__init__()
        self.world, self.notes = World(), Notes()
        clocks = random.Random(1)
        self.hosts = {
            name: Host(self.world, name, clocks.uniform(-HOUR, HOUR) + HOUR, LIMITS, decide, self.notes)
            for name in HOSTS
        }
        self.store_was_down = False
        self.forgiven: set[tuple[str, int]] = set()
        self.orders = 0
        self.told = False
        self.crashes = 0

    # -- what happens --------------------------------------------------------------------------------------------------

    @initialize(count=st.integers(MIN, 9), seed=st.integers(0, 2**32))
    def begin(self, count: int, seed: int) -> None:
        self.world.random = random.Random(seed)
        for name in HOSTS[:count]:
            self.boot(name)
        self.pass_time(8)

    def refusing(self, members: Sequence[Member], timeout: float) -> list[Member]:
        """Ports refuse when the process is gone and the host can be reached; a hung host's kernel still accepts."""
        gone = []
        for member in members:
            host = self.hosts[member.host]
            same = host.alive and host.member.id == member.id
            if not same and host.store.link is Link.UP:
                gone.append(member)
        return gone

    def boot(self, name: str) -> None:
        self.hosts[name].boot(self.refusing)

    def some(self, number: int, hosts: list[Host]) -> Host:
        return hosts[number % len(hosts)]

    def living(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.alive]

    def running(self) -> list[Host]:
        return [host for host in self.living() if host.running is not None]

    def victims(self) -> list[Host]:
        """Mostly hosts with a slot, sometimes a spare."""
        return self.living() if self.world.random.random() < 0.3 else self.running() or self.living()

    @rule(beats=st.sampled_from([1, 1, 2, 4, 8, 16]))
    def pass_time(self, beats: int) -> None:
        for _ in range(beats):
            self.world.now += BEAT
            order = list(self.hosts.values())
            self.world.random.shuffle(order)
            for host in order:
                host.step()

    @rule(number=st.integers(0, 11))
    def start(self, number: int) -> None:
        host = self.hosts[HOSTS[number]]
        if not host.alive:
            self.boot(host.name)

    @precondition(lambda self: self.living())
    @rule(number=st.integers(0, 11))
    def kill(self, number: int) -> None:
        self.some(number, self.victims()).die()

    @precondition(lambda self: self.living())
    @rule(number=st.integers(0, 11))
    def reboot(self, number: int) -> None:
        host = self.some(number, self.living())
        host.die()
        self.boot(host.name)

    @precondition(lambda self: any(host.part.leads for host in self.living()))
    @rule(operations=st.integers(0, 12), before=st.booleans())
    def the_leader_dies_at_some_operation(self, operations: int, before: bool) -> None:
        host = next(host for host in self.living() if host.part.leads)
        host.store.crash_in, host.store.crash_before = operations, before
        self.crashes += 1

    @precondition(lambda self: self.living())
    @rule(number=st.integers(0, 11), link=st.sampled_from([Link.REQUESTS_LOST, Link.ANSWERS_LOST]))
    def cut_off(self, number: int, link: Link) -> None:
        host = self.some(number, self.victims())
        host.store.link, host.disturbed = link, True

    @precondition(lambda self: self.living())
    @rule(number=st.integers(0, 11))
    def hang(self, number: int) -> None:
        host = self.some(number, self.victims())
        host.paused = host.disturbed = True

    @rule()
    def heal(self) -> None:
        for host in self.hosts.values():
            host.store.link, host.paused = Link.UP, False

    @rule(down=st.booleans())
    def store_goes_or_comes(self, down: bool) -> None:
        self.world.down = down

    @rule(beats=st.integers(4, 30))
    def outage(self, beats: int) -> None:
        self.world.down = True
        self.pass_time(beats)
        self.world.down = False
        self.pass_time(4)

    @precondition(lambda self: self.living())
    @rule(number=st.integers(0, 11), link=st.sampled_from(list(Link)[1:]), beats=st.integers(4, 30))
    def cut_off_and_healed(self, number: int, link: Link, beats: int) -> None:
        host = self.some(number, self.victims())
        host.store.link, host.disturbed = link, True
        self.pass_time(beats)
        host.store.link = Link.UP
        self.pass_time(4)

    @precondition(lambda self: any(host.running for host in self.living()))
    @rule(number=st.integers(0, 11), spare=st.integers(0, 11), beats=st.integers(0, 24))
    def lost_and_replaced(self, number: int, spare: int, beats: int) -> None:
        self.start(spare)
        self.pass_time(2)
        if any(host.running for host in self.living()):
            self.some(number, self.victims()).die()
        self.pass_time(beats)

    @rule(reread=st.booleans())
    def messages_come_twice(self, reread: bool) -> None:
        self.world.reread = reread

    @precondition(lambda self: self.living())
    @rule(number=st.integers(0, 11))
    def the_next_message_is_slow(self, number: int) -> None:
        self.some(number, self.victims()).store.delay_next = True

    @rule()
    def slow_messages_arrive(self) -> None:
        self.world.deliver_late()

    @precondition(lambda self: any(host.running for host in self.living()))
    @rule(number=st.integers(0, 11), conclusive=st.booleans())
    def workers_fail(self, number: int, conclusive: bool) -> None:
        self.some(number, self.running()).report(Outcome.FAILED, conclusive)

    @precondition(lambda self: any(host.running for host in self.living()))
    @rule(everybody=st.sampled_from([False, False, False, True]), number=st.integers(0, 11))
    def workers_succeed(self, everybody: bool, number: int) -> None:
        running = self.running()
        for host in running if everybody else [self.some(number, running)]:
            host.report(Outcome.SUCCEEDED, False)

    @precondition(lambda self: self.living() and len(self.living()) > MIN + 1)
    @rule(number=st.integers(0, 11))
    def a_person_retires(self, number: int) -> None:
        host = self.some(number, self.living())
        self.orders += 1
        order = Retire(f"o{self.orders}", host.name, host.name, host.member.id, self.rounds() or 1, "a person")
        self.told = True
        self.world.post(encode(order))

    @rule(number=st.integers(0, 11), back=st.integers(0, 3))
    def a_person_readmits(self, number: int, back: int) -> None:
        self.orders += 1
        self.told = True
        name, round_number = HOSTS[number], max(1, self.rounds() - back)
        self.forgiven.add((name, round_number))
        self.world.post(encode(Readmit(f"o{self.orders}", name, name, round_number)))

    # -- what must hold ------------------------------------------------------------------------------------------------

    def rounds(self) -> int:
        number = 0
        while opening_of(self.world, number + 1) is not None:
            number += 1
        return number

    @invariant()
    def steps_are_counted(self) -> None:
        type(self).steps += 1

    @invariant()
    def i1_to_i5_the_records_tell_one_consistent_story(self) -> None:
        retired: dict[str, int] = {}
        before: list[str] | None = None
        emptied: set[str] = set()
        last = self.rounds()
        for number in range(1, last + 1):
            opening, ended = opening_of(self.world, number), decision_of(self.world, number)
            assert opening is not None
            if opening.roster is not None:
                now = [item.host for item in opening.roster.members]
                assert len(now) == len(set(now)), "I1: a host with two slots"
                assert MIN <= len(now) <= MAX, "I1: a roster of an impossible size"
                for host in now:
                    assert host not in retired or (host, retired[host]) in self.forgiven, "I1, I3: retired and seated"
                for old, new in zip(before or [], now, strict=False):
                    if old != new:
                        assert old in emptied, f"I4: round {number} gave {old}'s slot away without a decision"
                    if before is not None and len(now) >= len(before) and old in now and old not in emptied:
                        assert old == new, f"I5: round {number} moved {old}"
                before, emptied = now, set()
            if ended is None:
                assert number == last, "I2: a round began before the last one was decided"
                continue
            emptied |= {item.host for item in ended.retired}
            retired |= {item.host: number for item in ended.retired if not item.benched}

    @invariant()
    def i2_every_agent_acts_on_the_written_decision_or_on_none(self) -> None:
        for host in self.hosts.values():
            for number, decision in host.acted.items():
                assert decision == decision_of(self.world, number)

    @invariant()
    def i6_i7_only_who_was_really_disturbed_is_lost_whatever_the_clocks_say(self) -> None:
        for number in range(1, self.rounds() + 1):
            ended = decision_of(self.world, number)
            for item in ended.retired if ended is not None else ():
                assert item.provenance in {"lost", "person"}
                assert item.provenance == "person" or self.hosts[item.host].disturbed, f"{item.host} did nothing"
                assert item.provenance == "lost" or self.told
        for message in self.world.messages():
            if isinstance(message, Gone) and message.how != "left":
                assert self.hosts[message.member_id.partition("#")[0]].disturbed

    @invariant()
    def i8_the_history_counts_every_decision_once_whoever_made_it(self) -> None:
        counted = 0
        for number in range(1, self.rounds() + 1):
            ended = decision_of(self.world, number)
            if ended is None:
                continue
            counted += all(item.provenance != "person" for item in ended.retired)
            assert (msgspec.json.decode(ended.ledger) or 0) == counted

    @invariant()
    def i9_i10_a_running_worker_belongs_to_the_current_round_as_far_as_its_host_can_see(self) -> None:
        for host in self.living():
            if host.running is None:
                continue
            opening = opening_of(self.world, host.running)
            assert opening is not None
            assert opening.roster is not None
            assert opening.roster.slot_of(host.member.id) is not None, "I1: workers without a slot"

    @invariant()
    def i11_every_round_has_a_store_of_its_own(self) -> None:
        masters = [value for key, value in self.world.records.items() if key.endswith("/master")]
        assert len(masters) == len(set(masters))

    def everything_was_written_down(self) -> None:
        """Whoever died: once, and twice only for each time that a writer died before it could say that it had."""
        last = self.rounds()
        ended = [number for number in range(1, last + 1) if decision_of(self.world, number) is not None]
        opened = [number for number in range(1, last + 1) if opening_of(self.world, number).roster is not None]  # type: ignore[union-attr]
        for committed, written in ((ended, self.notes.decided_rounds), (opened, self.notes.opened_rounds)):
            assert sorted(set(written)) == committed, "not everything was written down"
            assert len(written) - len(committed) <= self.crashes

    def teardown(self) -> None:
        """Heal everything: within a minute of the job's time it runs, with a full roster of the living, or is over."""
        if not self.world.beats:
            return
        self.world.down = self.world.reread = False
        self.heal()
        self.slow_messages_arrive()
        for host in self.hosts.values():
            host.store.crash_in, host.store.delay_next = None, False
        for number in range(len(HOSTS)):
            self.start(number)
        self.pass_time(120)
        last = self.rounds()
        ended = decision_of(self.world, last) if last else None
        self.everything_was_written_down()
        if ended is not None and ended.action is Action.FINISH:
            assert not [host for host in self.living() if host.running]
            return
        usable = {host.name for host in self.living()}
        if len(usable) < MIN:
            return  # all others were retired, and the job waits for hosts, as it should
        opening = opening_of(self.world, last)
        assert opening is not None, "no round was formed although there are hosts"
        assert opening.roster is not None, "the job does not go on"
        assert ended is None, f"round {last} was decided and no further one is formed"
        for item in opening.roster.members:
            host = self.hosts[item.host]
            assert host.alive, f"{item.host} holds a slot and is gone"
            assert host.running == last, "I10: workers of another round"
        leaders = [host for host in self.living() if host.part.leads]
        assert len(leaders) == 1, "one leads"
        known = leaders[0].part._lead._membership.members
        for host in self.living():
            assert host.running in (None, last), "I10: a stale round is still running"
            assert host.member.id in known, f"{host.name} stands by and nobody knows it"
        self.i1_to_i5_the_records_tell_one_consistent_story()
        self.i6_i7_only_who_was_really_disturbed_is_lost_whatever_the_clocks_say()


def lives(examples: int, steps: int, same: bool = False) -> settings:
    """Args: how many lives, how long; ``same``: every run plays the same ones, so that it fails for a change only."""
    checks = list(HealthCheck)
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=checks,
        derandomize=same,
    )


def test_the_invariants_hold_whatever_happens():
    run_state_machine_as_test(Job, settings=lives(2400, 50, same=True))


@pytest.mark.soak
def test_the_invariants_hold_over_a_million_steps():
    began = time.monotonic()
    until = Job.steps + 1_000_000
    while Job.steps < until:  # some lives end before their last step
        run_state_machine_as_test(Job, settings=lives(500, 100))
        print(f"{until - Job.steps:,} steps left after {time.monotonic() - began:.0f} s", flush=True)
