"""Saves beside the training."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint import jobs
from checkpoint.ranks import run_ranks
from checkpoint.training import Training, same, shards

from ezpz_elastic.checkpoint import CheckpointManager, SaveFailed


def test_training_may_go_on_as_soon_as_the_call_returns(tmp_path: Path) -> None:
    training, manager = Training(width=256), CheckpointManager(tmp_path)
    training.step()
    before = training.tensors()
    handle = manager.save_async(1, training.state(), meta={"tokens": 4})
    for _ in range(3):
        training.step()
    assert handle.result() == tmp_path / "step-1"
    fresh = Training(seed=1, width=256)
    assert manager.restore(fresh.state()) == 1
    assert same(before, fresh.tensors())


def test_stage_drain_and_total_are_told_apart(tmp_path: Path) -> None:
    training, manager = Training(), CheckpointManager(tmp_path)
    manager.save_async(1, training.state())
    second = manager.save_async(2, training.state())
    manager.wait()
    assert {"drain", "plan", "stage", "total"} <= second.seconds.keys()
    stalled = sum(second.seconds[part] for part in ("drain", "plan", "stage"))
    assert 0 < stalled <= second.seconds["total"]


def test_host_buffers_are_used_again(tmp_path: Path) -> None:
    training, manager = Training(), CheckpointManager(tmp_path)
    manager.save_async(1, training.state())
    manager.wait()
    buffers = {index: buffer.data_ptr() for index, buffer in manager._buffers._buffers.items()}
    assert buffers
    manager.save_async(2, training.state())
    manager.wait()
    assert {index: buffer.data_ptr() for index, buffer in manager._buffers._buffers.items()} == buffers


def test_a_failure_beside_the_training_is_told_at_the_next_call(
    tmp_path: Path, small_disk: Callable[[str, int], Path]
) -> None:
    disk = small_disk("disk", 1 << 20)
    training, manager = Training(width=128), CheckpointManager(disk / "ckpts", preflight=False)
    training.step()
    manager.save(1, training.state())
    (disk / "filler").write_bytes(bytes(700_000))
    manager.save_async(2, training.state())
    with pytest.raises(SaveFailed, match="No space left on device"):
        manager.save(3, training.state())
    assert sorted(path.name for path in (disk / "ckpts").glob("step-*")) == ["step-1"]


def test_a_failure_of_one_rank_is_told_at_the_next_call_on_every_rank(
    tmp_path: Path, small_disk: Callable[[str, int], Path]
) -> None:
    full = small_disk("full", 64 * 1024)
    answers = run_ranks(2, jobs.fail_beside, str(tmp_path / "ckpts"), str(full))
    assert answers[0] == answers[1]
    assert "[Errno 28] No space left on device" in answers[0]["text"]
    assert "rank 1 writing" in answers[0]["text"]
    assert answers[0]["steps"] == ["step-1", "step-4"]


def test_the_training_group_is_used_by_the_training_thread_alone(tmp_path: Path) -> None:
    for answer in run_ranks(2, jobs.train_beside, str(tmp_path)):
        assert answer["threads"] == {"MainThread"}
        assert (answer["total"], answer["same"]) == (1.0, True)


def test_a_state_that_changes_its_shape_is_planned_anew(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    for step, size in ((1, 10), (2, 10), (3, 20), (4, 5)):
        manager.save(step, {"weights": torch.full((size,), float(step)), "sizes": list(range(size))})
        state = {"weights": torch.zeros(size), "sizes": None}
        assert manager.restore(state) == step
        assert torch.equal(state["weights"], torch.full((size,), float(step)))
        assert state["sizes"] == list(range(size))


ENDS_WITHOUT_WAITING = """
import atexit, sys, threading, torch
from pathlib import Path
from ezpz_elastic.checkpoint import CheckpointManager
from ezpz_elastic.checkpoint.saver import Save

directory, threads_end = Path(sys.argv[1]), sys.argv[2] == "3.12"
ending, room, start = threading.Event(), Save._agree_on_room, threading.Thread.start

def held(save, peers):
    ending.wait()
    room(save, peers)

def end():
    if threads_end:
        threading.Thread.start = refuse
    ending.set()

def refuse(thread):
    print("refused", thread.name.split()[0])
    raise RuntimeError("can't create new thread at interpreter shutdown")

manager = CheckpointManager(directory, keep_last=1, threads=2)
state = {"a": torch.ones(300), "b": torch.ones(300)}
manager.save(1, state)
Save._agree_on_room = held
manager.save_async(2, state)
atexit.register(end)  # runs before the handler of the save, which was registered first
"""


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_a_script_that_ends_without_waiting_has_its_last_save(tmp_path: Path, python: str) -> None:
    """``3.12``: an interpreter that is ending starts no thread at all."""
    command = [sys.executable, "-c", ENDS_WITHOUT_WAITING, str(tmp_path), python]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert "waiting for step 2 to become durable" in done.stderr
    assert ("refused checkpoint" in done.stdout, "refused remove" in done.stdout) == (python == "3.12",) * 2
    assert CheckpointManager(tmp_path).restore({"a": torch.zeros(300), "b": torch.zeros(300)}) == 2, done.stderr
    assert len(shards(tmp_path / "step-2")) == 2
    assert done.returncode == 0
