"""From reports as they stand in the store to a decision."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ezpz_elastic.decide.decider import make_decider
from ezpz_elastic.decide.evidence import (
    Accusation,
    AgentSignalled,
    Certainty,
    ErrorRecord,
    Evidence,
    HostProbe,
    IdleTimeout,
    LeaseLost,
    LogMatch,
    LostHow,
    Role,
    SchedulerFact,
    WorkerExit,
)
from ezpz_elastic.decide.policy import History, Limits, chores, stop_line
from ezpz_elastic.decide.verdict import Cause, Verdict
from rendezvous.records import Action, Case, Decision, LostMember, Member, Outcome, Report, Roster, decode, encode


def member(number: int, workers: int = 1) -> Member:
    host = f"127.0.0.{number}"
    return Member(id=f"{host}#1", host=host, key=host, addr=host, port=4000, pid=number, workers=workers)


A, B, C, D, E, SPARE = (member(number) for number in range(2, 8))


def report(
    who: Member,
    *evidence: Evidence,
    outcome: Outcome = Outcome.FAILED,
    step: int | None = None,
    durable: int | None = None,
    raw: bytes | None = None,
    round: int = 1,
) -> Report:
    written = msgspec.json.encode(list(evidence)) if raw is None else raw
    return Report(round, who.id, 0, outcome, step=step, durable_step=durable, evidence=msgspec.Raw(written))


def case(
    *reports: Report,
    members: tuple[Member, ...] = (A, B),
    lost: tuple[tuple[Member, str], ...] = (),
    spares: tuple[Member, ...] = (),
    round: int = 1,
    elapsed: float = 10.0,
    ledger: msgspec.Raw = msgspec.Raw(b"null"),  # noqa: B008 (immutable)
    min_hosts: int | None = None,
) -> Case:
    least = len(members) if min_hosts is None else min_hosts
    gone = tuple(LostMember(who, how) for who, how in lost)
    return Case(round, Roster(round, members), reports, gone, spares, least, len(members), elapsed, ledger=ledger)


def killed(who: Member, rank: int = 0) -> WorkerExit:
    return WorkerExit(who.host, rank, signal=9)


def raised(who: Member, rank: int = 0, kind: str = "ValueError", step: int | None = None) -> WorkerExit:
    error = ErrorRecord(kind, "bad value 7", (("/home/me/train.py", 12, "main"),))
    return WorkerExit(who.host, rank, exit_code=1, error=error, step=step)


def verdict_of(decision: Decision) -> Verdict:
    return msgspec.json.decode(decision.verdict, type=Verdict)


def succeeded(who: Member) -> Report:
    return report(who, outcome=Outcome.SUCCEEDED)


decide = make_decider(Limits())


def test_a_job_of_which_every_host_succeeded_is_finished() -> None:
    decision = decide(case(succeeded(A), succeeded(B)))
    assert (decision.action, decision.kind, decision.exit_code) == (Action.FINISH, "success", 0)


def test_a_host_that_succeeded_restarts_with_the_one_that_failed() -> None:
    decision = decide(case(succeeded(A), report(B, killed(B, 1))))
    assert (decision.action, decision.cause, decision.retired) == (Action.RESTART, "worker_killed", ())


def lost_connection(who: Member, rank: int, peer: Member) -> WorkerExit:
    text = f"[gloo/transport/tcp/pair.cc] Connection closed by peer [{peer.addr}]:1234"
    return WorkerExit(who.host, rank, exit_code=1, error=ErrorRecord("RuntimeError", text), step=9)


def test_a_host_whose_workers_ended_early_with_code_0_costs_nobody_a_slot_however_often() -> None:
    ledger = msgspec.Raw(b"null")
    for round_number in (1, 2, 3):
        gone = Report(round_number, C.id, 0, Outcome.SUCCEEDED, step=10)
        peers = [report(who, lost_connection(who, rank, C), round=round_number) for rank, who in ((0, A), (1, B))]
        decision = decide(
            case(gone, *peers, members=(A, B, C), spares=(SPARE,), round=round_number, ledger=ledger, elapsed=60.0)
        )
        assert (decision.action, decision.cause, decision.retired) == (Action.RESTART, "worker_exit", ())
        assert f"the workers on {C.host} (after step 10) ended with exit code 0" in decision.reason
        ledger = decision.ledger


def test_one_rank_of_a_host_that_ended_early_explains_its_siblings_and_its_peers() -> None:
    well = WorkerExit(B.host, 2, exit_code=0, step=10)
    decision = decide(
        case(report(A, lost_connection(A, 0, B)), report(B, lost_connection(B, 3, B), well), members=(A, B))
    )
    assert (decision.cause, decision.retired) == ("worker_exit", ())
    assert f"rank 2 on {B.host} (after step 10) ended with exit code 0" in decision.reason


def test_an_early_end_explains_no_failure_of_another_kind() -> None:
    well = WorkerExit(B.host, 2, exit_code=0, step=10)
    assert decide(case(succeeded(A), report(B, killed(B, 3), well))).cause == "worker_killed"
    assert decide(case(succeeded(A), report(B, raised(B, 1)))).cause == "user_exception"


def test_an_end_that_nobody_saw_is_not_told_as_an_exit_code() -> None:
    unseen = WorkerExit(B.host, 1, exit_code=255, unseen="the warm server that had started it was killed")
    decision = decide(case(report(B, unseen), spares=(SPARE,)))
    assert (decision.action, decision.cause, decision.retired) == (Action.RESTART, "worker_exit", ())
    assert f"nobody saw how rank 1 on {B.host} ended: the warm server" in decision.reason
    assert "255" not in decision.reason


def test_a_silent_host_is_no_success() -> None:
    decision = decide(case(succeeded(A)))
    assert (decision.action, decision.kind) == (Action.RESTART, "bad_node_blind")
    assert B.host in decision.reason


def test_success_of_the_others_does_not_finish_a_job_that_lost_a_host() -> None:
    decision = decide(case(succeeded(A), lost=((B, "expired"),), spares=(SPARE,)))
    assert (decision.action, decision.cause) == (Action.RESTART, "host_lost")
    assert [(r.host, r.provenance) for r in decision.retired] == [(B.host, "lost")]


def test_a_host_may_go_away_after_its_workers_succeeded() -> None:
    assert decide(case(succeeded(A), succeeded(B), lost=((B, "left"),))).action is Action.FINISH


def test_a_killed_worker_restarts_in_place_and_its_host_keeps_its_slot() -> None:
    decision = decide(case(report(B, killed(B, 1), step=12, durable=10), spares=(SPARE,)))
    assert (decision.action, decision.kind, decision.cause) == (
        Action.RESTART,
        "retryable_unattributed",
        "worker_killed",
    )
    assert (decision.retired, decision.delay, decision.restarts_left) == ((), 0.0, 2)


@pytest.mark.parametrize("how", ["expired", "refused", "unreachable", "left"])
def test_a_lost_host_is_retired_and_its_peers_complaints_change_nothing(how: str) -> None:
    complaint = ErrorRecord("RuntimeError", f"[gloo/transport/tcp/pair.cc] Connection closed by peer [{B.addr}]:1234")
    peer = report(A, WorkerExit(A.host, 0, exit_code=1, error=complaint), step=14, durable=10)
    decision = decide(case(peer, lost=((B, how),), spares=(SPARE,)))
    assert (decision.kind, decision.cause) == ("bad_node_known", "host_lost")
    assert [(r.host, r.provenance, r.benched) for r in decision.retired] == [(B.host, "lost", False)]
    assert decision.restarts_left == 3


def test_a_host_lost_while_the_next_round_forms_is_replaced_without_any_report() -> None:
    decision = decide(case(members=(A, B), lost=((A, "refused"),), spares=(SPARE,), round=2))
    assert (decision.action, decision.cause, decision.restarts_left) == (Action.RESTART, "host_lost", 3)
    assert [r.host for r in decision.retired] == [A.host]


def test_a_host_lost_before_anybody_reports_does_not_hide_the_progress_of_its_round() -> None:
    """The refund of the restart before depends on it: the round saved step 80 and then lost a host."""
    first = decide(case(report(A, killed(A), step=12, durable=10)))
    assert first.restarts_left == 2
    underway = report(A, outcome=Outcome.RUNNING, step=88, durable=80, round=2)
    second = decide(case(underway, lost=((B, "refused"),), spares=(SPARE,), round=2, ledger=first.ledger))
    assert (second.cause, second.restarts_left) == ("host_lost", 3)
    assert verdict_of(second).suspects == ()


def test_a_wrong_argument_stops_the_job_at_once_with_the_scripts_exit_code() -> None:
    usage = ("usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --lrr 3")
    reports = [
        report(who, WorkerExit(who.host, rank, exit_code=2, stderr_tail=usage)) for rank, who in enumerate((A, B))
    ]
    decision = decide(case(*reports))
    assert (decision.action, decision.kind, decision.exit_code) == (Action.STOP, "user_error", 2)
    assert "--lrr" in decision.reason


def test_a_wrong_argument_stops_the_job_even_if_one_agent_stopped_its_worker_first() -> None:
    usage = ("train.py: error: unrecognized arguments: --lrr 3",)
    first = report(A, WorkerExit(A.host, 0, exit_code=2, stderr_tail=usage))
    second = report(B, WorkerExit(B.host, 1, signal=15, by_agent=True))
    assert decide(case(first, second)).action is Action.STOP


def test_the_same_exception_on_every_host_before_training_stops_the_job() -> None:
    decision = decide(case(report(A, raised(A)), report(B, raised(B, 1))))
    assert (decision.action, decision.kind, decision.exit_code) == (Action.STOP, "user_error", 1)


@pytest.mark.parametrize(
    "other",
    [
        report(B, raised(B, 1, kind="KeyError")),
        report(B, WorkerExit(B.host, 1, exit_code=0)),
        report(B, raised(B, 1, step=3)),
        report(B, raised(B, 1), step=3),
        report(B, WorkerExit(B.host, 1, signal=15, by_agent=True)),
    ],
    ids=["another exception", "a rank that ended well", "a rank that trained", "a host that trained", "no testimony"],
)
def test_an_exception_that_not_all_ranks_share_is_tried_once_more_and_then_stops(other: Report) -> None:
    first = decide(case(report(A, raised(A)), other))
    assert (first.action, first.kind) == (Action.RESTART, "user_error")
    second = decide(
        case(report(A, raised(A), round=2), msgspec.structs.replace(other, round=2), round=2, ledger=first.ledger)
    )
    assert (second.action, second.kind) == (Action.STOP, "user_error")


def test_a_bare_exit_code_beside_a_told_exception_is_the_same_failure() -> None:
    """An exception whose text got lost still ends with exit code 1."""
    decision = decide(case(report(A, raised(A)), report(B, WorkerExit(B.host, 1, exit_code=1))))
    assert decision.action is Action.STOP
    decision = decide(case(report(A, raised(A)), report(B, WorkerExit(B.host, 1, exit_code=3))))
    assert decision.action is Action.RESTART


def test_three_failures_on_three_hosts_use_up_a_budget_of_two() -> None:
    decider, ledger = make_decider(Limits(max_restarts=2)), msgspec.Raw(b"null")
    actions = []
    for number, who in enumerate((A, C, E), 1):
        told = report(who, killed(who, number), step=number * 5, round=number)
        decision = decider(case(told, members=(A, B, C, D, E), round=number, ledger=ledger))
        ledger = decision.ledger
        actions.append(decision.action)
    assert actions == [Action.RESTART, Action.RESTART, Action.STOP]
    assert "--max-restarts=2" in stop_line(decision)


@pytest.mark.parametrize("max_restarts", [0, 1, 20])
@pytest.mark.parametrize("members", [(A,), (A, B)], ids=["one host", "two hosts"])
def test_a_worker_that_kills_itself_is_restarted_exactly_as_often_as_allowed(
    members: tuple[Member, ...], max_restarts: int
) -> None:
    """Random steps, no checkpoint in between, no spare: nobody is retired and the budget alone decides."""
    steps = random.Random(7)
    decider, ledger, restarts = make_decider(Limits(max_restarts=max_restarts)), msgspec.Raw(b"null"), 0
    for number in range(1, 100):
        told = report(members[-1], killed(members[-1], len(members) - 1), step=steps.randint(1, 30), round=number)
        decision = decider(case(told, members=members, round=number, ledger=ledger, elapsed=number * 3.0))
        ledger = decision.ledger
        assert decision.retired == ()
        if decision.action is Action.STOP:
            break
        restarts += 1
    assert (restarts, decision.exit_code) == (max_restarts, 137)
    assert f"--max-restarts={max_restarts}" in stop_line(decision)


def test_twenty_kills_with_checkpoints_in_between_cost_one_restart_in_all() -> None:
    ledger = msgspec.Raw(b"null")
    for number in range(1, 21):
        told = report(B, killed(B, 1), step=number * 10 + 3, durable=number * 10, round=number)
        decision = decide(case(told, spares=(SPARE,), round=number, ledger=ledger, elapsed=number * 3.0))
        ledger = decision.ledger
        assert (decision.action, decision.retired, decision.delay) == (Action.RESTART, (), 0.0)
    assert decision.restarts_left == 2


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"null",
        b'[{"type":"Telepathy"}]',
        b'[{"type":"WorkerExit","host":7}]',
        b'[{"type":"WorkerExit","host":"\xff","rank":1}]',
        b"[" * 100_000 + b"]" * 100_000,
        b'[{"type":"WorkerExit"',
    ],
    ids=["no array", "null", "unknown kind", "wrong type", "no utf-8", "nested", "cut off"],
)
def test_evidence_that_cannot_be_read_counts_as_none_and_is_said(raw: bytes) -> None:
    others = report(B, killed(B, 1))
    decision = decide(case(report(A, raw=raw), others))
    assert (decision.action, decision.cause) == (Action.RESTART, "worker_killed")
    assert A.host in verdict_of(decision).note
    alone = decide(case(report(A, raw=raw)))
    assert (alone.action, alone.kind, alone.retired) == (Action.RESTART, "bad_node_blind", ())
    assert "nothing that was reported says why" in alone.reason


def test_an_interrupted_agent_stops_the_job_with_the_signals_exit_code() -> None:
    told = report(A, AgentSignalled(A.host, 2), outcome=Outcome.INTERRUPTED)
    decision = decide(case(report(B, killed(B, 1)), told))
    assert (decision.action, decision.kind, decision.exit_code) == (Action.STOP, "interrupted", 130)


def test_an_interrupted_agent_is_believed_without_evidence() -> None:
    decision = decide(case(report(A, outcome=Outcome.INTERRUPTED)))
    assert (decision.action, decision.kind, decision.exit_code) == (Action.STOP, "interrupted", 130)
    assert A.host in decision.reason


def test_sigterm_at_the_deadline_is_walltime_and_keeps_its_code() -> None:
    told = report(A, AgentSignalled(A.host, 15), SchedulerFact(remaining=20.0), outcome=Outcome.INTERRUPTED)
    decision = decide(case(told))
    assert (decision.action, decision.kind, decision.exit_code) == (Action.STOP, "walltime", 143)


def test_an_unreadable_ledger_costs_the_budget_and_never_restarts_for_ever() -> None:
    def after(round: int) -> Decision:
        return decide(case(report(B, killed(B, 1), round=round), round=round, ledger=msgspec.Raw(b'{"used":"x"}')))

    assert (after(2).action, after(2).restarts_left) == (Action.RESTART, 1)
    assert "cannot be read" in verdict_of(after(2)).note
    assert after(4).action is Action.STOP


def test_a_round_that_cannot_be_formed_says_how_many_hosts_came() -> None:
    missing = Case(1, None, (), (), (A,), 2, 2, elapsed=0.0, waited=600.0)
    decision = decide(missing)
    assert (decision.action, decision.kind, decision.cause, decision.exit_code) == (
        Action.STOP,
        "exhausted",
        "launch_error",
        1,
    )
    assert "1 of at least 2 hosts came within 600 s" in decision.reason


def test_a_later_round_that_cannot_be_formed_counts_the_seated_and_keeps_the_workers_code() -> None:
    first = decide(case(report(B, WorkerExit(B.host, 1, exit_code=9))))
    late = Case(2, None, (), (), (), 3, 3, elapsed=20.0, waited=60.0, ledger=first.ledger)
    decision = decide(late)
    assert (decision.kind, decision.cause, decision.exit_code) == ("exhausted", "host_lost", 9)
    assert "2 of at least 3 hosts" in decision.reason


def test_reports_of_other_rounds_and_strangers_are_not_heard() -> None:
    stranger, stale = report(SPARE, killed(SPARE)), report(A, killed(A), round=7)
    decision = decide(case(stranger, stale, report(B, killed(B, 1))))
    assert [hint.name for hint in verdict_of(decision).suspects] == [B.host]


def test_the_exit_code_is_that_of_the_worker_to_blame() -> None:
    peer = report(A, WorkerExit(A.host, 0, exit_code=1, error=ErrorRecord("RuntimeError", "Connection closed by peer")))
    decision = make_decider(Limits(max_restarts=0))(case(peer, report(B, killed(B, 1))))
    assert (decision.action, decision.exit_code) == (Action.STOP, 137)


def test_steps_are_the_furthest_that_any_host_told() -> None:
    first = report(A, killed(A), step=12, durable=10)
    second = report(B, WorkerExit(B.host, 1, signal=15, by_agent=True), step=13)
    history = msgspec.json.decode(decide(case(first, second)).ledger, type=History)
    assert (history.step, history.durable) == (13, 10)


@pytest.mark.parametrize(
    ("steps", "leaves"),
    [
        ({A: 30, B: None, C: 30}, B),  # B said nothing within the settle window
        ({C: 30, A: 29, B: 30}, A),  # A's step counter stood still first
        ({C: 30, B: 30, A: 30}, A),  # A was the slowest to report
        ({A: None, B: 30, C: 29}, C),  # both hints are equal, and then the higher slot goes
    ],
    ids=["silent", "behind", "slow", "tie"],
)
def test_a_blind_guess_goes_by_who_was_silent_behind_or_slow(steps: dict[Member, int | None], leaves: Member) -> None:
    """Nothing names a host, twice in a row; the most suspect one is moved to the back of the spare queue."""
    ledger = msgspec.Raw(b"null")
    for number in (1, 2):
        told = [report(who, IdleTimeout(60.0), step=step, round=number) for who, step in steps.items() if step]
        decision = decide(case(*told, members=(A, B, C), spares=(SPARE,), round=number, ledger=ledger))
        ledger = decision.ledger
        assert len(decision.retired) == number - 1
    assert [(r.host, r.provenance, r.benched) for r in decision.retired] == [(leaves.host, "blind", True)]


def test_a_hint_that_most_hosts_share_singles_out_nobody() -> None:
    members = tuple(member(number) for number in range(2, 12))
    decision = decide(case(report(A, IdleTimeout(60.0)), members=members))
    assert verdict_of(decision).suspects == ()


def test_the_first_blind_failure_asks_for_a_sweep_of_probes() -> None:
    decision = decide(case(report(A, IdleTimeout(60.0)), spares=(SPARE,)))
    assert [chore.value for chore in chores(decision)] == ["probe_hosts"]


def test_a_rank_behind_all_others_is_the_suspect_of_a_hang_and_leaves_when_it_hangs_again() -> None:
    ledger = msgspec.Raw(b"null")
    retired = []
    for number in (1, 2):
        told = report(A, IdleTimeout(60.0, behind=((1, B.host),)), step=30, round=number)
        decision = decide(case(told, spares=(SPARE,), round=number, ledger=ledger, elapsed=700.0 * number))
        ledger = decision.ledger
        retired.append([(r.host, r.provenance) for r in decision.retired])
    assert retired == [[], [(B.host, "inferred")]]


def test_hosts_are_told_apart_by_the_members_own_keys() -> None:
    """A name that the machine's grammar does not know is still the host that the roster says it is."""
    odd = Member("n1#1", "Node_A.cluster", "node-a", "10.0.0.1", 1, 1, 1)
    decider = make_decider(Limits(), key=lambda _: None)
    decision = decider(case(members=(odd, B), lost=((odd, "expired"),), spares=(SPARE,)))
    assert [host.name for host in verdict_of(decision).hosts] == ["Node_A.cluster"]


