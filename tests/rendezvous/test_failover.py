"""The coordinator's host dies at every single operation it does on the store, before it and after it.

One life of a job in virtual time: forming, running, a failure that settles, the decision, the next roster, success.
It is played once to count the leader's operations and to see which states they fall into, and then once for each
operation with a death there. The next coordinator carries on from the store alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.builders import job, retire_the_lost
from support.sim import FaultyStore, Host, Notes, World, decision_of, opening_of

from rendezvous.records import Action, Member, Outcome

LIMITS = job(min_hosts=2, max_hosts=3, lease_ttl=2.0, last_call=1.0, settle=0.6, join_timeout=1e6)
NAMES = [f"h{number}" for number in range(5)]
LEADER = "h0"


class Recorded(FaultyStore):
    """Remembers what was done in which state of the job."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.operations: list[str] = []

    def _before(self) -> None:
        self.operations.append(state(self.world))
        super()._before()


def state(world: World) -> str:
    """Where the job stands, as the records tell it."""
    number = 1
    while decision_of(world, number) is not None:
        number += 1
    ended = decision_of(world, number - 1) if number > 1 else None
    if ended is not None and ended.action is not Action.RESTART:
        return "finished"
    if opening_of(world, number) is None:
        return f"forming {number}"
    settling = any(b'"Report"' in data and b'"round":%d,' % number in data for _, data in world.inbox)
    return f"settling {number}" if settling else f"running {number}"


class Life:
    """The job, driven by what is seen of it, so that it goes on with whichever hosts are left."""

    def __init__(self) -> None:
        self.world, self.notes = World(), Notes()
        self.hosts = {
            name: Host(self.world, name, 1000.0 * number, LIMITS, retire_the_lost, self.notes)
            for number, name in enumerate(NAMES)
        }
        self.hosts[LEADER].store = Recorded(self.world)

    def refusing(self, members: Sequence[Member], timeout: float) -> list[Member]:
        return [m for m in members if not (self.hosts[m.host].alive and self.hosts[m.host].member.id == m.id)]

    def beat(self) -> None:
        self.world.now += LIMITS.lease_ttl / 10
        for host in self.hosts.values():
            host.step()

    def play(self) -> None:
        for host in self.hosts.values():
            host.boot(self.refusing)
        failed = False
        for _ in range(400):
            self.beat()
            running = [host for host in self.hosts.values() if host.alive and host.running]
            if running and not failed and running[-1].running == 1:
                running[-1].report(Outcome.FAILED, conclusive=False)
                failed = True
            for host in running:
                if host.running > 1 and not host.reports:
                    host.report(Outcome.SUCCEEDED, conclusive=False)
            if state(self.world) == "finished":
                for _ in range(3):
                    self.beat()
                return
        raise AssertionError(f"the job stands still: {state(self.world)}")


def rehearsal() -> list[str]:
    life = Life()
    life.play()
    store = life.hosts[LEADER].store
    assert isinstance(store, Recorded)
    assert life.notes.opened_rounds == [1, 2], "this host led all the time"
    return store.operations


STATES = rehearsal()


def test_the_rehearsal_goes_through_every_state_of_a_round():
    assert set(STATES) == {
        "forming 1",
        "running 1",
        "settling 1",
        "forming 2",
        "running 2",
        "settling 2",
        "finished",
    }
    assert len(STATES) > 50


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_the_coordinators_host_dies_at_each_of_its_operations_and_the_job_ends_well(before):
    deaths = 0
    for operation, where in enumerate(STATES):
        life = Life()
        dying = life.hosts[LEADER]
        boot = dying.boot

        def armed(probe, dying=dying, boot=boot, operation=operation):  # type: ignore[no-untyped-def]
            boot(probe)
            dying.store.crash_in, dying.store.crash_before = operation, before

        dying.boot = armed  # type: ignore[method-assign]
        life.play()
        died = not dying.alive and not dying.left_because
        deaths += died
        told = f"operation {operation} ({where})"
        assert died or where == "finished", f"{told}: the host was to die and did not"
        last = max(number for number in range(1, 9) if decision_of(life.world, number) is not None)
        ended = decision_of(life.world, last)
        assert ended is not None
        assert (ended.action, ended.kind) == (Action.FINISH, "success"), told
        for number in range(1, last):
            retired = [item.host for item in decision_of(life.world, number).retired]  # type: ignore[union-attr]
            assert retired in ([], [LEADER]), told
        assert not [host for host in life.hosts.values() if host.alive], f"{told}: everybody hears of the end"
        written = life.notes.decided_rounds
        assert set(written) == set(range(1, last + 1)), f"{told}: a decision was not written down"
        assert len(life.notes.opened_rounds) + len(written) <= 1 + len(set(written)) + len(
            set(life.notes.opened_rounds)
        ), f"{told}: one death has more than one record written twice"
    assert deaths >= len(STATES) - STATES.count("finished")
