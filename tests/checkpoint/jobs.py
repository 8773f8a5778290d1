"""What each rank does in the tests of several ranks; here, where a fresh process can import it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoint import lives
from checkpoint.training import Training, same
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from ezpz_elastic.checkpoint import CheckpointManager, PerRank, SaveFailed, filesystem, steps
from ezpz_elastic.errors import UsageError


def sharded(world: int, fill: float) -> dict:
    mesh = init_device_mesh("cpu", (world,))
    weight = torch.arange(64 * 1024, dtype=torch.float32).reshape(64, 1024) + fill
    return {"weight": distribute_tensor(weight, mesh, [Shard(0)]), "n": int(fill)}


def save_two(_rank: int, world: int, directory: str) -> None:
    manager = CheckpointManager(directory)
    manager.save(1, sharded(world, 1.0))
    manager.save(2, sharded(world, 2.0))


def restore(_rank: int, world: int, directory: str) -> tuple[int | None, int, bool]:
    state = sharded(world, 0.0)
    step = CheckpointManager(directory).restore(state)
    full = state["weight"].full_tensor()
    expected = torch.arange(64 * 1024, dtype=torch.float32).reshape(64, 1024) + float(step or 0)
    return step, state["n"], bool(torch.equal(full, expected))


def save_until_full(rank: int, world: int, directory: str, full: str) -> tuple[str, list[str]]:
    manager = CheckpointManager(directory)
    state = sharded(world, 1.0)
    manager.save(1, state)
    if rank == 1:  # from now on one rank alone meets a full disk
        redirect("step-2.partial-*/__1_0.distcp", Path(full) / "object")
    try:
        manager.save(2, state)
    except SaveFailed as error:
        text = str(error)
    else:
        text = "no error"
    dist.barrier()
    return text, sorted(path.name for path in Path(directory).glob("step-*"))


def redirect(pattern: str, target: Path) -> None:
    """Let the next file whose path ends like ``pattern`` be created on another disk, as a Lustre layout would."""
    from ezpz_elastic.checkpoint import sums

    original = sums.io.FileIO

    class FileIO(original):  # type: ignore[misc, valid-type]
        def __init__(self, path: Path, mode: str) -> None:
            if path.match(pattern):
                path.symlink_to(target)
            super().__init__(path, mode)

    sums.io.FileIO = FileIO  # type: ignore[misc]


def become_read_only(rank: int, world: int, directory: str, beside: bool) -> dict[str, Any]:
    """The file system takes nothing any more: no shard of rank 1, and not even the coordinator's tidying up."""
    manager = CheckpointManager(directory, preflight=False)
    manager.save(1, sharded(world, 1.0))
    refused = []

    def refuse(*arguments: Any) -> None:
        refused.append(arguments)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    if rank == 1:
        filesystem.StripedWriter._write_once = refuse  # type: ignore[assignment, method-assign]
    else:
        steps.rename = refuse
    try:
        if beside:
            manager.save_async(2, sharded(world, 2.0))
            manager.wait()
        else:
            manager.save(2, sharded(world, 2.0))
    except SaveFailed as error:
        text = str(error)
    else:
        text = "no error"
    dist.barrier()
    return {"text": text, "refused": len(refused)}


def replicated(rank: int, world: int, directory: str) -> bool:
    training = Training(width=256)
    training.step()
    for tensor in training.tensors().values():
        dist.broadcast(tensor, 0)
    manager = CheckpointManager(directory)
    manager.save(5, training.state())
    fresh = Training(seed=rank + world, width=256)
    state = fresh.state()
    return manager.restore(state) == 5 and same(fresh.tensors(), training.tensors()) and state["data"] == training.plain


def full_targets(rank: int, world: int, root: str, environ: dict[str, str]) -> dict[str, Any]:
    """Two saves on a file system with full targets; what became of them."""
    os.environ.update(environ)
    training = Training(width=256)
    training.step()
    manager = CheckpointManager(Path(root) / "ckpts")
    errors = []
    for step in (1, 2):
        try:
            manager.save(step, training.state())
        except SaveFailed as error:
            errors.append(str(error))
    fresh = Training(seed=rank + world, width=256)
    restored = None if errors else manager.restore(fresh.state())
    manager.close()
    return {"errors": errors, "restored": restored, "same": same(fresh.tensors(), training.tensors())}


