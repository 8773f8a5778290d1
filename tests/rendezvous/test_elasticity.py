"""Growth, shrinking, a person's orders, and hosts that come back: stories on the pure membership."""

from __future__ import annotations

import msgspec
import pytest
from support.builders import decision, job, member, report
from support.story import Coordination, running

from rendezvous.membership import Membership, Phase, Tick
from rendezvous.records import Action, Decision, Gone, Joined, Opening, Readmit, Retire, Retirement
from rendezvous.seating import natural_order

A, B, C, D = (member(f"h{i}") for i in range(4))


def retire(who, round_number: int, order: str = "o1") -> Retire:  # type: ignore[no-untyped-def]
    return Retire(order, who.host, who.key, who.id, round_number, "smells of burning")


def test_a_host_that_comes_late_waits_for_the_next_round_and_then_enlarges_the_job():
    story = running(A, B, min_hosts=2, max_hosts=3)
    story.pass_time(31)
    assert story.rosters() == [["h0", "h1"]]
    story.tell(Joined(C))
    story.pass_time(3600)
    assert story.rosters() == [["h0", "h1"]], "growth interrupts nobody"
    story.tell(report(A, 1, conclusive=True))
    assert story.rosters()[1] == ["h0", "h1", "h2"]


def test_with_grow_now_a_late_host_ends_the_round_after_the_last_call_and_costs_no_restart():
    story = running(A, B, min_hosts=2, max_hosts=4, grow_now=True)
    story.pass_time(31)
    story.tell(Joined(C))
    assert story.membership.deadline(story.now) == story.now + 30.0
    story.pass_time(29)
    assert len(story.rosters()) == 1, "more hosts may be about to come"
    story.pass_time(1)
    assert story.rosters()[1] == ["h0", "h1", "h2"]
    answer = story.cases[0].answer
    assert answer is not None
    assert (answer.action, answer.retired) == (Action.RESTART, ())
    assert answer.reason == "grow=now: 1 more host is there"


def test_with_grow_now_the_last_missing_host_is_not_waited_with():
    story = running(A, B, min_hosts=2, max_hosts=3, grow_now=True)
    story.pass_time(31)
    story.tell(Joined(C))
    assert story.rosters()[1] == ["h0", "h1", "h2"]
    story.tell(Joined(D))
    story.pass_time(3600)
    assert len(story.rosters()) == 2, "a full job does not grow"


def test_a_failure_goes_before_growth():
    story = running(A, B, min_hosts=2, max_hosts=4, grow_now=True)
    story.pass_time(31)
    story.tell(Joined(C))
    story.tell(report(A, 1))
    story.pass_time(30)
    assert story.cases[0].answer is None, "the decider was asked, not passed over"


def test_without_spares_the_job_shrinks_to_its_minimum_and_no_further():
    story = running(A, B, C, min_hosts=2, max_hosts=3)
    story.tell(Gone(B.id, "expired"))
    story.pass_time(1)
    assert story.rosters()[1] == ["h0", "h2"]
    story.tell(Gone(C.id, "expired"))
    story.pass_time(1)
    assert story.membership.phase is Phase.FINISHED


def test_slots_follow_the_hostfile_and_unlisted_hosts_come_last_by_their_number():
    listed = [member("b", order=0), member("a", order=1)]
    others = [member("h10"), member("h9"), member("h²")]
    ordered = sorted([*others, *listed], key=natural_order)
    assert [item.host for item in ordered] == ["b", "a", "h9", "h10", "h²"]
    story = running(member("h10"), member("a", order=1), member("b", order=0), max_hosts=3)
    assert story.rosters() == [["b", "a", "h10"]]


def test_a_person_retires_an_active_host_and_a_spare_takes_its_slot():
    story = running(A, B, C)
    story.tell(retire(A, 1))
    assert story.rosters()[1] == ["h2", "h1"]
    answer = story.cases[0].answer
    assert answer is not None
    assert answer.retired == (Retirement("h0", "person", "smells of burning"),)
    story.tell(Joined(member("h0", 1)))
    assert "h0 was retired in round 1 (person): smells of burning" in story.refused["h0#1"]


def test_a_person_retires_a_spare_and_no_round_is_disturbed():
    story = running(A, B, C)
    story.tell(retire(C, 1))
    assert len(story.rosters()) == 1
    assert "h2 was retired in round 1 (person)" in story.refused[C.id]
    assert list(story.membership.queue) == []


def test_an_order_that_arrives_while_a_round_forms_is_carried_out_before_it_starts():
    story = running(A, B, min_hosts=2)
    story.tell(report(A, 1, conclusive=True))
    story.membership.apply(decision(2, delay=60.0), story.now)
    story.tell(retire(A, 2))
    assert len(story.rosters()) == 2
    story.pass_time(61)
    story.tell(Joined(C))
    assert story.rosters()[-1] == ["h2", "h1"]


