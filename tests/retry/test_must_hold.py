"""Three deaths of a 300-step job, told by the launcher: once each of a living host, once for ever of the first."""

from __future__ import annotations

import msgspec
import pytest

from ezpz_elastic.faults.experiment import Experiment, Result

DEATHS = Experiment(total_steps=300, ckpt_every=25, fail_at={1: 60, 2: 145, 3: 240}, modes=("shepherd",))
HOSTS = DEATHS.hosts()


def perform(experiment: Experiment, tmp_path) -> Result:
    result = experiment.perform(tmp_path / "experiment")
    assert result.missing(experiment) == [], "a fault was not injected, so nothing was tested"
    return result


def assert_progress(result: Result) -> None:
    assert result.exit_code == 0, result.console
    assert len(result.attempts) == 4
    assert [item.resumed_from for item in result.attempts] == [None, 50, 125, 225]
    assert [item.reached for item in result.attempts] == [60, 145, 240, 300]
    assert [item.redone for item in result.attempts] == [0, 10, 20, 15]
    assert [item.fault for item in result.attempts] == ["shepherd"] * 3 + [""]


def test_each_host_that_is_named_while_it_is_active_is_retired_by_name_and_a_spare_takes_its_slot(tmp_path):
    result = perform(DEATHS, tmp_path)
    assert_progress(result)
    victims = [item.named for item in result.attempts[:3]]
    assert victims == list(HOSTS[1:4]), "never the first slot, where a guess by position would be right by luck"
    for item in result.attempts[:3]:
        assert item.named in item.hosts, "the injector named a host that was active at the time"
        assert [(out.host, out.provenance, out.benched) for out in item.retired] == [(item.named, "scraped", False)]
    assert [item.hosts for item in result.attempts] == [(HOSTS[0], HOSTS[slot]) for slot in (1, 2, 3, 4)]
    lines = (tmp_path / "experiment" / "run" / "bad_nodes.txt").read_text().splitlines()
    assert lines == [f"{victim}  scraped  attempt={number}" for number, victim in enumerate(victims, 1)]


def test_a_host_that_is_named_for_ever_is_retired_once_and_no_healthy_spare_is_spent(tmp_path):
    result = perform(msgspec.structs.replace(DEATHS, host=HOSTS[0]), tmp_path)
    assert_progress(result)
    assert [item.named for item in result.attempts[:3]] == [HOSTS[0]] * 3, "reprinted for ever"
    assert [len(item.retired) for item in result.attempts] == [1, 0, 0, 0]
    assert [item.hosts for item in result.attempts] == [(HOSTS[0], HOSTS[1])] + [(HOSTS[2], HOSTS[1])] * 3
    lines = (tmp_path / "experiment" / "run" / "bad_nodes.txt").read_text().splitlines()
    assert lines == [f"{HOSTS[0]}  scraped  attempt=1"]
    assert "stale" in result.console


def test_named_for_ever_costs_no_spare_even_where_nobody_knows_of_any_checkpoint(tmp_path):
    """Every attempt starts over, so no progress is ever known and every restart counts."""
    experiment = msgspec.structs.replace(
        DEATHS,
        host=HOSTS[0],
        total_steps=40,
        ckpt_every=1000,
        fail_at=dict.fromkeys(range(1, 6), 20),
        retry=("--max-retries=3",),
    )
    result = perform(msgspec.structs.replace(experiment, fail_at={1: 20, 2: 20, 3: 20, 4: 20}), tmp_path)
    assert result.exit_code == 0
    assert [item.resumed_from for item in result.attempts] == [None] * 5
    assert [len(item.retired) for item in result.attempts] == [1, 0, 0, 0, 0]


def test_an_experiment_whose_fault_was_never_injected_says_so(tmp_path):
    never = msgspec.structs.replace(DEATHS, total_steps=30, ckpt_every=10, fail_at={1: 100})
    result = never.perform(tmp_path / "experiment")
    assert result.exit_code == 0, "the job itself is well"
    assert result.missing(never) == [1]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_can_be_drawn(tmp_path, suffix: str):
    from ezpz_elastic.faults.plot import draw
    from ezpz_elastic.faults.record import AttemptRecord, Retired, write_records

    first = AttemptRecord(
        1, None, 60, 0, "shepherd", "a", True, ("a",), "bad_node_known", "host_lost", 1, None, (), 0.1
    )
    second = msgspec.structs.replace(
        first, attempt=2, resumed_from=50, redone=10, retired=(Retired("a", "blind", True),)
    )
    write_records(tmp_path / "run.jsonl", [first, second])
    draw(tmp_path / "run.jsonl", tmp_path / f"picture.{suffix}")
    assert (tmp_path / f"picture.{suffix}").stat().st_size > 1000
