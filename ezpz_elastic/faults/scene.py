"""What a fault is told about the place where it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path

import msgspec

__all__ = ["Point", "Scene", "Targets"]


class Point(Enum):
    """Where in a training step a worker has to call for its fault."""

    STEP = "step"  # at the end of a step, outside of any communication
    BEFORE_REDUCE = "before_reduce"  # before the gradients are reduced
    IN_REDUCE = "in_reduce"  # this rank has joined the collective and not yet left it
    AFTER_REDUCE = "after_reduce"  # the gradients are reduced and not yet applied
    IN_SAVE = "in_save"  # part of a checkpoint is written, and it is not complete
    AFTER_SAVE = "after_save"  # a checkpoint has just been completed


class Scene(msgspec.Struct, frozen=True):
    """A fault that a process does to itself.

    Args:
        receipts: directory of the receipts.
        attempt: the attempt or round, from 1.
        step: the training step.
        rank: this process's global rank.
        host: the host to be done harm, or to be named as the culprit.
        peers: further hosts of the attempt, for what a launcher would say about them.
        checkpoint: the newest complete checkpoint, a file or a directory; ``None`` if there is none.
        seconds: how long what lasts is to last.
        times: how many times in all the fault is done in this run.
        name: the fault's name in this run, if one mode is done under several.
    """

    receipts: Path
    attempt: int
    step: int
    rank: int = 0
    host: str = ""
    peers: tuple[str, ...] = ()
    checkpoint: Path | None = None
    seconds: float = 3600.0
    times: int = 1
    name: str = ""


class Targets(msgspec.Struct, frozen=True):
    """What an injector does harm to, from outside.

    Args:
        pids: processes -> what they are, for people.
        host: the host they are on; empty if it is no host's matter.
        cut: does the harm where it is no signal (a link is taken down, a disk filled); ``None`` for the processes.
        seen: whether the harm is there, asked after ``cut``.
    """

    pids: Mapping[int, str] = {}
    host: str = ""
    cut: Callable[[], None] | None = None
    seen: Callable[[], bool] | None = None
