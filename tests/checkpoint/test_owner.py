"""One writer per directory, and rounds that are over."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from checkpoint import holders
from checkpoint.ranks import context

from ezpz_elastic.checkpoint import CheckpointManager, Superseded
from ezpz_elastic.checkpoint.owner import Owner
from ezpz_elastic.errors import UsageError


def holder(directory: Path, **environ: str) -> tuple[object, Connection]:
    """Another process that owns ``directory``."""
    mine, theirs = context.Pipe()
    process = context.Process(target=holders.hold, args=(theirs, str(directory), environ))
    process.start()
    theirs.close()  # else its death would not end the wait for its word
    assert mine.recv() == "held"
    return process, mine


def test_a_second_job_is_told_who_writes_here(tmp_path: Path) -> None:
    process, line = holder(tmp_path, TORCHELASTIC_RUN_ID="alpha")
    with pytest.raises(UsageError, match=rf"another job \(run alpha, pid {process.pid} on") as error:
        Owner(tmp_path, environ={"TORCHELASTIC_RUN_ID": "beta"}, patience=0.2).claim()
    assert "\n" not in str(error.value)
    line.send("end")
    process.join()


def test_two_jobs_with_the_same_run_id_and_round_are_two_jobs(tmp_path: Path) -> None:
    environ = {"TORCHELASTIC_RUN_ID": "none", "EZPZ_ROUND": "0"}
    process, line = holder(tmp_path, **environ)
    with pytest.raises(UsageError):
        Owner(tmp_path, environ=environ, patience=0.2).claim()
    line.send("end")
    process.join()


def test_a_killed_writer_makes_room_at_once(tmp_path: Path) -> None:
    process, _ = holder(tmp_path, TORCHELASTIC_RUN_ID="alpha")
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert Owner(tmp_path, environ={"TORCHELASTIC_RUN_ID": "beta"}, patience=0.0).claim()


def test_a_newer_round_takes_over_and_the_old_one_commits_nothing(tmp_path: Path) -> None:
    process, line = holder(tmp_path, TORCHELASTIC_RUN_ID="alpha", EZPZ_ROUND="3")
    line.send("save 1")
    assert line.recv() == "saved"
    manager = CheckpointManager(tmp_path, environ={"TORCHELASTIC_RUN_ID": "alpha", "EZPZ_ROUND": "4"})
    manager.save(2, {"n": 2})
    line.send("save 3")
    assert "Superseded" in line.recv()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-1", "step-2"]
    line.send("end")
    process.join()
    manager.save(4, {"n": 4})


def test_an_older_round_that_comes_late_is_refused(tmp_path: Path) -> None:
    process, line = holder(tmp_path, TORCHELASTIC_RUN_ID="alpha", EZPZ_ROUND="4")
    late = CheckpointManager(tmp_path, environ={"TORCHELASTIC_RUN_ID": "alpha", "EZPZ_ROUND": "3"})
    with pytest.raises(Superseded):
        late.save(1, {"n": 1})
    assert not list(tmp_path.glob("step-*"))
    line.send("end")
    process.join()


def test_a_round_that_ends_while_its_save_is_written_is_not_committed(tmp_path: Path) -> None:
    answers = iter([True, False])
    manager = CheckpointManager(tmp_path, fence=lambda: next(answers))
    with pytest.raises(Superseded):
        manager.save(1, {"n": 1})
    assert next(answers, "asked twice") == "asked twice"
    assert not list(tmp_path.glob("step-*"))


def test_two_managers_of_one_process_share_the_directory(tmp_path: Path) -> None:
    first, second = CheckpointManager(tmp_path), CheckpointManager(tmp_path)
    first.save(1, {"n": 1})
    second.save(2, {"n": 2})
    first.save(3, {"n": 3})
    state = {"n": 0}
    assert second.restore(state) == 3
    assert state["n"] == 3
