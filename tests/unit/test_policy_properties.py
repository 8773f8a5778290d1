"""What no sequence of verdicts may ever bring the policy to do."""

from __future__ import annotations

import itertools
import re

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ezpz_elastic.decide.policy import History, Limits, OnBlind, Situation, decide, stop_line
from ezpz_elastic.decide.verdict import Cause, NamedHost, Provenance, Suspect, Verdict, VerdictKind
from rendezvous.records import Action, Decision

HOSTS = [f"x1922c{n}s6b0n0-hsn0.hsn.cm.sunspot.alcf.anl.gov" for n in range(8)]
LEDGER_LIMIT = 16 * 1024
quick = settings(max_examples=40, deadline=None)
EVIDENCE = (Provenance.SCRAPED, Provenance.LOST, Provenance.INFERRED, Provenance.ACCUSED, Provenance.PROBED)
ENDS = {VerdictKind.SUCCESS, VerdictKind.WALLTIME, VerdictKind.PREEMPTED, VerdictKind.INTERRUPTED}
GOES_ON = [kind for kind in VerdictKind if kind not in ENDS | {VerdictKind.EXHAUSTED, VerdictKind.STUCK_PRE_TRAINING}]


class Event(msgspec.Struct, frozen=True):
    """What happens at the end of a round."""

    verdict: Verdict
    lost: tuple[int, ...] = ()
    after: float = 10.0
    step: int | None = None
    new_checkpoint: bool = False
    exit_code: int | None = None
    everywhere: bool | None = None


@st.composite
def verdicts(draw: st.DrawFn, kinds: list[VerdictKind]) -> Verdict:
    names = st.sampled_from([*HOSTS, "a-host-nobody-knows"])
    weights = st.sampled_from([1.0, 0.5, 0.05, 2.0, -1.0])
    return Verdict(
        draw(st.sampled_from(kinds)),
        draw(st.sampled_from(Cause)),
        draw(st.text(max_size=30)),
        hosts=tuple(draw(st.lists(st.builds(NamedHost, names, st.sampled_from(EVIDENCE)), max_size=3))),
        suspects=tuple(draw(st.lists(st.builds(Suspect, names, weights, st.just("")), max_size=3))),
        fingerprint=draw(st.sampled_from(["", "ValueError|x|train", "KeyError|y|load"])),
        certain=draw(st.booleans()),
    )


def events(kinds: list[VerdictKind], checkpoints: bool = True) -> st.SearchStrategy[list[Event]]:
    event = st.builds(
        Event,
        verdicts(kinds),
        lost=st.lists(st.integers(0, 3), max_size=2, unique=True).map(tuple),
        after=st.sampled_from([0.0, 1.0, 10.0, 250.0, 599.0, 601.0]),
        step=st.none() | st.integers(0, 5),
        new_checkpoint=st.booleans() if checkpoints else st.just(False),
        exit_code=st.none() | st.sampled_from([0, 1, 2, 137, 143, -9]),
        everywhere=st.none() | st.booleans(),
    )
    return st.lists(event, min_size=1, max_size=25)


jobs = st.builds(
    lambda size, spares, fewer, max_restarts, on_blind: (
        size, spares, max(size - fewer, 1), Limits(max_restarts=max_restarts, on_blind=on_blind)
    ),
    st.integers(1, 4), st.integers(0, 4), st.integers(0, 2), st.integers(0, 5), st.sampled_from(OnBlind),
)  # fmt: skip


class Played(msgspec.Struct):
    """One decision with what it was about."""

    event: Event
    situation: Situation
    limits: Limits
    decision: Decision

    @property
    def lost(self) -> set[str]:
        return set(self.situation.lost)

    @property
    def judged(self) -> list[str]:
        """Hosts that leave by judgement."""
        return [r.host for r in self.decision.retired if r.host not in self.lost]


