"""A run id that is used again while a durable store still has the records of the job before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.builders import decision, job, member, retire_the_lost
from support.fake_store import FakeStore, World
from torch.distributed.elastic.rendezvous.api import RendezvousStateError

from rendezvous.handler import EzpzRendezvousHandler, JobMismatch
from rendezvous.liveness import Listener
from rendezvous.records import Action, Joined, Opening, Roster, encode
from rendezvous.replay import decision_key, opening_key

OLD = (member("h1"), member("h2"))


class Kept(FakeStore):
    """A store that outlives its agents."""

    durable = True

    def connect(self) -> FakeStore:
        return Kept(self.world)


class Silent:
    """A ledger nobody reads."""

    def opened(self, *_: object) -> None:
        """Nothing is written down."""

    decided = ended = opened


class Past:
    """One round of two hosts, and how it ended; and an agent that is started on one of them afterwards."""

    def __init__(self) -> None:
        self.world = World()
        self.store = Kept(self.world)
        self.limits = job(min_hosts=2, max_hosts=2, join_timeout=1.0)
        self.store.create("job", encode(self.limits))
        for old in OLD:
            self.store.append(encode(Joined(old)))
        self.store.create(opening_key(1), encode(Opening(1, roster=Roster(1, OLD))))
        self.listener = Listener("127.0.0.1")

    def ended(self, action: Action) -> None:
        self.store.create(decision_key(1), encode(decision(1, action, reason="how it ended")))

    def agent(self, store: FakeStore | None = None) -> EzpzRendezvousHandler:
        return EzpzRendezvousHandler(
            store=store or self.store,
            job=self.limits,
            member=member("h1", 1),
            listener=self.listener,
            decider=retire_the_lost,
            ledger=Silent(),
        )


@pytest.fixture
def past() -> Iterator[Past]:
    made = Past()
    yield made
    made.listener.close()


@pytest.mark.parametrize("action", [Action.FINISH, Action.STOP])
def test_a_job_under_the_id_of_one_that_is_over_is_refused_and_does_not_end_well_without_a_step(past, action):
    past.ended(action)
    with pytest.raises(JobMismatch, match=r"job that is over, .*how it ended; give this job another --rdzv-id"):
        past.agent().join()


def test_a_spare_that_comes_while_the_others_end_the_job_is_no_new_job(past):
    past.ended(Action.FINISH)
    past.store.renew(OLD[0].id, 5.0)
    past.agent()._agree()


def test_a_job_whose_agents_were_all_killed_is_not_taken_up_and_no_host_of_it_is_called_lost(past):
    with pytest.raises(JobMismatch, match=r"whose agents are all gone \(round 1 had begun\).*another --rdzv-id"):
        past.agent().join()
    assert "coordinator/1" not in past.world.records


@pytest.mark.parametrize("alive", [OLD[0], member("spare")])
def test_a_job_of_which_anybody_lives_takes_who_comes(past, alive):
    past.store.append(encode(Joined(member("spare"))))
    past.store.renew(alive.id, 5.0)
    past.agent()._agree()


def test_a_job_that_has_not_begun_takes_who_comes(past):
    del past.world.records[opening_key(1)]
    past.agent()._agree()


def test_an_embedded_store_ends_with_its_job_and_is_never_of_the_past(past):
    past.ended(Action.FINISH)
    past.agent(FakeStore(past.world))._agree()


def test_a_record_that_cannot_be_read_is_one_line(past):
    past.world.records["job"] = b"?"
    with pytest.raises(RendezvousStateError, match="job"):
        past.agent().join()
