"""What the demo is about to do, and what has to follow from it: the yardstick its self-check uses."""

from __future__ import annotations

import msgspec

from ezpz_elastic.demo.receipts import Fault
from ezpz_elastic.demo.story import Named

__all__ = ["ACTIVE", "PLOT", "SAVE_EVERY", "SPARE", "STEPS", "Chapter"]

ACTIVE = ("127.0.0.2", "127.0.0.3")
SPARE = "127.0.0.4"
STEPS = 160
SAVE_EVERY = 20
AFTER_SAVE = 8
"""Steps after a save at which a process is killed: in the middle of work that will have to be done again."""


class Chapter(msgspec.Struct, frozen=True):
    """One round that is ended by a fault.

    Args:
        round: which.
        fault: what is done to it.
        at: the step from which it is done.
        victim: the host it is done to; empty for the disk, which is everybody's.
        kind, cause: what the verdict has to be.
        named: the hosts it has to name, and no others.
        suspects: the hosts it has to suspect.
        next_hosts: who has to hold the slots afterwards.
        intent: in plain words, what is done.
    """

    round: int
    fault: Fault
    at: int
    victim: str
    kind: str
    cause: str
    next_hosts: tuple[str, ...]
    intent: str
    named: tuple[Named, ...] = ()
    suspects: tuple[str, ...] = ()


PLOT = (
    Chapter(
        round=1,
        fault=Fault.WORKER_KILLED,
        at=2 * SAVE_EVERY + AFTER_SAVE,
        victim=ACTIVE[0],
        kind="retryable_unattributed",
        cause="worker_killed",
        suspects=(ACTIVE[0],),
        next_hosts=ACTIVE,
        intent=f"SIGKILL to the worker of {ACTIVE[0]}; its host is well",
    ),
    Chapter(
        round=2,
        fault=Fault.HOST_LOST,
        at=4 * SAVE_EVERY + AFTER_SAVE,
        victim=ACTIVE[1],
        kind="bad_node_known",
        cause="host_lost",
        named=(Named(ACTIVE[1], "lost"),),
        next_hosts=(ACTIVE[0], SPARE),
        intent=f"{ACTIVE[1]} goes dark: its agent and its worker are killed at once",
    ),
    Chapter(
        round=3,
        fault=Fault.DISK_FULL,
        at=5 * SAVE_EVERY,
        victim="",
        kind="retryable_unattributed",
        cause="storage",
        next_hosts=(ACTIVE[0], SPARE),
        intent="the disk that takes the checkpoints runs full before the next save",
    ),
)
