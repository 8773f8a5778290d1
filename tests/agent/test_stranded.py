"""An agent that needs a decision and has no store to get it from: it leaves, it does not sit the allocation out."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from ezpz_elastic.observe.hang import StepClock
from ezpz_elastic.round_watch import RoundWatch
from ezpz_elastic.stall import StallWatch
from rendezvous.stores import StoreUnavailable


class NoStore:
    def create(self, key: str, value: bytes) -> bytes:
        raise StoreUnavailable("gone with its host")

    def get(self, key: str) -> bytes | None:
        raise StoreUnavailable("gone with its host")

    def close(self) -> None:
        pass


def watch(*, finished: bool, stalled: bool, away: float) -> Any:
    handler = SimpleNamespace(patience=10.0, coordination_failure=lambda: None)
    return SimpleNamespace(
        _link=SimpleNamespace(failure=None, away_since=time.monotonic() - away),
        _eyes=SimpleNamespace(handler=handler),
        _exits=SimpleNamespace(finished=lambda: finished),
        _stall=SimpleNamespace(stalled=stalled),
    )


def test_workers_that_make_no_steps_are_seen_without_a_store():
    ranks: Any = SimpleNamespace(step=lambda: 7, busy=lambda: False)
    seat: Any = SimpleNamespace(roster=SimpleNamespace(round=1), slot=0)
    store: Any = NoStore()
    stall = StallWatch(ranks, StepClock(0.5, 0.0), seat, store, lambda: False, lambda: None)
    deadline = time.monotonic() + 30
    while not stall.stalled and time.monotonic() < deadline:
        time.sleep(0.01)
    stall.stop()
    assert stall.stalled
    assert stall.found is None


@pytest.mark.parametrize(("finished", "stalled", "words"), [(True, False, "have ended"), (False, True, "no progress")])
def test_an_agent_without_a_store_leaves_once_its_workers_need_a_decision(finished: bool, stalled: bool, words: str):
    RoundWatch._check(watch(finished=finished, stalled=stalled, away=5.0))
    with pytest.raises(RendezvousConnectionError, match=words):
        RoundWatch._check(watch(finished=finished, stalled=stalled, away=11.0))


def test_workers_that_go_on_are_left_alone_however_long_the_store_is_away():
    RoundWatch._check(watch(finished=False, stalled=False, away=1e6))
