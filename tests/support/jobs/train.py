"""A small real training job: DDP over gloo, a checkpoint every few steps, and a death on cue.

``--die STEP:RANK:HOW[:ROUND]`` may be repeated; ``HOW`` is ``kill``, ``raise``, ``exit3`` or ``segv``. ``--die random``
kills the rank 0 worker at a random step of every round until ``--deaths`` rounds have died.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ezpz_elastic import progress
from ezpz_elastic.checkpoint import CheckpointManager


def die(how: str) -> None:
    sys.stdout.flush()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "exit3":
        os._exit(3)
    raise ValueError("told to fail")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--interval", type=int, default=5)
    parser.add_argument("--seconds-per-step", type=float, default=0.0)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--die", action="append", default=[])
    parser.add_argument("--deaths", type=int, default=0)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank, round_number = dist.get_rank(), int(os.environ["EZPZ_ROUND"])
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.Adam(model.parameters())
    manager = CheckpointManager(arguments.checkpoints, keep_last=2)
    resumed = manager.restore({"model": model, "optim": optimizer})
    first = 0 if resumed is None else resumed + 1
    print(f"rank {rank} of {dist.get_world_size()} round {round_number} resumed {resumed}", flush=True)
    randomly = random.Random(round_number).randint(first + arguments.interval, first + 2 * arguments.interval)
    for step in range(first, arguments.steps):
        loss = model(torch.ones(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress(step)
        if rank == 0:
            print(f"step={step} loss={loss.item():.6f}", flush=True)
        for death in arguments.die:
            if death == "random":
                if rank == 0 and round_number <= arguments.deaths and step == randomly:
                    die("kill")
                continue
            when, who, how, *rounds = death.split(":")
            if (int(when), int(who)) == (step, rank) and int(rounds[0] if rounds else 1) == round_number:
                die(how)
        if step % arguments.interval == arguments.interval - 1:
            manager.save(step, {"model": model, "optim": optimizer})
        time.sleep(arguments.seconds_per_step)
    # DDP goes before the group: torch can wait for ever in the other order (docs/checkpoints.md).
    del optimizer, model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
