"""The counters that a worker writes and its agent reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ezpz_elastic.observe import progress

WORKER = """
from ezpz_elastic import progress
from ezpz_elastic.observe.progress import durable
for step in range(5):
    progress(step)
durable(3)
"""


def test_the_agent_reads_what_the_worker_told(tmp_path: Path):
    path = tmp_path / "progress"
    progress.create(path)
    assert progress.read(path) == progress.Progress(None, None, 0)
    subprocess.run([sys.executable, "-c", WORKER], env={progress.PROGRESS_FILE: str(path)}, check=True)
    assert progress.read(path) == progress.Progress(step=4, durable_step=3, calls=5)


def test_without_an_agent_it_is_a_no_op():
    subprocess.run([sys.executable, "-c", WORKER], env={}, check=True)


def test_a_worker_that_cannot_reach_its_file_trains_on_and_says_so(tmp_path: Path):
    (tmp_path / "short").write_bytes(b"")
    for path in (tmp_path / "none" / "progress", tmp_path / "short", tmp_path):
        environment = {progress.PROGRESS_FILE: str(path)}
        done = subprocess.run(
            [sys.executable, "-c", WORKER], env=environment, check=True, capture_output=True, text=True
        )
        assert done.stderr.count("the agent is not told of steps") == 1


def test_the_agent_makes_its_directory_again_if_somebody_has_cleaned_up(tmp_path: Path):
    progress.create(tmp_path / "cleaned" / "progress")
    assert progress.read(tmp_path / "cleaned" / "progress").step is None


def test_a_missing_or_short_file_tells_nothing(tmp_path: Path):
    assert progress.read(tmp_path / "none") == progress.Progress(None, None, 0)
    (tmp_path / "short").write_bytes(b"\0" * 10)
    assert progress.read(tmp_path / "short") == progress.Progress(None, None, 0)
