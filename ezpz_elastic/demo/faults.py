"""The three faults, done for real, each with a receipt from whoever saw it land."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ezpz_elastic.demo.plot import Chapter
from ezpz_elastic.demo.receipts import Receipt, write_receipt
from ezpz_elastic.faults import deaths

__all__ = ["kill"]


def kill(
    chapter: Chapter, victims: Mapping[int, str], receipts: Path, step: int | None, complete: Callable[[], int | None]
) -> Receipt:
    """SIGKILL processes and see them die.

    Args:
        chapter: what this is part of.
        victims: pid -> what it is.
        receipts: where the receipt goes.
        step: how far the job has come.
        complete: finds the newest complete checkpoint, once the victims are dead.
    """
    harm = deaths.kill(victims)
    receipt = Receipt(
        fault=chapter.fault,
        round=chapter.round,
        landed=harm.landed,
        witness="the demo, by pidfd",
        step=step,
        pids=harm.pids,
        complete=complete(),
        text="SIGKILL to " + " and ".join(f"{what} (pid {pid})" for pid, what in victims.items()),
        seconds=harm.seconds,
    )
    write_receipt(receipts, receipt)
    return receipt
