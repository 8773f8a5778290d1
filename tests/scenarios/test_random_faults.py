"""Whatever falls on a job, in whatever order: it is seen, understood and survived, and costs no healthy host."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from pathlib import Path

import msgspec
import psutil
import pytest

from ezpz_elastic.demo.story import Journals
from ezpz_elastic.faults.analysis.read import Event
from ezpz_elastic.faults.answers import STORAGE
from ezpz_elastic.faults.modes import MODES
from scenarios import journal, random_faults
from scenarios.injector import Injection, unwitnessed
from scenarios.random_faults import INJECTIONS, MEAN_GAP, SPARES
from scenarios.schedule import KINDS, SILENT, draw, retires

SEED = 7
"""Of the default run. Its schedule has a lost host, a lost agent, two kills, three exceptions and a full disk."""

SOAK_SECONDS = float(os.environ.get("EZPZ_SOAK_SECONDS", "3600"))


def test_a_schedule_is_the_seeds_and_takes_no_more_hosts_than_there_are_spares():
    for seed in range(200):
        plans = draw(seed, KINDS, 2 * len(KINDS), SPARES, mean=1.0)
        assert plans == draw(seed, KINDS, 2 * len(KINDS), SPARES, mean=1.0)
        costly = [plan for plan in plans if retires(plan.kind)]
        assert len(costly) <= SPARES
        assert all(plan.slot > 0 for plan in costly), "slot 0's host serves the store"
        first = Counter(plan.kind for plan in plans[: len(KINDS) - 5])
        assert max(first.values()) == 1, "no kind comes twice before all have come"
    assert draw(1, KINDS, 8, SPARES, 1.0) != draw(2, KINDS, 8, SPARES, 1.0)
    gaps = [plan.gap for plan in draw(1, ("exit",), 4000, SPARES, mean=0.5)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.5, rel=0.1)


def test_every_fault_that_ends_a_round_is_drawn_unless_it_needs_a_machine_of_its_own():
    left = MODES.keys() - {*KINDS, *SILENT}
    assert left == {"slow", "oom", "store_loss", "network_cut", "disk_fill"}


@pytest.fixture(scope="module")
def faulted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Injection]]:
    """One run of the default schedule."""
    directory = tmp_path_factory.mktemp("random") / "run"
    return directory, random_faults.run_target(directory, draw(SEED, KINDS, INJECTIONS, SPARES, MEAN_GAP))


def test_eight_random_faults_are_each_seen_understood_and_survived(faulted: tuple[Path, list[Injection]]):
    directory, done = faulted
    assert len(done) == INJECTIONS
    assert random_faults.compare_run(directory, done) == []


def test_a_fault_that_nobody_saw_is_a_complaint_whichever_witness_is_missing(faulted: tuple[Path, list[Injection]]):
    directory, done = faulted
    events = Journals(directory / "run").poll()
    assert unwitnessed(done, events) == []
    inside = next(item for item in done if item.receipt.witness == "victim")
    outside = next(item for item in done if item.receipt.witness == "injector")

    def without(name: str, number: int) -> list[str]:
        return unwitnessed(done, [e for e in events if (e.name, e.round) != (name, number)])

    def stopped(victim: Injection, **told: None) -> list[Event]:
        """As if the victim's end had been its agent's doing."""

        def seen(event: Event) -> Event:
            if (event.name, event.round, event.fields.get("rank")) != ("worker_exited", victim.round, victim.rank):
                return event
            return msgspec.structs.replace(event, fields={**event.fields, "by_agent": True, **told})

        return list(map(seen, events))

    assert without("worker_exited", inside.round)
    for victim in (item for item in done if item.receipt.witness == "victim"):
        assert unwitnessed(done, stopped(victim, error=None))
        all_raise = MODES[victim.kind].live == STORAGE  # where the save failed
        assert bool(unwitnessed(done, stopped(victim))) != all_raise
    assert without("verdict", inside.round)
    assert without("round_committed", inside.round + 1)
    assert without("host_retired", next(item.round for item in done if retires(item.kind)))
    assert unwitnessed(done, [e for e in events if e.name != "checkpoint_saved"])
    assert unwitnessed(done[1:], events), "a round that ended of something else"
    lived = msgspec.structs.replace(outside, receipt=msgspec.structs.replace(outside.receipt, landed=False))
    assert unwitnessed([lived if item is outside else item for item in done], events)
    elsewhere = msgspec.structs.replace(outside, host="127.0.0.99")
    assert unwitnessed([elsewhere if item is outside else item for item in done], events)
    mistaken = next(kind for kind in KINDS if MODES[kind].live == MODES["full_ost"].live)
    other = msgspec.structs.replace(outside, kind=mistaken)
    assert unwitnessed([other if item is outside else item for item in done], events)


@pytest.mark.soak
def test_an_hour_of_random_faults_leaves_nothing_behind_and_retires_no_healthy_host(tmp_path: Path):
    ends = time.monotonic() + SOAK_SECONDS
    here = psutil.Process()
    held: list[int] = []
    for seed in itertools.count(1000):
        if time.monotonic() > ends:
            break
        directory = tmp_path / str(seed)
        plans = draw(seed, (*KINDS, *SILENT), 12, SPARES, MEAN_GAP)
        done = random_faults.run_target(directory, plans, conf="hang_timeout=20")
        complaints = random_faults.compare_run(directory, done)
        assert complaints == [], (seed, complaints)
        held.append(here.num_fds())
    assert len(held) > 1
    assert held[-1] <= held[1] + 5, f"descriptors are left open: {held}"
    assert journal.judged(directory / "run") == []