def test_a_decision_crosses_the_store_and_comes_back() -> None:
    decision = decide(case(report(B, killed(B, 1), step=3), spares=(SPARE,)))
    assert decode(encode(decision), Decision, "decision/1") == decision


@pytest.mark.parametrize("step", [-1, 10**30])
def test_a_step_that_no_counter_can_have_is_no_step(step: int) -> None:
    decision = decide(case(report(B, WorkerExit(B.host, 1, signal=9, step=step), step=step, durable=step)))
    history = msgspec.json.decode(decision.ledger, type=History)
    assert (history.step, history.durable) == (None, None)


def test_what_a_machine_lacks_is_told_in_the_verdict() -> None:
    decision = make_decider(Limits(), machine_note="no signatures for this machine")(case(report(A, IdleTimeout(60.0))))
    assert "no signatures" in verdict_of(decision).note


words = st.text(max_size=20) | st.sampled_from([A.host, B.host, "train.py", "Connection closed by peer [127.0.0.3]"])
small = st.none() | st.integers(-3, 300)
errors = st.builds(ErrorRecord, words, words, st.lists(st.tuples(words, st.integers(), words), max_size=2).map(tuple))
any_evidence = st.one_of(
    st.builds(WorkerExit, words, st.integers(-2, 5), st.just(0), st.integers(-2, 3), small, small, st.booleans(),
              small, st.none() | errors, st.lists(words, max_size=2).map(tuple)),
    st.builds(LogMatch, words, words, st.sampled_from(Cause), st.sampled_from(Role), st.sampled_from(Certainty), words,
              rank=small, host=st.none() | words, peer=st.none() | words, code=small),
    st.builds(LeaseLost, words, st.sampled_from(LostHow)),
    st.builds(Accusation, words, words, small, st.none() | st.booleans(), words),
    st.builds(HostProbe, words, words, st.booleans()),
    st.builds(SchedulerFact, st.none() | st.floats(0, 1e6), st.none() | words, words),
    st.builds(IdleTimeout, st.floats(0, 1e6), st.lists(st.tuples(st.integers(-2, 5), words), max_size=3).map(tuple)),
    st.builds(AgentSignalled, words, st.integers(1, 64)),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([A, B, SPARE]), st.lists(any_evidence, max_size=4), small), max_size=4),
    st.sampled_from(Outcome),
    st.booleans(),
)
def test_whatever_agents_report_there_is_a_decision_and_only_hosts_of_the_round_leave(
    told: list[tuple[Member, list[Evidence], int | None]], outcome: Outcome, lost: bool
) -> None:
    reports = [report(who, *evidence, outcome=outcome, step=step) for who, evidence, step in told]
    decision = decide(case(*reports, lost=((B, "expired"),) if lost else (), spares=(SPARE,)))
    assert {r.host for r in decision.retired} <= {A.host, B.host}
    everyone = {r.member_id for r in reports} >= {A.id, B.id}
    assert (decision.action is Action.FINISH) == (everyone and outcome is Outcome.SUCCEEDED)
    assert decode(encode(decision), Decision, "decision/1") == decision


@given(
    st.binary(max_size=200) | st.recursive(st.none() | st.integers(), st.lists, max_leaves=9).map(msgspec.json.encode)
)
def test_whatever_bytes_stand_in_a_report_there_is_a_decision(raw: bytes) -> None:
    assert decide(case(report(A, raw=raw), spares=(SPARE,))).action is Action.RESTART
