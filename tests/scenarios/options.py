"""The trainer's command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from scenarios.modes import TOPOLOGIES

__all__ = ["DROPS", "parser"]

DROPS = ("optimizer", "optimizer_steps", "schedule", "rng", "stream", "position", "grad_norm")
"""What can be left out of the checkpoint, to see that a comparison notices."""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(":"))


def _score(text: str) -> tuple[int, Path]:
    step, _, path = text.partition(":")
    return int(step), Path(path)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def parser() -> argparse.ArgumentParser:
    """All options of the trainer."""
    made = argparse.ArgumentParser(prog="scenarios.trainer")
    made.add_argument("--mode", choices=sorted(TOPOLOGIES), required=True)
    made.add_argument("--steps", type=int, required=True, help="the last step")
    made.add_argument("--checkpoints", type=Path, required=True)
    made.add_argument("--save-every", type=int, default=1)
    made.add_argument("--keep-last", type=int, default=99)
    made.add_argument("--dumps", type=Path, help="where each step's tensors and metrics go")
    made.add_argument("--records", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--score", type=_score, metavar="STEP:FILE", help="ask the held-out problems after a step")
    made.add_argument("--warm-up", type=int, default=8, help="steps in which the learning rate rises")
    made.add_argument("--drop", action="append", default=[], choices=DROPS, help="leave a part out of the checkpoint")
    made.add_argument(
        "--controls",
        type=_words,
        default=(),
        metavar="PART,…",
        help="drop one a round, from the second on",
    )
    made.add_argument(
        "--kill",
        type=_numbers,
        action="append",
        default=[],
        metavar="STEP:RANK:ROUND",
        help="SIGKILL itself before the all-reduce",
    )
    made.add_argument(
        "--await-death", type=_numbers, metavar="STEP:RANK:ROUND", help="leave --cue and wait before the all-reduce"
    )
    made.add_argument("--hold", type=_numbers, metavar="STEP:ROUND", help="leave the cue .held and wait there")
    made.add_argument("--cue", type=Path, help="the file by which it tells that it waits")
    made.add_argument("--faults", type=Path, help="directory where orders to come to harm are looked for")
    made.add_argument("--seed", type=int, default=7)
    made.add_argument("--batch", type=int, default=16)
    made.add_argument("--width", type=int, default=32)
    made.add_argument("--depth", type=int, default=2)
    made.add_argument("--lr", type=float, default=5e-3)
    made.add_argument("--dropout", type=float, default=0.1)
    return made
