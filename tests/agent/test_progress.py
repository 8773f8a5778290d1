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


SAVER = """
import os, sys
from ezpz_elastic.checkpoint import facts

@facts.busy()
def save():
    with facts.busy():
        pass
    os.write(1, b".")
    sys.stdin.readline()

save()
os.write(1, b".")
sys.stdin.readline()
"""


def test_the_agent_sees_that_a_worker_waits_for_a_checkpoint(tmp_path: Path):
    path = tmp_path / "progress"
    progress.create(path)
    with subprocess.Popen(
        [sys.executable, "-c", SAVER],
        env={progress.PROGRESS_FILE: str(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        told = []
        for _ in range(2):
            worker.stdout.read(1)
            told.append(progress.read(path).busy)
            worker.stdin.write(b"\n")
    assert worker.returncode == 0
    assert told == [True, False]


def test_without_an_agent_it_is_a_no_op():
    subprocess.run([sys.executable, "-c", WORKER], env={}, check=True)
    subprocess.run([sys.executable, "-c", SAVER], env={}, check=True, stdin=subprocess.DEVNULL)


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
