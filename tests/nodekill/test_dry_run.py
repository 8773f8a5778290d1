"""``benchmarks/sunspot/nodekill.pbs`` itself, on one machine: every mode, and two runs that must not pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodekill.drive import HOSTS, DryRun

SLOW = {"NODEKILL_PACE": "0.3"}
"""Agents load torch, so the job must go on for longer until it is killed."""


def assert_it_held(run: DryRun) -> None:
    assert run.overall() == "PASS", run.output
    assert run.code == 0
    assert "FAIL" not in run.output
    assert "SKIPPED" not in run.output
    assert_clean(run)


def assert_clean(run: DryRun) -> None:
    assert run.left == []
    assert list(run.submitted.rglob("*.bin")) == [], "the checkpoints were not removed"
    assert "reclaimed" in run.output


def test_the_ranks_of_a_host_are_killed_and_hydra_names_it(tmp_path: Path) -> None:
    run = DryRun(tmp_path, "rank")
    assert_it_held(run)
    assert run.bad_nodes() == f"{HOSTS[1]}  scraped  attempt=1\n"
    assert run.active() == [HOSTS[0], HOSTS[2]]


@pytest.mark.parametrize("mode", ["pals", "node"])
def test_the_daemon_of_a_host_is_killed_and_where_hydra_names_nobody_nobody_is_retired(
    tmp_path: Path, mode: str
) -> None:
    run = DryRun(tmp_path, mode)
    assert_it_held(run)
    log = (run.run / "job/attempt-1.log").read_text(errors="replace")
    if f"at host {HOSTS[1]} failed" in log:
        assert run.bad_nodes() == f"{HOSTS[1]}  scraped  attempt=1\n"
    else:
        assert (run.bad_nodes(), run.active()) == ("", list(HOSTS[:2]))


def test_an_agent_is_killed_and_its_host_is_lost(tmp_path: Path) -> None:
    run = DryRun(tmp_path, "agent", SLOW)
    assert_it_held(run)
    assert run.bad_nodes() == f"{HOSTS[1]}  lost  attempt=1\n"
    assert run.active()[0] == HOSTS[0]
    assert run.active()[1] in HOSTS[2:]


def test_a_killer_that_kills_nothing_is_no_pass(tmp_path: Path) -> None:
    run = DryRun(tmp_path, "rank", {"NODEKILL_TEST_HOST": "127.0.0.9"})
    assert run.code != 0
    assert run.overall() == "FAIL"
    assert run.said("the kill landed") == "FAIL"
    assert run.said("the job finished") == "SKIPPED (no kill)"
    assert_clean(run)


def test_a_job_that_is_not_relaunched_is_no_pass(tmp_path: Path) -> None:
    """The victim is named and replaced, which costs no restart, and then the launcher starts nothing any more."""
    run = DryRun(tmp_path, "rank", {"NODEKILL_TEST_LAUNCHES": "1", "NODEKILL_RETRIES": "0"})
    assert run.code != 0
    assert run.overall() == "FAIL"
    assert run.said("the kill landed") == "PASS"
    assert run.said("the job was relaunched") == "FAIL"
    assert run.said("no healthy host was retired") == "SKIPPED (no relaunch)"
    assert run.said("the job finished") == "SKIPPED (no relaunch)"
    assert_clean(run)


def test_told_to_stop_it_stops_the_job_and_gives_the_space_back(tmp_path: Path) -> None:
    run = DryRun(tmp_path, "rank", {"NODEKILL_PACE": "1000"}, told_to_stop="the victim is")
    assert run.code == 143
    assert run.overall().startswith("FAIL")
    assert_clean(run)


def test_without_room_nothing_is_started(tmp_path: Path) -> None:
    run = DryRun(tmp_path, "rank", {"NODEKILL_SHARD_MIB": str(1 << 30)})
    assert run.code != 0
    assert run.overall().startswith("FAIL")
    assert "active" not in run.output
    assert_clean(run)


@pytest.mark.parametrize(
    ("mode", "hosts", "said"),
    [
        ("reboot", HOSTS, "KILL_MODE=reboot; expected rank, pals, agent or node"),
        ("rank", HOSTS[:3], "3 hosts; expected 4"),
    ],
)
def test_a_wrong_submission_is_told_in_one_line(tmp_path: Path, mode: str, hosts: tuple[str, ...], said: str) -> None:
    run = DryRun(tmp_path, mode, hosts=hosts)
    assert run.code == 2
    assert said in run.output
