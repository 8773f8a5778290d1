"""Proof that a fault landed, written by whoever saw it land and by nobody else."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import msgspec

__all__ = ["Fault", "Receipt", "read_receipts", "write_receipt"]


class Fault(str, Enum):
    """What the demo does to the job, in this order."""

    WORKER_KILLED = "worker_killed"
    HOST_LOST = "host_lost"
    DISK_FULL = "disk_full"


class Receipt(msgspec.Struct, frozen=True):
    """One fault as its witness saw it.

    Args:
        fault: which.
        round: the round it fell into.
        landed: whether the harm was seen to be done: the process seen dead, the error seen raised.
        witness: who saw it.
        step: the training step, as far as the witness knows it.
        pids: the processes that were seen dead.
        complete: step of the newest complete checkpoint on the disk at that moment, if the witness looked.
        errno: of the ``OSError`` that was seen raised.
        text: the error, or what was done.
        seconds: from the deed to its being seen.
    """

    fault: Fault
    round: int
    landed: bool
    witness: str
    step: int | None = None
    pids: tuple[int, ...] = ()
    complete: int | None = None
    errno: int | None = None
    text: str = ""
    seconds: float = 0.0


def write_receipt(directory: Path, receipt: Receipt, suffix: str = "") -> None:
    """Leave a receipt; a reader sees all of it or nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{receipt.fault.value}{suffix}.json"
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(receipt) + b"\n")
    partial.replace(path)


def read_receipts(directory: Path) -> tuple[Receipt, ...]:
    """All receipts there are, in the order of their names."""
    return tuple(msgspec.json.decode(path.read_bytes(), type=Receipt) for path in sorted(directory.glob("*.json")))
