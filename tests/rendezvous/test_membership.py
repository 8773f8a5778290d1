"""One story per rule of the membership: who gets which slot, when a round opens and when it is decided."""

from __future__ import annotations

from support.builders import decision, job, member, report
from support.story import Coordination, running

from rendezvous.membership import Membership, Phase, Tick
from rendezvous.records import Action, Gone, Hold, Joined, Member, Outcome, Writable

A, B, C, D = (member(f"h{i}") for i in range(4))


def test_a_round_opens_as_soon_as_the_maximum_is_there():
    story = running(A)
    assert story.rosters() == []
    story.tell(Joined(B))
    assert story.rosters() == [["h0", "h1"]]


def test_the_last_call_lets_more_than_the_minimum_in():
    story = running(A, B, min_hosts=2, max_hosts=4, last_call=30.0)
    assert story.rosters() == []
    story.pass_time(29.9)
    assert story.rosters() == []
    story.tell(Joined(C))
    story.pass_time(0.2)
    assert story.rosters() == [["h0", "h1", "h2"]]


def test_slots_are_filled_in_numeric_order_at_first():
    hosts = [member("n10"), member("n9"), member("n2")]
    assert running(*hosts, min_hosts=3, max_hosts=3).rosters() == [["n2", "n9", "n10"]]


def test_a_hostfile_order_goes_before_the_names():
    hosts = [member("n1", order=2), member("n2", order=0), member("n3", order=1)]
    assert running(*hosts, min_hosts=3, max_hosts=3).rosters() == [["n2", "n3", "n1"]]


def test_a_lost_host_gives_its_slot_to_the_spare_and_the_others_keep_theirs():
    story = running(A, B, C, min_hosts=2, max_hosts=2)
    story.tell(Gone(A.id, "expired"))
    story.pass_time(1.0)
    assert story.rosters() == [["h0", "h1"], ["h2", "h1"]]
    assert [lost.member.host for lost in story.cases[0].case.lost] == ["h0"]


def test_a_spare_stands_by_as_long_as_no_decision_empties_a_slot():
    story = running(A, B, C, min_hosts=2, max_hosts=2)
    story.tell(report(A, 1, conclusive=True))
    assert story.rosters() == [["h0", "h1"], ["h0", "h1"]]
    assert list(story.membership.queue) == [C.id]


def test_holes_are_closed_from_the_top_when_the_spares_are_gone():
    story = running(A, B, C, D, min_hosts=2, max_hosts=4)
    story.tell(Gone(B.id, "expired"))
    story.pass_time(1.0)
    assert story.rosters()[-1] == ["h0", "h3", "h2"]


def test_the_job_grows_at_the_next_round_and_never_in_the_middle_of_one():
    story = running(A, B, min_hosts=2, max_hosts=3, last_call=0.0)
    story.tell(Joined(C))
    assert story.rosters() == [["h0", "h1"]]
    story.tell(report(A, 1, conclusive=True))
    assert story.rosters() == [["h0", "h1"], ["h0", "h1", "h2"]]


def test_a_conclusive_report_is_decided_at_once():
    story = running(A, B)
    story.tell(report(A, 1, conclusive=True))
    assert len(story.cases) == 1


def test_other_reports_wait_for_everybody_or_for_the_settle_window():
    story = running(A, B)
    story.tell(report(A, 1))
    story.pass_time(0.9)
    assert story.cases == []
    story.pass_time(0.2)
    assert len(story.cases) == 1
    case = story.cases[0].case
    assert case.failed_at is not None
    assert 1.0 <= case.at - case.failed_at < 1.2

    story = running(A, B)
    story.tell(report(A, 1), report(B, 1))
    assert len(story.cases) == 1


def test_success_needs_every_host_and_has_no_deadline():
    story = running(A, B)
    story.tell(report(A, 1, Outcome.SUCCEEDED))
    story.pass_time(3600)
    assert story.cases == []
    story.tell(report(B, 1, Outcome.SUCCEEDED))
    assert story.membership.phase is Phase.FINISHED
    assert story.membership.decision.action is Action.FINISH


def test_a_host_that_had_succeeded_restarts_with_the_others():
    story = running(A, B)
    story.tell(report(A, 1, Outcome.SUCCEEDED), report(B, 1))
    assert story.rosters() == [["h0", "h1"], ["h0", "h1"]]


def test_reports_of_another_round_or_of_a_spare_are_not_heard():
    story = running(A, B, C)
    story.tell(report(C, 1, conclusive=True), report(A, 2, conclusive=True))
    assert story.cases == []


def test_word_of_progress_settles_nothing_and_is_there_when_a_host_is_lost_without_a_report():
    story = running(A, B, C)
    for number, step in enumerate((20, 40)):
        story.tell(report(A, 1, Outcome.RUNNING, seq=number, durable_step=step))
    story.pass_time(100.0)
    assert story.cases == []
    story.tell(Gone(B.id, "refused"))
    story.pass_time(1.1)
    told = story.cases[0].case.reports
    assert [(item.outcome, item.durable_step) for item in told] == [(Outcome.RUNNING, 40)]


