"""The parts of the policy that no story tells: memory, suspicion, wording, chores."""

from __future__ import annotations

import msgspec
import pytest

from ezpz_elastic.decide.history import Chore, History, Weight, digest, load_history
from ezpz_elastic.decide.policy import Limits, OnBlind, Situation, chores, decide, stop_line
from ezpz_elastic.decide.suspicion import most_suspect
from ezpz_elastic.decide.verdict import Cause, EvidenceLine, NamedHost, Provenance, Suspect, Verdict, VerdictKind
from rendezvous.records import Action, Decision, Hold

RETRYABLE = VerdictKind.RETRYABLE_UNATTRIBUTED


def situation(**changes: object) -> Situation:
    return msgspec.structs.replace(Situation(1, ("a", "b"), ("s",), 2, 2, 10.0), **changes)


def memory(decision: Decision) -> History:
    return msgspec.json.decode(decision.ledger, type=History)


def test_the_defaults_are_the_laws() -> None:
    limits = Limits()
    assert (limits.max_restarts, limits.on_blind, limits.window, limits.max_retirements) == (3, OnBlind.SUSPECT, 600, 3)
    assert limits.backoff == (0, 5, 10, 20, 40, 60)
    assert limits.flag_named == "--max-restarts"


@pytest.mark.parametrize(
    ("kind", "cause", "asked"),
    [
        (RETRYABLE, Cause.STORAGE, (Chore.PROBE_STORAGE,)),
        (RETRYABLE, Cause.QUOTA, (Chore.PRUNE_CHECKPOINTS,)),
        (RETRYABLE, Cause.SHM_FULL, (Chore.CLEAN_SHM,)),
        (RETRYABLE, Cause.WORKER_KILLED, ()),
        (VerdictKind.BAD_NODE_BLIND, Cause.UNKNOWN, (Chore.PROBE_HOSTS,)),
        (VerdictKind.BAD_NODE_BLIND, Cause.OOM_DEVICE, (Chore.PROBE_HOSTS,)),
    ],
)
def test_agents_are_asked_for_what_the_row_names(kind: VerdictKind, cause: Cause, asked: tuple[Chore, ...]) -> None:
    decision = decide(Verdict(kind, cause, "x"), History(), situation(), Limits())
    assert decision.action is Action.RESTART
    assert chores(decision) == asked


def test_a_chore_is_asked_for_once() -> None:
    first = decide(Verdict(RETRYABLE, Cause.STORAGE, "x"), History(), situation(), Limits())
    second = decide(Verdict(RETRYABLE, Cause.WORKER_KILLED, "x"), memory(first), situation(round=2), Limits())
    assert chores(second) == ()


def test_storage_is_waited_for_where_the_failure_says_that_it_was() -> None:
    line = "OSError: [Errno 28] No space left on device: '/lus/run 1/ckpt/step-8/__0_0.distcp'"
    verdict = Verdict(RETRYABLE, Cause.STORAGE, "x", evidence=(EvidenceLine("full"), EvidenceLine(line)))
    first = decide(verdict, History(), situation(), Limits(max_storage_wait=60.0))
    assert first.hold == Hold(60.0, "/lus/run 1/ckpt/step-8/__0_0.distcp")
    again = decide(Verdict(RETRYABLE, Cause.STORAGE, "x"), memory(first), situation(round=2, elapsed=40.0), Limits())
    assert again.hold == Hold(1800.0 - 30.0 - 5.0)
    assert decide(Verdict(RETRYABLE, Cause.QUOTA, "x"), History(), situation(), Limits()).hold is None


def test_the_flag_is_called_as_the_command_calls_it() -> None:
    limits = Limits(max_restarts=0, flag_named="--max-retries")
    decision = decide(Verdict(RETRYABLE, Cause.WORKER_EXIT, "x"), History(), situation(), limits)
    assert "--max-retries=0" in stop_line(decision)
    assert "--max-retries=0" in decision.reason


def test_the_number_of_hosts_is_called_as_the_command_calls_it() -> None:
    gone = Verdict(VerdictKind.BAD_NODE_KNOWN, Cause.HOST_LOST, "x", hosts=(NamedHost("a", Provenance.SCRAPED),))
    here = situation(hosts=("a", "b"), spares=(), min_hosts=2, max_hosts=2)
    assert "lower --nhosts)" in stop_line(decide(gone, History(), here, Limits(hosts_named="--nhosts")))


def test_that_no_host_is_known_is_said_once() -> None:
    blind = Verdict(VerdictKind.BAD_NODE_BLIND, Cause.HANG, "hang: silent; nothing tells which host")
    decision = decide(blind, History(), situation(), Limits())
    assert decision.reason.startswith("hang: silent, nothing says which host")


def test_an_exit_code_told_as_a_negative_signal_is_told_as_a_shell_would() -> None:
    decision = decide(
        Verdict(RETRYABLE, Cause.UNKNOWN, "x"), History(), situation(exit_code=-9), Limits(max_restarts=0)
    )
    assert decision.exit_code == 137


def test_a_backoff_of_nothing_waits_for_nothing() -> None:
    decision = decide(Verdict(RETRYABLE, Cause.WORKER_EXIT, "x"), History(in_place=9), situation(), Limits(backoff=()))
    assert decision.delay == 0


def test_the_verdicts_step_counts_where_no_report_told_one() -> None:
    decision = decide(Verdict(RETRYABLE, Cause.WORKER_EXIT, "x", step=57), History(), situation(), Limits())
    assert memory(decision).step == 57


