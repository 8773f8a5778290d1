"""One writer per directory, and rounds that are over."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from checkpoint import holders
from checkpoint.ranks import context

from ezpz_elastic.checkpoint import CheckpointManager, Superseded
from ezpz_elastic.checkpoint.filesystem import StripedWriter
from ezpz_elastic.checkpoint.owner import Owner, Writer
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
    environ = {"TORCHELASTIC_RUN_ID": "alpha", "EZPZ_ROUND": "0"}
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


@pytest.mark.parametrize(("where", "ends"), [("writing", "SaveFailed"), ("committing", "Superseded")])
def test_a_process_of_an_older_round_that_wakes_up_amid_a_newer_ones_save_does_it_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, ends: str
) -> None:
    line, theirs = context.Pipe()
    environ = {"TORCHELASTIC_RUN_ID": "alpha", "EZPZ_ROUND": "1"}
    process = context.Process(target=holders.stall, args=(theirs, str(tmp_path), environ, where))
    process.start()
    theirs.close()
    assert line.recv() == "hangs"
    ended: list[str] = []
    write = StripedWriter._write_once

    def written(*args: Any) -> Any:
        results = write(*args)
        line.send("go on")
        ended.append(line.recv())
        return results

    monkeypatch.setattr(StripedWriter, "_write_once", written)
    manager = CheckpointManager(tmp_path, environ=environ | {"EZPZ_ROUND": "2"})
    manager.save(5, {"n": 2})
    process.join()
    assert ended == [ends]
    state = {"n": 0}
    assert manager.restore(state) == 5
    assert state["n"] == 2
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-5"]


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


def written_by(directory: Path, writer: Writer, *, before_us: bool = False) -> None:
    """Leave ``writer``'s name in ``directory``, now or long before this process began."""
    path = directory / ".writer"
    path.write_bytes(msgspec.json.encode(writer))
    if before_us:
        os.utime(path, (0, psutil.Process().create_time() - 3600))


@pytest.fixture
def lock_of_a_dead_client(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record locks answer as they do while a file system has not yet given up on a host that died; the calls."""
    asked: list[int] = []

    def held(fd: int, _how: int) -> None:
        asked.append(fd)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(fcntl, "lockf", held)
    return asked


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A file system without record locks; the calls."""
    asked: list[int] = []

    def unknown(fd: int, _how: int) -> None:
        asked.append(fd)
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "lockf", unknown)
    return asked


def attempt(number: int, **more: str) -> dict[str, str]:
    """What a retry loop and a launcher tell a worker."""
    return {"EZPZ_RUN_DIR": "/runs/retry-7", "EZPZ_ATTEMPT": str(number), **more}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (attempt(1), attempt(2)),
        (attempt(1, TORCHELASTIC_RUN_ID="none"), attempt(2, TORCHELASTIC_RUN_ID="none")),
        (
            attempt(1, TORCHELASTIC_RUN_ID="6021", TORCHELASTIC_RESTART_COUNT="3"),
            attempt(2, TORCHELASTIC_RUN_ID="417", TORCHELASTIC_RESTART_COUNT="0"),
        ),
        (
            attempt(1, TORCHELASTIC_RUN_ID="alpha", EZPZ_ROUND="5", EZPZ_RUN_DIR="/runs/one"),
            attempt(2, TORCHELASTIC_RUN_ID="alpha", EZPZ_ROUND="0", EZPZ_RUN_DIR="/runs/two"),
        ),
    ],
    ids=["a launcher", "torchrun without an id", "torchrun with an id for each start", "agents"],
)
def test_the_next_attempt_of_a_retry_loop_takes_over_from_a_host_that_died_with_the_lock(
    tmp_path: Path, lock_of_a_dead_client: list[int], before: dict[str, str], after: dict[str, str]
) -> None:
    written_by(tmp_path, msgspec.structs.replace(Owner(tmp_path, environ=before)._me, token="dead:1:1", host="dead"))
    assert Owner(tmp_path, environ=after, patience=0.0).claim()
    assert lock_of_a_dead_client


def test_an_attempt_that_is_over_is_refused(tmp_path: Path, lock_of_a_dead_client: list[int]) -> None:
    newer = Owner(tmp_path, environ=attempt(2, TORCHELASTIC_RESTART_COUNT="0"))._me
    written_by(tmp_path, msgspec.structs.replace(newer, token="other:1:1", host="other"))
    with pytest.raises(Superseded, match=r"round 3 of attempt 1 is over: .* belongs to round 0 of attempt 2"):
        Owner(tmp_path, environ=attempt(1, TORCHELASTIC_RESTART_COUNT="3"), patience=0.0).claim()
    assert lock_of_a_dead_client


def test_two_jobs_that_torchrun_gave_no_id_are_two_jobs(tmp_path: Path, lock_of_a_dead_client: list[int]) -> None:
    unnamed = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}
    written_by(tmp_path, Writer(token="other:1:1", host="other", pid=1, run_id="none", round=0))
    with pytest.raises(UsageError, match="another job"):
        Owner(tmp_path, environ=unnamed, patience=0.0).claim()
    assert lock_of_a_dead_client


@pytest.mark.parametrize("run_id", ["none", "alpha"])
def test_without_locks_a_job_that_is_submitted_again_is_not_refused_for_what_a_former_one_left(
    tmp_path: Path, no_locks: list[int], run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    former = Writer(token="other:1:1", host="other", pid=1, run_id=run_id, round=2)
    written_by(tmp_path, former, before_us=True)
    again = Owner(tmp_path, environ={"TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": "0"})
    assert again.claim()
    assert no_locks
    assert "cannot tell whether pid 1 on other still writes here" in caplog.text
    again.check()


def test_without_locks_a_round_that_is_over_is_still_refused(tmp_path: Path, no_locks: list[int]) -> None:
    written_by(tmp_path, Writer(token="other:1:1", host="other", pid=1, run_id="alpha", round=2))
    with pytest.raises(Superseded, match="round 1 is over"):
        Owner(tmp_path, environ={"TORCHELASTIC_RUN_ID": "alpha", "EZPZ_ROUND": "1"}).claim()
    assert no_locks
