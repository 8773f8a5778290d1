"""The job that ``nodekill.pbs`` runs: steps are counted, checkpoints have real bytes, every rank is in every one.

It needs no accelerator and no torch, so that what the experiment measures is launcher, verdict and relaunch. A
checkpoint is ``step-<N>/`` with a shard of every rank and ``.complete``, written last. Rank 0 commits it once all
shards are there, and nobody goes on before that. Ranks say, in lines of one write, what the checks read afterwards::

    nodekill rank=1 world=2 host=x1921c1s1b0n0 pid=4242 resumed=40
    step=41 loss=0.97
    saved checkpoint step-60
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path

RANK_VARIABLES = ("RANK", "PMI_RANK", "PALS_RANKID")
"""Who tells a process its rank: torchrun, PMI (Hydra, Cray), PALS."""

LOOK = 0.005
"""Seconds between two looks at the checkpoint directory; a parallel file system takes about as long to answer."""


def main() -> int:
    """Train to the end."""
    given = arguments()
    rank = rank_of(os.environ)
    host = os.environ.get("NODEKILL_HOST") or socket.gethostname()
    given.checkpoints.mkdir(parents=True, exist_ok=True)
    resumed = newest(given.checkpoints)
    first, pace = (0, given.pace) if resumed is None else (resumed, given.pace_resumed)
    say(f"nodekill rank={rank} world={given.world} host={host} pid={os.getpid()} resumed={resumed}")
    for step in range(first + 1, given.steps + 1):
        time.sleep(pace)
        if rank == 0:
            say(f"step={step} loss={1 / (1 + step):.4f}")
        if step % given.every == 0 or step == given.steps:
            save(given, rank, step)
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="steps and checkpoints, for the node-kill experiment")
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory that all hosts share")
    parser.add_argument("--world", type=int, required=True, help="ranks in all")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="steps between two checkpoints")
    parser.add_argument("--shard-mib", type=float, default=1.0, help="of each rank in each checkpoint")
    parser.add_argument("--pace", type=float, required=True, help="seconds a step takes in a first life")
    parser.add_argument("--pace-resumed", type=float, required=True, help="seconds a step takes in a resumed one")
    return parser.parse_args()


def rank_of(environ: os._Environ[str]) -> int:
    """This process's rank in the job, from whoever started it."""
    for name in RANK_VARIABLES:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    raise SystemExit(f"no rank: none of {', '.join(RANK_VARIABLES)} is set; start this under mpiexec or torchrun")


def newest(checkpoints: Path) -> int | None:
    """The newest complete step."""
    complete = (path.parent.name.removeprefix("step-") for path in checkpoints.glob("step-*/.complete"))
    return max((int(step) for step in complete if step.isdigit()), default=None)


def save(given: argparse.Namespace, rank: int, step: int) -> None:
    """Write this rank's shard; rank 0 commits, the others wait for that."""
    final = given.checkpoints / f"step-{step}"
    # Of this life alone: what a former one left half written is neither used nor in the way.
    life = os.environ.get("EZPZ_ROUND") or os.environ.get("EZPZ_ATTEMPT") or "0"
    partial = given.checkpoints / f"step-{step}.partial-{life}"
    partial.mkdir(exist_ok=True)
    shard = partial / f"rank-{rank}.bin"
    with shard.with_suffix(".writing").open("wb") as file:
        file.write(os.urandom(int(given.shard_mib * (1 << 20))))
        file.flush()
        os.fsync(file.fileno())
    shard.with_suffix(".writing").rename(shard)
    # A rank whose launcher's daemon is gone learns it here, as any program does that prints: by a broken pipe.
    say(f"rank={rank} wrote its shard of step-{step}")
    if rank != 0:
        while not (final / ".complete").exists():
            time.sleep(LOOK)
        return
    while len(list(partial.glob("rank-*.bin"))) < given.world:
        time.sleep(LOOK)
    (partial / ".complete").touch()
    partial.rename(final)
    say(f"saved checkpoint step-{step}")


def say(text: str) -> None:
    """One line in one write, so that lines of several ranks do not run into each other."""
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
