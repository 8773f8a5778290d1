"""What one agent makes of its workers' ends."""

from __future__ import annotations

import selectors
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.distributed.elastic.agent.server.api import Worker
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from ezpz_elastic.decide.evidence import WorkerExit
from ezpz_elastic.observe import progress
from ezpz_elastic.observe.exits import ExitWatch
from ezpz_elastic.observe.kernel import KernelLog
from ezpz_elastic.observe.oom import OomWatch
from ezpz_elastic.round_logs import WorkerFiles

NAMES = ("stdout", "stderr", "error", "progress", "events", "stacks")


def started(tmp_path: Path, *codes: int) -> tuple[ExitWatch, list[subprocess.Popen[bytes]]]:
    """Workers that end with these codes, each when its standard input is closed."""
    processes = [subprocess.Popen(["sh", "-c", f"read line; exit {code}"], stdin=subprocess.PIPE) for code in codes]
    context: Any = SubprocessContext.__new__(SubprocessContext)
    context.subprocess_handlers = {rank: SimpleNamespace(proc=process) for rank, process in enumerate(processes)}
    workers, files = [], {}
    for rank, process in enumerate(processes):
        worker = Worker(rank, 10 + rank, 10 + rank, 20, 20)
        worker.id = process.pid
        workers.append(worker)
        files[rank] = WorkerFiles(*(tmp_path / f"{name}-{rank}" for name in NAMES))
        progress.create(files[rank].progress)
    return ExitWatch(context, workers, files, "h1", OomWatch(None, KernelLog())), processes


def test_an_end_with_code_0_is_told_beside_the_first_failure_that_may_follow_from_it(tmp_path: Path):
    exits, processes = started(tmp_path, 0, 3, 4)
    told: list[list[tuple[int, int | None]]] = []
    with selectors.DefaultSelector() as selector:
        exits.register(selector)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            ((key, _),) = selector.select(10)
            found = exits.collect(key.data, selector)
            told.append([(item.rank, item.exit_code) for item in found if isinstance(item, WorkerExit)])
    assert told == [[], [(11, 3), (10, 0)], [(12, 4)]]
    assert exits.finished()
    exits.close()


def test_a_failure_is_told_also_when_nothing_that_the_worker_wrote_can_be_read(tmp_path: Path, caplog: Any):
    exits, processes = started(tmp_path, 3)
    for name in ("stdout", "stderr", "error"):
        (tmp_path / f"{name}-0").mkdir()  # reading it is an error whoever asks, as on a file system that is away
    (tmp_path / "progress-0").unlink()
    with selectors.DefaultSelector() as selector:
        exits.register(selector)
        assert processes[0].stdin is not None
        processes[0].stdin.close()
        assert selector.select(10)
        (found,) = exits.collect(0, selector)
    assert isinstance(found, WorkerExit)
    assert (found.exit_code, found.step, found.error, found.stderr_tail) == (3, None, None, ())
    assert "what rank 10 wrote cannot be read" in caplog.text
    exits.close()


def test_an_agent_without_workers_has_finished_and_has_nothing_to_tell():
    exits = ExitWatch(None, [], {}, "h1", OomWatch(None, KernelLog()))
    assert (exits.finished(), exits.failed(), exits.running(), exits.steps()) == (True, False, [], (None, None))
    assert exits.stopped() == []
    exits.close()