def play(job: tuple[int, int, int, Limits], story: list[Event]) -> list[Played]:
    """A job's life until it ends or the story does."""
    size, spare_count, min_hosts, limits = job
    hosts, spares = HOSTS[:size], HOSTS[size : size + spare_count]
    history, now, durable, played = History(), 0.0, None, []
    for number, event in enumerate(story, 1):
        now += event.after
        if event.new_checkpoint:
            durable = 0 if durable is None else durable + 10
        lost = tuple(hosts[index] for index in event.lost if index < len(hosts))
        situation = Situation(
            number, tuple(hosts), tuple(spares), min_hosts, size, now, event.step, durable, lost,
            exit_code=event.exit_code, everywhere=event.everywhere,
        )  # fmt: skip
        decision = decide(event.verdict, history, situation, limits)
        played.append(Played(event, situation, limits, decision))
        if decision.action is not Action.RESTART:
            break
        history = msgspec.json.decode(decision.ledger, type=History)
        out = {r.host: r.benched for r in decision.retired}
        spares += [host for host, benched in out.items() if benched]
        hosts = [host if host not in out else (spares.pop(0) if spares else "") for host in hosts]
        hosts = [host for host in hosts if host]
    return played


# The stories: one of every kind, one that no verdict ends by itself, and one in which nothing is ever saved.
any_story = st.tuples(jobs, events(list(VerdictKind)))
long_story = st.tuples(jobs, events(GOES_ON))
story_without_checkpoints = st.tuples(jobs, events(GOES_ON, checkpoints=False))


@quick
@given(long_story)
def test_nobody_is_retired_without_a_provenance_or_from_outside_the_roster(story: tuple) -> None:
    for case in play(*story):
        verdict = case.event.verdict
        named = {(host.name, host.provenance.value) for host in verdict.hosts}
        suspects = {(hint.name, "inferred") for hint in verdict.suspects}
        blind = verdict.kind is VerdictKind.BAD_NODE_BLIND
        retired = [retirement.host for retirement in case.decision.retired]
        assert len(set(retired)) == len(retired)
        for retirement in case.decision.retired:
            assert retirement.host in case.situation.hosts
            if retirement.host in case.lost:
                assert (retirement.provenance, retirement.benched) == ("lost", False)
            elif retirement.provenance == "blind":
                assert blind
                assert retirement.benched
            else:
                assert not retirement.benched
                assert (retirement.host, retirement.provenance) in named | suspects


@quick
@given(long_story)
def test_no_more_spares_are_spent_than_hosts_were_lost_named_suspected_or_guessed(story: tuple) -> None:
    for case in play(*story):
        verdict = case.event.verdict
        reasons = case.lost | {host.name for host in verdict.hosts} | {hint.name for hint in verdict.suspects}
        guess = verdict.kind is VerdictKind.BAD_NODE_BLIND
        assert len(case.decision.retired) <= len(reasons) + guess
        assert sum(retirement.benched for retirement in case.decision.retired) <= 1


@quick
@given(long_story)
def test_suspicion_neither_shrinks_nor_ends_a_job(story: tuple) -> None:
    for case in play(*story):
        verdict, situation = case.event.verdict, case.situation
        evidence = {host.name for host in verdict.hosts} if verdict.kind is VerdictKind.BAD_NODE_KNOWN else set()
        on_suspicion = [host for host in case.judged if host not in evidence]
        if on_suspicion:
            assert len(case.decision.retired) <= len(situation.spares)
        if case.decision.kind == "exhausted" and verdict.kind is not VerdictKind.EXHAUSTED:
            assert not on_suspicion
            assert case.lost or evidence & set(situation.hosts)


@quick
@given(long_story)
def test_a_doubtful_device_fault_neither_shrinks_nor_ends_a_job(story: tuple) -> None:
    for case in play(*story):
        verdict = case.event.verdict
        if verdict.cause is Cause.DEVICE_FAULT and not verdict.certain and not case.lost:
            assert case.decision.kind != "exhausted"
            assert len(case.decision.retired) <= len(case.situation.spares)


