"""What sums, verification and asynchrony cost, beside plain DCP in the same run.

    python benchmarks/checkpoint.py                       # 2 ranks, 1 GiB, this disk and /dev/shm
    python benchmarks/checkpoint.py --mib 256 --rounds 3  # shorter

Every round does all variants one after the other, in an order that turns from round to round, so that whatever else
the machine does hits all of them; only ratios within a round are compared, and the median over the rounds is reported.
Plain DCP talks between ranks through torch's object collectives, which need numpy: install it to run this.
The state is an even mix of large and small parameters with their Adam moments, sharded over the ranks (DTensor).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from ezpz_elastic.checkpoint import CheckpointManager

SAVE, SUMMED, STALL, LOAD, VERIFIED = "dcp.save", "save (sums)", "async stall", "dcp.load", "restore (verified)"

# Issue 5: what must hold, as (variant, base, ratio at most).
LIMITS = ((SUMMED, SAVE, 1.05), (VERIFIED, LOAD, 1.10), (STALL, SUMMED, 0.15))


def build(world: int, mib: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A sharded model whose parameters and Adam moments take ``mib`` MiB over all ranks."""
    mesh = init_device_mesh("cpu", (world,))
    width = 1024
    rows = mib * (1 << 20) // (3 * 4 * width)
    heights = [256] * 16 + [1024] * ((rows - 16 * 256) // 1024)
    model = torch.nn.ParameterList(
        [torch.nn.Parameter(distribute_tensor(torch.randn(h, width), mesh, [Shard(0)])) for h in heights]
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for parameter in model:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def timed(work: Callable[[], Any]) -> float:
    """Seconds until the slowest rank is done."""
    dist.barrier()
    began = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - began


def compute(seconds: float) -> None:
    """Stand in for training steps: busy for ``seconds``."""
    until = time.perf_counter() + seconds
    matrix = torch.randn(256, 256)
    while time.perf_counter() < until:
        matrix = torch.nn.functional.normalize(matrix @ matrix)


class Bench:
    """All variants on one file system."""

    def __init__(self, rank: int, world: int, where: Path, mib: int) -> None:
        self.rank = rank
        self.where = where
        self.model, self.optimizer = build(world, mib)
        self.manager = CheckpointManager(where / "ours", keep_last=1)
        self.step = 0
        self.plain = where / "plain"
        self.parts: dict[str, float] = {}

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optim": self.optimizer}

    def plain_save(self) -> float:
        """Like ours: the step before goes when the new one is there, so both need the same fresh room."""
        before, self.plain = self.plain, self.where / f"plain-{self.step}"
        spent = timed(lambda: dcp.save(self.state(), checkpoint_id=self.plain))
        if self.rank == 0 and before != self.plain:
            shutil.rmtree(before, ignore_errors=True)
        return spent

    def summed_save(self) -> float:
        self.step += 1
        spent = timed(lambda: self.manager.save(self.step, self.state()))
        self.manager._trash.wait()
        return spent

    def async_stall(self, training: float) -> float:
        """What a training loop waits for: the call, and what is left of the save when the next one wants to begin."""
        self.step += 1
        handle = None

        def start() -> None:
            nonlocal handle
            handle = self.manager.save_async(self.step, self.state())

        spent = timed(start)
        compute(training)
        spent += timed(self.manager.wait)
        self.manager._trash.wait()
        assert handle is not None
        self.parts = handle.seconds
        return spent

    def plain_load(self) -> float:
        return timed(lambda: dcp.load(self.state(), checkpoint_id=self.plain))

    def verified_load(self) -> float:
        def restore() -> None:
            assert self.manager.restore(self.state()) == self.step

        return timed(restore)

    def round(self, number: int) -> dict[str, float]:
        """Every variant once, the order of each pair turned from round to round."""
        found: dict[str, float] = {}
        pairs: list[list[tuple[str, Callable[[], float]]]] = [
            [(SAVE, self.plain_save), (SUMMED, self.summed_save)],
            [(LOAD, self.plain_load), (VERIFIED, self.verified_load)],
        ]
        for pair in pairs:
            for name, variant in pair if number % 2 == 0 else reversed(pair):
                found[name] = variant()
        # A save interval shorter than a save would measure the disk, not the stall.
        found[STALL] = self.async_stall(training=6 * max(found[SUMMED], found[SAVE]))
        return found


def worker(rank: int, world: int, places: list[str], mib: int, rounds: int, rendezvous: str, outcome: Any) -> None:
    """One rank of the benchmark."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    missed = 0
    for place in places:
        with tempfile.TemporaryDirectory(dir=place) if rank == 0 else _nowhere() as made:
            name = [made]
            dist.broadcast_object_list(name, 0)
            bench = Bench(rank, world, Path(name[0]), mib)
            for number in range(2):  # warms caches, buffers and the allocator; not counted
                bench.round(number)
            found = [bench.round(number) for number in range(rounds)]
            if rank == 0:
                missed += report(place, found, bench.parts)
            bench.manager.close()
            dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        outcome.put(missed)


class _nowhere:
    def __enter__(self) -> str:
        return ""

    def __exit__(self, *_: object) -> None:
        pass


def report(place: str, found: list[dict[str, float]], parts: dict[str, float]) -> int:
    """Print medians and ratios; returns how many limits were missed."""
    print(f"\n{place}: median of {len(found)} rounds")
    for name in (SAVE, SUMMED, STALL, LOAD, VERIFIED):
        values = [one[name] for one in found]
        print(f"  {name:20s} {statistics.median(values):8.3f} s   ({min(values):.3f} … {max(values):.3f})")
    print("  last async save:    ", ", ".join(f"{name} {value:.3f}" for name, value in parts.items()))
    missed = 0
    for variant, base, limit in LIMITS:
        ratio = statistics.median(one[variant] / one[base] for one in found)
        held = ratio <= limit
        missed += not held
        print(f"  {variant} / {base} = {ratio:.3f}   at most {limit:.2f}   {'holds' if held else 'MISSED'}")
    return missed


def main() -> None:
    """Parse arguments, start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="parameters and Adam state, all ranks together, MiB")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--where", action="append", help="directory to write in; may be repeated")
    args = parser.parse_args()
    places = args.where or [str(Path.cwd()), "/dev/shm"]
    outcome = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as scratch:
        rendezvous = str(Path(scratch) / "store")
        mp.spawn(worker, args=(args.ranks, places, args.mib, args.rounds, rendezvous, outcome), nprocs=args.ranks)
    sys.exit(1 if outcome.get() else 0)


if __name__ == "__main__":
    main()
