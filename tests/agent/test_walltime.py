"""When workers are told that the allocation ends, and when they are stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ezpz_elastic.decide.classify import classify
from ezpz_elastic.decide.context import Context
from ezpz_elastic.decide.verdict import VerdictKind
from ezpz_elastic.observe import progress
from ezpz_elastic.walltime import Walltime, known_deadline


class Life:
    """One worker under a clock that the test sets."""

    def __init__(self, tmp_path: Path, deadline: float | None = 1000.0) -> None:
        self.now, self.file = 0.0, tmp_path / "progress"
        progress.create(self.file)
        self.walltime = Walltime(deadline, 100.0, False, lambda: self.now)
        self.walltime.begin([self.file])

    def over(self, now: float, running: tuple[int, ...] = (1,)) -> bool:
        self.now = now
        return self.walltime.over(running)

    def worker(self, code: str) -> str:
        code = f"from ezpz_elastic.observe.progress import durable, progress\n{code}"
        env = {progress.PROGRESS_FILE: str(self.file)}
        return subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout


def test_workers_are_told_at_the_margin_and_stopped_once_they_have_saved(tmp_path):
    life = Life(tmp_path)
    life.worker("durable(3)")
    assert not life.over(899.0)
    assert life.worker("print(progress.should_save())") == "False\n"
    assert not life.over(900.0)
    assert life.walltime.told
    assert life.worker("print(progress.should_save())") == "True\n"
    assert not life.over(910.0)
    life.worker("durable(7)")
    assert life.over(911.0)


def test_a_worker_that_cannot_be_told_is_stopped_in_time_all_the_same(tmp_path):
    life = Life(tmp_path)
    life.file.unlink()
    assert [life.over(now) for now in (900.0, 975.0)] == [False, True]


def test_workers_that_do_not_save_are_stopped_with_time_to_spare(tmp_path):
    life = Life(tmp_path)
    assert [life.over(now) for now in (900.0, 974.0, 975.0)] == [False, False, True]


def test_workers_that_end_when_they_are_told_to_save_have_not_finished(tmp_path):
    life = Life(tmp_path)
    assert not life.over(900.0, ())
    assert life.over(901.0, ())


def test_without_a_deadline_nobody_is_told(tmp_path):
    life = Life(tmp_path, None)
    assert not life.over(1e12)
    assert not life.walltime.told


def test_a_new_life_inside_the_margin_is_told_again(tmp_path):
    life = Life(tmp_path)
    assert not life.over(950.0)
    progress.create(life.file)
    life.walltime.begin([life.file])
    assert not life.over(951.0)
    assert life.worker("print(progress.should_save())") == "True\n"


def test_the_report_is_classified_as_walltime(tmp_path):
    life = Life(tmp_path)
    life.over(900.0)
    verdict = classify([life.walltime.evidence("h0")], Context(hosts=("h0", "h1"), live=True))
    assert verdict.kind is VerdictKind.WALLTIME


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (5.0, {"SLURM_JOB_END_TIME": "7"}, 5.0),
        (None, {"SLURM_JOB_END_TIME": "1795959292"}, 1795959292.0),
        (None, {"SLURM_JOB_END_TIME": "soon"}, None),
        (None, {}, None),
    ],
)
def test_who_knows_the_deadline(given, environment, expected):
    assert known_deadline(given, environment) == expected
