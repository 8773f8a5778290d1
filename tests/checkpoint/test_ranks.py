"""Several ranks, one directory: one answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from training import Training, flip_byte, same, shards

from ezpz_elastic.checkpoint import CheckpointManager, SaveFailed


def _sharded(world: int, fill: float) -> dict:
    mesh = init_device_mesh("cpu", (world,))
    weight = torch.arange(64 * 1024, dtype=torch.float32).reshape(64, 1024) + fill
    return {"weight": distribute_tensor(weight, mesh, [Shard(0)]), "n": int(fill)}


def _save_two(_rank: int, world: int, directory: str) -> None:
    manager = CheckpointManager(directory)
    manager.save(1, _sharded(world, 1.0))
    manager.save(2, _sharded(world, 2.0))


def _restore(_rank: int, world: int, directory: str) -> tuple[int | None, int, bool]:
    state = _sharded(world, 0.0)
    step = CheckpointManager(directory).restore(state)
    full = state["weight"].full_tensor()
    expected = torch.arange(64 * 1024, dtype=torch.float32).reshape(64, 1024) + float(step or 0)
    return step, state["n"], bool(torch.equal(full, expected))


def test_a_shard_that_only_one_rank_reads_and_finds_damaged_moves_every_rank_to_the_step_before(
    tmp_path: Path,
) -> None:
    run_ranks(2, _save_two, str(tmp_path))
    flip_byte(shards(tmp_path / "step-2")[1], 50_000)
    assert run_ranks(2, _restore, str(tmp_path)) == [(1, 1, True), (1, 1, True)]
    reason = (tmp_path / "step-2.corrupt/reason.txt").read_text()
    assert "__1_0.distcp" in reason
    assert "found by rank 1" in reason


def test_a_step_is_restored_on_another_number_of_ranks(tmp_path: Path) -> None:
    run_ranks(2, _save_two, str(tmp_path))
    assert run_ranks(3, _restore, str(tmp_path)) == [(2, 2, True)] * 3
    assert run_ranks(1, _restore, str(tmp_path)) == [(2, 2, True)]


def _save_until_full(rank: int, world: int, directory: str, full: str) -> tuple[str, list[str]]:
    manager = CheckpointManager(directory)
    state = _sharded(world, 1.0)
    manager.save(1, state)
    if rank == 1:  # from now on one rank alone meets a full disk
        link = Path(directory) / "step-2.partial" / "__1_0.distcp"
        _redirect(link, Path(full) / "object")
    try:
        manager.save(2, state)
    except SaveFailed as error:
        text = str(error)
    else:
        text = "no error"
    dist.barrier()
    return text, sorted(path.name for path in Path(directory).glob("step-*"))


def _redirect(link: Path, target: Path) -> None:
    """Let the next file called ``link`` be created on another disk, as a Lustre layout would."""
    from ezpz_elastic.checkpoint import sums

    original = sums.io.FileIO

    class FileIO(original):  # type: ignore[misc, valid-type]
        def __init__(self, path: Path, mode: str) -> None:
            if path == link:
                path.symlink_to(target)
            super().__init__(path, mode)

    sums.io.FileIO = FileIO  # type: ignore[misc]


def test_one_ranks_full_disk_is_the_same_error_on_every_rank(
    tmp_path: Path, small_disk: Callable[[str, int], Path]
) -> None:
    full = small_disk("full", 64 * 1024)
    answers = run_ranks(2, _save_until_full, str(tmp_path / "ckpts"), str(full))
    texts = {text for text, _ in answers}
    assert len(texts) == 1, texts
    (text,) = texts
    assert "[Errno 28] No space left on device" in text
    assert "rank 1 writing" in text
    assert "rank 0" not in text
    assert "torch/distributed/checkpoint/filesystem.py" in text
    assert [names for _, names in answers] == [["step-1"], ["step-1"]]


def _replicated(rank: int, world: int, directory: str) -> bool:
    training = Training(width=256)
    training.step()
    for tensor in training.tensors().values():
        dist.broadcast(tensor, 0)
    manager = CheckpointManager(directory)
    manager.save(5, training.state())
    fresh = Training(seed=rank + world, width=256)
    state = fresh.state()
    return manager.restore(state) == 5 and same(fresh.tensors(), training.tensors()) and state["data"] == training.plain


def test_replicated_state_is_written_once_and_comes_back_on_every_rank(tmp_path: Path) -> None:
    assert run_ranks(2, _replicated, str(tmp_path)) == [True, True]
    training = Training(width=256)
    training.step()
    state = sum(tensor.numel() * tensor.element_size() for tensor in training.tensors().values())
    assert len(shards(tmp_path / "step-5")) == 2
    assert sum(path.stat().st_size for path in shards(tmp_path / "step-5")) < 1.2 * state