def test_a_repeated_message_changes_nothing():
    story = running(A, B)
    failed = report(A, 1)
    story.tell(failed, failed, Joined(A), Joined(B))
    story.pass_time(2.0)
    assert len(story.cases[0].case.reports) == 1
    assert story.rosters() == [["h0", "h1"], ["h0", "h1"]]


def test_a_host_lost_while_the_next_round_waits_is_decided_before_that_round_starts():
    membership = Membership(job())
    for item in (A, B, C):
        membership.apply(Joined(item), 0.0)
    story = Coordination(membership)
    story.tell(Tick())
    story.membership.apply(report(A, 1, conclusive=True), 0.0)
    story.tell(decision(1, delay=10.0))
    story.tell(Gone(B.id, "refused"))
    story.pass_time(11.0)
    assert story.cases[-1].before_start
    assert story.rosters()[-1] == ["h0", "h2"]
    assert story.openings[-1].round == 3


def test_a_round_that_cannot_be_formed_is_given_up_after_the_join_timeout():
    story = running(A, join_timeout=60.0)
    story.pass_time(59.0)
    assert story.cases == []
    story.pass_time(2.0)
    assert story.cases[0].case.roster is None
    assert story.membership.phase is Phase.FINISHED


def test_a_retired_host_that_comes_back_is_refused_with_the_reason():
    story = running(A, B, C)
    story.tell(Gone(B.id, "expired"))
    story.pass_time(1.0)
    back = member("h1", 1)
    story.tell(Joined(back))
    assert "retired in round 1 (lost)" in story.refused.get(back.id, "it was not refused")
    assert back.id not in story.membership.queue


def test_a_second_agent_on_a_host_is_looked_into_and_takes_over_only_when_the_first_is_gone():
    story = running(A, B, C)
    twin = member("h2", 1)
    story.tell(Joined(twin))
    assert [item.old.id for item in story.twins] == [C.id]
    assert twin.id not in story.membership.queue
    story.tell(Gone(C.id, "refused"))
    assert list(story.membership.queue) == [twin.id]


def test_a_benched_host_goes_to_the_back_of_the_queue():
    story = running(A, B, C, D)
    answer = decision(1, Action.RESTART, "h1")
    benched = type(answer.retired[0])("h1", "blind", "picked", benched=True)
    story.membership.apply(report(A, 1), 0.0)
    story.tell(
        type(answer)(**{f: getattr(answer, f) for f in answer.__struct_fields__ if f != "retired"}, retired=(benched,))
    )
    assert story.rosters()[-1] == ["h0", "h2"]
    assert list(story.membership.queue) == [D.id, B.id]


def test_a_new_coordinator_comes_to_the_same_membership_from_the_records_alone():
    story = running(A, B, C)
    story.tell(Gone(B.id, "expired"))
    story.pass_time(1.0)
    successor = Coordination(Membership(job()))
    successor.membership.apply(story.openings[0], 0.0)
    successor.membership.apply(story.membership.decision, 0.0)
    successor.membership.apply(story.openings[1], 0.0)
    successor.tell(Joined(A), Joined(B), Joined(C), Gone(B.id, "expired"))
    assert successor.membership.round == story.membership.round == 2
    assert successor.membership.phase is Phase.RUNNING
    assert successor.membership.queue == story.membership.queue
    assert set(successor.membership.retired) == set(story.membership.retired) == {"h1"}


def test_after_a_storage_failure_a_round_waits_until_two_hosts_have_written():
    story = held(A, B, C, min_hosts=3, max_hosts=3)
    story.pass_time(5.0)
    story.tell(Writable(1, A.id), Writable(1, A.id), Writable(1, C.id))
    story.pass_time(600.0)
    assert len(story.rosters()) == 1
    story.tell(Writable(1, B.id))
    assert story.rosters() == [["h0", "h1", "h2"]] * 2


def test_word_of_an_earlier_storage_failure_does_not_count():
    story = held(A, B)
    story.pass_time(5.0)
    story.tell(Writable(1, A.id), Writable(1, B.id), decision(2, hold=Hold(900.0)))
    story.tell(Writable(1, A.id), Writable(1, B.id))
    assert len(story.rosters()) == 2
    story.tell(Writable(2, A.id), Writable(2, B.id))
    assert len(story.rosters()) == 3


def test_storage_is_waited_for_no_longer_than_the_decision_says():
    story = held(A, B)
    story.pass_time(904.0)
    assert len(story.rosters()) == 1
    assert story.membership.deadline(story.now) == 905.0
    story.pass_time(1.0)
    assert len(story.rosters()) == 2


def test_a_host_that_is_lost_while_storage_is_waited_for_is_decided_on_at_once():
    story = held(A, B, C)
    story.pass_time(10.0)
    story.tell(Gone(A.id, "expired"))
    assert [lost.member.host for lost in story.cases[-1].case.lost] == ["h0"]


def held(*members: Member, **limits: object) -> Coordination:
    """A job whose first round has been ended by a storage failure, at 0 s."""
    story = running(*members, **limits)
    story.tell(decision(1, delay=5.0, hold=Hold(900.0)))
    return story
