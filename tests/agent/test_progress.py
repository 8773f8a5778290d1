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


def test_a_missing_or_short_file_tells_nothing(tmp_path: Path):
    assert progress.read(tmp_path / "none") == progress.Progress(None, None, 0)
    (tmp_path / "short").write_bytes(b"\0" * 10)
    assert progress.read(tmp_path / "short") == progress.Progress(None, None, 0)