def die_in_a_save(rank: int, world: int, directory: str, point: int) -> str:
    """Rank 1 dies of SIGKILL before its ``point``-th fsync of the second save; what rank 0 hears of it."""
    manager = CheckpointManager(directory)
    manager.save(1, sharded(world, 1.0))
    if rank == 1:
        lives.die_before("fsync", point)
    try:
        manager.save(2, sharded(world, 2.0))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


def fail_beside(rank: int, world: int, directory: str, full: str) -> dict[str, Any]:
    """Asynchronous saves of which the second meets a full disk on rank 1."""
    manager = CheckpointManager(directory)
    manager.save_async(1, sharded(world, 1.0))
    if rank == 1:
        redirect("step-2.partial-*/__1_0.distcp", Path(full) / "object")
    manager.save_async(2, sharded(world, 2.0))  # waits for the first and does not know of its own trouble yet
    try:
        manager.save_async(3, sharded(world, 3.0))
    except SaveFailed as error:
        text = str(error)
    else:
        text = "no error"
    manager.save_async(4, sharded(world, 4.0))  # the trouble is told once; the next save is a new one
    manager.wait()
    manager.close()
    dist.barrier()
    return {"text": text, "steps": sorted(path.name for path in Path(directory).glob("step-*"))}


def train_beside(rank: int, world: int, directory: str) -> dict[str, Any]:
    """Collectives of the training while a save runs; in which threads the group was used."""
    threads: set[str] = set()
    for name in ("gather", "scatter", "all_gather", "broadcast", "barrier", "all_reduce", "gather_object"):
        real = getattr(dist, name)

        def seen(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
            threads.add(threading.current_thread().name)
            return _real(*args, **kwargs)

        setattr(dist, name, seen)
    manager = CheckpointManager(directory)
    weights = torch.full((1 << 20,), float(rank))
    handle = manager.save_async(1, {f"weights.{rank}": weights} if world > 1 else {})
    weights.fill_(-1.0)  # the save has its own copy
    total = torch.ones(1)
    rounds, running = 0, 1.0
    while running or rounds < 20:  # decided by a collective, so every rank leaves in the same round
        dist.all_reduce(total)
        total /= world
        rounds += 1
        going = torch.tensor([0.0 if handle.done() else 1.0])
        dist.all_reduce(going)
        running = going.item()
    manager.wait()
    back = {f"weights.{rank}": torch.zeros(1 << 20)}
    manager.restore(back)
    return {
        "threads": threads,
        "total": total.item(),
        "same": bool(torch.equal(back[f"weights.{rank}"], torch.full((1 << 20,), float(rank)))),
        "seconds": handle.seconds,
    }


def save_own(rank: int, _world: int, directory: str) -> None:
    """Every rank saves something of its own."""
    state = {"position": PerRank({rank: rank * 10, "seen": {}}), "noise": PerRank(torch.full((4,), float(rank)))}
    CheckpointManager(directory).save(1, state)


def restore_own(_rank: int, _world: int, directory: str) -> tuple[Any, list[float]]:
    """What a rank gets back of its own."""
    noise = torch.zeros(4)
    state = {"position": PerRank(None), "noise": PerRank(noise)}
    CheckpointManager(directory).restore(state)
    return state["position"].value, noise.tolist()


def restore_unseen(rank: int, _world: int, directory: str) -> str:
    """Rank 1 has another file system under the same name, as with a directory that is local to each host."""
    if rank == 1:
        real = Path.is_dir
        Path.is_dir = lambda path: "/step-" not in str(path) and real(path)  # type: ignore[method-assign]
    try:
        CheckpointManager(directory).restore({"n": 0})
    except UsageError as error:
        return error.line()
    return "restored"