def test_time_that_runs_backwards_under_a_new_coordinator_is_no_time() -> None:
    before = History(at=500.0, suspicion=(Weight("a", 1.0),))
    decision = decide(Verdict(RETRYABLE, Cause.WORKER_EXIT, "x"), before, situation(elapsed=3.0), Limits())
    assert memory(decision).at == 500.0
    assert memory(decision).suspicion == (Weight("a", 1.0),)


def test_suspicion_halves_in_its_half_life_and_is_forgotten_in_the_end() -> None:
    before = History(suspicion=(Weight("a", 1.0), Weight("b", 0.015)))
    decision = decide(Verdict(RETRYABLE, Cause.STORAGE, "x"), before, situation(elapsed=600.0), Limits())
    assert memory(decision).suspicion == (Weight("a", 0.5),)


def test_hosts_that_leave_take_their_suspicion_along() -> None:
    before = History(suspicion=(Weight("a", 0.4), Weight("b", 0.3)))
    lost = Verdict(VerdictKind.BAD_NODE_KNOWN, Cause.HOST_LOST, "x", (NamedHost("a", Provenance.LOST),))
    decision = decide(lost, before, situation(lost=("a",), elapsed=0.0), Limits())
    assert [item.host for item in memory(decision).suspicion] == ["b"]


def test_hints_against_hosts_outside_the_round_are_not_kept() -> None:
    verdict = Verdict(RETRYABLE, Cause.WORKER_KILLED, "x", suspects=(Suspect("z", 1.0, ""), Suspect("s", 1.0, "")))
    assert memory(decide(verdict, History(), situation(), Limits())).suspicion == ()


def test_nobody_is_the_most_suspect_of_nobody() -> None:
    assert most_suspect(History(), ()) is None


def test_an_unreadable_ledger_counts_every_earlier_round() -> None:
    history, note = load_history(msgspec.Raw(b'{"used": "many"}'), round=4)
    assert history.used == 3
    assert "round 3" in note
    assert load_history(msgspec.Raw(b"null"), round=1) == (History(), "")


def test_a_ledger_of_a_later_version_may_say_more() -> None:
    history, note = load_history(msgspec.Raw(b'{"used": 2, "mood": "bad", "version": 2}'), round=4)
    assert (history.used, note) == (2, "")


def test_a_digest_is_the_same_on_every_host() -> None:
    assert digest(["a", "b"]) == digest(iter(("a", "b"))) == "ffc151170352baa3"
    assert digest(["ab"]) != digest(["a", "b"])


def test_a_stop_line_stays_one_line_whatever_the_names_contain() -> None:
    host = "node\n1; rm"
    lost = Verdict(VerdictKind.BAD_NODE_KNOWN, Cause.HOST_LOST, "gone\r\nfor good", (NamedHost(host, Provenance.LOST),))
    decision = decide(lost, History(), situation(hosts=(host,), lost=(host,), spares=(), min_hosts=1), Limits())
    line = stop_line(decision)
    assert line.count("\n") == decision.reason.count("\n") == 0
    assert line.startswith("FAILOVER STOP: exhausted (host_lost; node 1, rm; ")


def test_a_stop_line_names_no_host_on_a_weak_hint() -> None:
    suspects = (Suspect("a", 0.05, "was the last to report"), Suspect("b", 1.0, "rank 1 was killed there"))
    verdict = Verdict(RETRYABLE, Cause.WORKER_KILLED, "x", suspects=suspects)
    decision = decide(verdict, History(), situation(), Limits(max_restarts=0))
    assert "; suspect b; " in stop_line(decision)


@pytest.mark.parametrize("kind", [kind for kind in VerdictKind if kind is not VerdictKind.EXHAUSTED])
def test_a_round_that_could_not_be_formed_ends_the_job_whatever_the_verdict(kind: VerdictKind) -> None:
    nobody = situation(hosts=(), spares=("s", "t"), unformed=True)
    decision = decide(Verdict(kind, Cause.UNKNOWN, "x"), History(), nobody, Limits())
    assert (decision.action, decision.kind) == (Action.STOP, "exhausted")


def test_a_stop_line_names_a_few_hosts_and_counts_the_rest() -> None:
    hosts = tuple(f"n{number}" for number in range(20))
    named = tuple(NamedHost(host, Provenance.LOST) for host in hosts)
    lost = Verdict(VerdictKind.BAD_NODE_KNOWN, Cause.HOST_LOST, "a switch died", named)
    decision = decide(lost, History(), situation(hosts=hosts, lost=hosts, spares=(), min_hosts=20), Limits())
    assert "n7 and 12 more" in stop_line(decision)
    assert len(decision.retired) == 20


def test_a_stop_that_carries_neither_verdict_nor_memory_still_has_its_line() -> None:
    bare = Decision(3, Action.STOP, "interrupted", "unknown", "a person stopped it")
    assert stop_line(bare) == (
        "FAILOVER STOP: interrupted (unknown; no host; look at the first error in the workers' logs)"
    )
    assert chores(bare) == ()


def test_a_retirements_reason_stays_short_however_long_the_log_line_was() -> None:
    lost = Verdict(VerdictKind.BAD_NODE_KNOWN, Cause.HOST_LOST, "x" * 5000, (NamedHost("a", Provenance.LOST),))
    decision = decide(lost, History(), situation(lost=("a",)), Limits())
    assert len(decision.retired[0].reason) <= 200
    assert len(decision.reason) <= 1000
