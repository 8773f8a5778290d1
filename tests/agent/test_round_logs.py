"""The files of a round, and what the console shows of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from ezpz_elastic.console import Console
from ezpz_elastic.round_logs import RoundLogs


def test_of_an_earlier_run_in_the_same_directory_the_console_shows_nothing(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
):
    console, before = Console(), tmp_path / "run" / "rounds" / "1" / "3"
    before.mkdir(parents=True)
    for name in ("stdout.log", "stderr.log", "error.json", "events.jsonl"):
        (before / name).write_text("a line of the earlier run\n" * 9)
    logs = RoundLogs(DefaultLogsSpecs(), tmp_path / "run", tmp_path, "tag", console)
    logs.reify({0: {"RANK": "3", "ROLE_NAME": "default"}})
    console.copy()  # as its thread does ten times a second, whether the worker is there or not
    assert list(before.iterdir()) == []
    for number in range(3):
        with logs.files[0].stdout.open("a") as file:
            print(f"step={number}", file=file)
    console.close()
    shown = capsysbinary.readouterr()
    assert (shown.out, shown.err) == (b"step=0\nstep=1\nstep=2\n", b"")
