"""A host on which processes outlive SIGKILL: a suspect where somebody has to be guessed, and never convicted for it."""

from __future__ import annotations

import msgspec
import pytest

from ezpz_elastic.decide.decider import make_decider
from ezpz_elastic.decide.evidence import Evidence, IdleTimeout, Unkillable, WorkerExit
from ezpz_elastic.decide.policy import Limits
from ezpz_elastic.decide.verdict import Suspect, Verdict
from rendezvous.records import Action, Case, Decision, Member, Outcome, Report, Roster

HOSTS = tuple(Member(f"h{n}#1", f"h{n}", f"h{n}", f"10.0.0.{n}", 1, n, 1) for n in range(3))
SPARE = Member("s#1", "s", "s", "10.0.0.9", 1, 9, 1)
STUCK = Unkillable("h1", (417, 418), "state D, waits in cl_sync_io_wait")
decide = make_decider(Limits(max_restarts=9))


def after(*told: tuple[int, Evidence], round_number: int = 1, ledger: msgspec.Raw = msgspec.Raw(b"null")) -> Decision:  # noqa: B008
    reports = tuple(
        Report(round_number, HOSTS[slot].id, seq, Outcome.FAILED, evidence=msgspec.Raw(msgspec.json.encode([item])))
        for seq, (slot, item) in enumerate(told)
    )
    roster = Roster(round_number, HOSTS)
    return decide(Case(round_number, roster, reports, (), (SPARE,), 2, 3, 700.0 * round_number, ledger=ledger))


def verdict(decision: Decision) -> Verdict:
    return msgspec.json.decode(decision.verdict, type=Verdict)


@pytest.mark.parametrize("slot", [0, 1])
def test_it_is_a_suspect_beside_whatever_has_happened_and_no_cause_by_itself(slot: int) -> None:
    decision = after((slot, WorkerExit(f"h{slot}", slot, signal=9)), (1, STUCK))
    found = verdict(decision)
    assert (decision.action, decision.retired, found.cause.value) == (Action.RESTART, (), "worker_killed")
    assert Suspect("h1", 0.4, "its processes outlive SIGKILL") in found.suspects
    aside = [line.text for line in found.set_aside]
    assert "processes 417, 418 on h1 outlived SIGKILL (state D, waits in cl_sync_io_wait)" in aside


def test_it_decides_who_is_rotated_where_nothing_else_does() -> None:
    first = after((0, IdleTimeout(60.0)), (1, STUCK))
    assert (first.action, first.retired) == (Action.RESTART, ())
    second = after((0, IdleTimeout(60.0)), round_number=2, ledger=first.ledger)
    assert [(gone.host, gone.provenance, gone.benched) for gone in second.retired] == [("h1", "blind", True)]


def test_a_host_outside_the_round_is_nobodys_suspect() -> None:
    stranger = msgspec.structs.replace(STUCK, host="h9")
    found = verdict(after((0, WorkerExit("h0", 0, signal=9)), (1, stranger)))
    assert [suspect.name for suspect in found.suspects] == ["h0"]
