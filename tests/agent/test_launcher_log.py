"""The launcher's own log as a witness: what it says since the round began, and nothing that workers say better."""

from __future__ import annotations

from pathlib import Path

import pytest

from ezpz_elastic.decide.classify import classify
from ezpz_elastic.decide.context import Context
from ezpz_elastic.decide.evidence import AgentSignalled
from ezpz_elastic.decide.verdict import VerdictKind
from ezpz_elastic.observe import launcher as module
from ezpz_elastic.observe.launcher import LauncherLog

DEAD = "x1922c7s6b0n0.hsn.cm.sunspot.alcf.anl.gov: shepherd died from signal 9\n"
LIMIT = "slurmstepd: error: *** STEP 12.0 ON nid001 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"


def say(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_what_was_said_before_the_round_is_about_another_one(tmp_path):
    log = tmp_path / "launcher.log"
    say(log, DEAD)
    told = LauncherLog(log)
    told.begin()
    assert told.news() == ()
    say(log, DEAD.replace("s6", "s5"))
    assert [match.host for match in told.news()] == ["x1922c7s5b0n0.hsn.cm.sunspot.alcf.anl.gov"]
    assert told.news() == (), "nothing is told twice"


def test_workers_output_that_passes_through_it_and_our_own_lines_are_left_to_the_agents(tmp_path):
    log = tmp_path / "launcher.log"
    told = LauncherLog(log)
    told.begin()
    say(log, "RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    say(log, "OSError: [Errno 28] No space left on device\n")
    say(log, f"[ezpz] round 1: verdict bad_node_known (host_lost): {DEAD}")
    assert told.news() == ()


def test_the_launchers_ranks_are_agents_and_no_ranks_of_the_job(tmp_path):
    log = tmp_path / "launcher.log"
    told = LauncherLog(log)
    told.begin()
    say(log, "x1922c7s6b0n0: rank 3 died from signal 9\n")
    (match,) = told.news()
    assert (match.host, match.rank) == ("x1922c7s6b0n0", None)


def test_a_log_that_is_missing_or_begins_anew_or_is_huge_is_no_trouble(tmp_path, monkeypatch):
    log = tmp_path / "launcher.log"
    told = LauncherLog(log)
    told.begin()
    assert told.news() == LauncherLog(None).news() == ()
    say(log, "x" * 100 + "\n")
    told.begin()
    log.write_text(DEAD)
    assert len(told.news()) == 1
    monkeypatch.setattr(module, "LOG_BYTES", 200)
    told.begin()
    say(log, DEAD + "step=1 loss=2\n" * 100 + DEAD)
    assert len(told.news()) == 1, "only its end is read"


@pytest.mark.parametrize("signum", [2, 15])
def test_the_schedulers_word_in_it_says_why_all_agents_were_told_to_stop(tmp_path, signum):
    log = tmp_path / "launcher.log"
    told = LauncherLog(log)
    told.begin()
    say(log, LIMIT)
    told_to_stop = AgentSignalled("nid001", signum)
    context = Context(hosts=("nid001", "nid002"), live=True)
    assert classify([told_to_stop], context).kind is VerdictKind.INTERRUPTED
    assert classify([told_to_stop, *told.news()], context).kind is VerdictKind.WALLTIME