@quick
@given(long_story)
def test_the_windowed_limit_holds_in_every_window(story: tuple) -> None:
    times = [case.situation.elapsed for case in play(*story) if case.judged]
    limits = story[0][3]
    for last in times:
        assert sum(last - limits.window < time <= last for time in times) <= limits.max_retirements


@quick
@given(story_without_checkpoints)
def test_restarts_without_progress_come_to_an_end(story: tuple) -> None:
    played = play(*story)
    size, spares, _, limits = story[0]
    restarts = [case for case in played if case.decision.action is Action.RESTART]
    for_good = [r for case in restarts for r in case.decision.retired if not r.benched]
    free = [a for a, b in itertools.pairwise(restarts) if _left(a) == _left(b)]
    assert len(for_good) <= size + spares
    assert len(free) <= len(for_good)
    assert len(restarts) <= limits.max_restarts + size + spares


def _left(case: Played) -> int | None:
    return case.decision.restarts_left


@quick
@given(long_story)
def test_the_budget_is_never_overdrawn_and_only_a_new_checkpoint_refunds(story: tuple) -> None:
    left = story[0][3].max_restarts
    for case in play(*story):
        now = case.decision.restarts_left
        assert now is not None
        assert 0 <= now <= case.limits.max_restarts
        if now > left:
            assert case.event.new_checkpoint
            assert now == left + 1
        left = now


@quick
@given(any_story)
def test_a_job_finishes_only_on_success_and_stops_with_a_code_and_one_line(story: tuple) -> None:
    for case in play(*story):
        decision = case.decision
        assert (decision.action is Action.FINISH) == (case.event.verdict.kind is VerdictKind.SUCCESS)
        if decision.action is Action.FINISH:
            assert decision.exit_code == 0
        if decision.action is Action.STOP:
            assert 0 < decision.exit_code < 256
        if decision.action is not Action.RESTART:
            line = stop_line(decision)
            assert len(line.splitlines()) == 1
            assert re.fullmatch(r"FAILOVER STOP: [a-z_]+ \([a-z_]+; [^;]+; [^;]+\)", line), line
        assert len(decision.reason.splitlines()) == 1


@quick
@given(long_story)
def test_only_restarts_that_cost_something_wait(story: tuple) -> None:
    left = story[0][3].max_restarts
    for case in play(*story):
        paid = case.event.new_checkpoint or case.decision.restarts_left != left
        assert paid or case.decision.delay == 0
        assert case.decision.delay in case.limits.backoff
        left = case.decision.restarts_left or 0


@quick
@given(long_story)
def test_the_same_question_has_the_same_answer(story: tuple) -> None:
    first, second = play(*story), play(*story)
    assert [msgspec.json.encode(case.decision) for case in first] == [
        msgspec.json.encode(case.decision) for case in second
    ]


def test_the_memory_stays_small_however_long_the_job_lives() -> None:
    """Ten thousand hosts come and go, every round names and suspects a hundred of them, and none is the last."""
    history, limits = History(), Limits(max_restarts=10**9)
    kinds = itertools.cycle(itertools.product(GOES_ON, Cause))
    for number in range(300):
        kind, cause = next(kinds)
        names = [f"x{number:05d}c{slot}s6b0n0-hsn0.hsn.cm.aurora.alcf.anl.gov" for slot in range(100)]
        verdict = Verdict(
            kind,
            cause,
            "x" * 5000,
            hosts=tuple(NamedHost(name, Provenance.SCRAPED) for name in names),
            suspects=tuple(Suspect(name, 1.0, "x") for name in names),
            fingerprint=f"ValueError|{'y' * 5000}|{number}",
        )
        spares = tuple(f"spare-{name}" for name in names)
        decision = decide(verdict, history, Situation(number, tuple(names), spares, 1, 100, number, number), limits)
        assert len(bytes(decision.ledger)) <= LEDGER_LIMIT
        history = msgspec.json.decode(decision.ledger, type=History)
    assert history.suspicion
    assert history.marks
    assert history.places
    assert history.absent
