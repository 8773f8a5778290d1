"""The three faults, done for real, each with a receipt from whoever saw it land."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ezpz_elastic.demo.plot import Chapter
from ezpz_elastic.demo.receipts import Receipt, write_receipt

__all__ = ["kill"]

PATIENCE = 10.0
"""Seconds in which a killed process has to be seen dead; the kernel needs milliseconds."""


def kill(
    chapter: Chapter, victims: Mapping[int, str], receipts: Path, step: int | None, complete: Callable[[], int | None]
) -> Receipt:
    """SIGKILL processes and see them die.

    Each is held by a pidfd before the signal is sent, so the signal can reach no other process that has inherited its
    number, and its death is seen, not assumed.

    Args:
        chapter: what this is part of.
        victims: pid -> what it is.
        receipts: where the receipt goes.
        step: how far the job has come.
        complete: finds the newest complete checkpoint, once the victims are dead.
    """
    held: dict[int, int] = {}
    try:
        for pid in victims:
            try:
                held[os.pidfd_open(pid)] = pid
            except ProcessLookupError:
                continue  # it died before its time: no receipt for it
        began = time.monotonic()
        for descriptor in held:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        dead = _seen_dead(held, began + PATIENCE)
        seconds = time.monotonic() - began
    finally:
        for descriptor in held:
            os.close(descriptor)
    receipt = Receipt(
        fault=chapter.fault,
        round=chapter.round,
        landed=set(victims) == dead,
        witness="the demo, by pidfd",
        step=step,
        pids=tuple(sorted(dead)),
        complete=complete(),
        text="SIGKILL to " + " and ".join(f"{what} (pid {pid})" for pid, what in victims.items()),
        seconds=round(seconds, 6),
    )
    write_receipt(receipts, receipt)
    return receipt


def _seen_dead(held: Mapping[int, int], deadline: float) -> set[int]:
    """Pids whose end became visible in time."""
    waiting = dict(held)
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            poll.unregister(descriptor)
            del waiting[descriptor]
    return set(held.values()) - set(waiting.values())