def test_a_readmitted_host_is_admitted_as_a_new_incarnation_and_only_then():
    story = running(A, B, C)
    story.tell(retire(A, 1))
    story.tell(Readmit("o2", "h0", "h0", 7))
    story.tell(Joined(member("h0", 1)))
    assert "h0#1" in story.refused, "the readmission was about another retirement"
    story.tell(Readmit("o3", "h0", "h0", 1))
    story.tell(Joined(member("h0", 2)))
    assert [item.id for item in story.membership.queue.values()] == ["h0#2"]


def replayed(story: Coordination, *messages) -> Membership:  # type: ignore[no-untyped-def]
    """What a new coordinator makes of the same store."""
    fresh = Membership(story.membership.job)
    for opening in story.openings:
        fresh.apply(opening, 0.0)
        for case in story.cases:
            if case.case.round == opening.round and opening.ended is None:
                fresh.apply(case.answer or story.answers[opening.round], 0.0)
    for message in messages:
        fresh.apply(message, 0.0, more=True)
    fresh.apply(Tick(), 0.0)
    return fresh


def test_a_new_coordinator_does_not_carry_an_old_order_out_again():
    """Retired, readmitted, back as a new incarnation and seated: the same inbox read again changes nothing."""
    back = member("h0", 1)
    messages = [Joined(A), Joined(B), Joined(C), retire(A, 1), Readmit("o2", "h0", "h0", 1), Joined(back)]
    story = running(A, B, C)
    story.tell(*messages[3:])
    story.tell(report(B, 2, conclusive=True))
    assert story.rosters()[-1] == ["h2", "h1"]
    story.tell(Gone(C.id, "expired"))
    story.pass_time(1)
    assert story.rosters()[-1] == ["h0", "h1"]
    fresh = replayed(story, *messages, Gone(C.id, "expired"))
    assert fresh.retired.keys() == {"h2"}
    assert [item.id for item in fresh.roster.members] == ["h0#1", B.id]
    assert fresh.phase is Phase.RUNNING
    assert fresh.round == story.membership.round


def test_orders_that_are_delivered_twice_are_carried_out_once():
    story = running(A, B, C)
    story.tell(retire(C, 1), Readmit("o2", "h2", "h2", 1), retire(C, 1), Joined(member("h2", 1)))
    assert [item.id for item in story.membership.queue.values()] == ["h2#1"]


def test_a_refusal_shows_the_evidence_of_the_verdict_that_retired_the_host():
    story = running(A, B, C)
    verdict = msgspec.Raw(msgspec.json.encode({"kind": "x", "evidence": [{"text": "Xid 79: GPU has fallen off"}]}))
    ended = Decision(
        1, Action.RESTART, "k", "c", "r", retired=(Retirement("h0", "scraped", "its GPU is gone"),), verdict=verdict
    )
    story.tell(ended)
    story.tell(Joined(member("h0", 1)))
    assert story.refused["h0#1"] == (
        'h0 was retired in round 1 (scraped): its GPU is gone; evidence: [{"text":"Xid 79: GPU has fallen off"}]'
    )


@pytest.mark.parametrize("verdict", [b"null", b"[1]", b'{"evidence":[]}', b'"text"'])
def test_a_verdict_without_evidence_is_a_refusal_without_it(verdict):
    story = running(A, B, C)
    retired = (Retirement("h0", "lost", "gone"),)
    story.tell(Decision(1, Action.RESTART, "k", "c", "r", retired=retired, verdict=msgspec.Raw(verdict)))
    story.tell(Joined(member("h0", 1)))
    assert story.refused["h0#1"] == "h0 was retired in round 1 (lost): gone"


def test_a_host_that_rebooted_is_not_its_old_self():
    """The old life's lease ends later; that says nothing about the new one."""
    story = running(A, B, C)
    again = member("h2", 1)
    story.tell(Joined(again))
    assert [(twin.old.id, twin.new.id) for twin in story.twins] == [(C.id, again.id)]
    story.tell(Gone(C.id, "refused"))
    story.tell(Gone(C.id, "expired"))
    assert list(story.membership.queue) == [again.id]
    story.tell(Gone(A.id, "refused"))
    story.pass_time(1)
    assert [item.id for item in story.openings[-1].roster.members] == [again.id, B.id]
    story.tell(report(C, 2, conclusive=True))
    assert story.membership.phase is Phase.RUNNING, "the old life has no word in the new round"


def test_a_host_that_rebooted_before_its_loss_was_decided_is_told_that_it_is_retired():
    story = running(A, B, C)
    again = member("h0", 1)
    story.tell(Joined(again))
    story.tell(Gone(A.id, "refused"))
    story.pass_time(1)
    assert story.rosters()[1] == ["h2", "h1"]
    assert story.refused[again.id] == "h0 was retired in round 1 (lost): gone"
    assert again.id not in story.membership.members


def test_a_round_whose_order_was_carried_out_is_known_to_everybody_from_the_records_alone():
    story = running(A, B, C)
    story.tell(retire(A, 1))
    fresh = Membership(job())
    for event in (story.openings[0], story.cases[0].answer, story.openings[1]):
        assert isinstance(event, Opening | Decision)
        fresh.apply(event, 0.0)
    assert fresh.retired.keys() == {"h0"}
    assert fresh.round == 2
