"""Killing processes so that the death is seen and not assumed."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Mapping

import msgspec

__all__ = ["PATIENCE", "Harm", "kill"]

PATIENCE = 10.0
"""Seconds in which a killed process has to be seen dead; the kernel needs milliseconds."""


class Harm(msgspec.Struct, frozen=True):
    """What was seen.

    Args:
        pids: processes that were seen to have come to harm after the deed.
        landed: whether that is all that was meant.
        seconds: from the deed to the last of it.
    """

    pids: tuple[int, ...]
    landed: bool
    seconds: float


def kill(pids: Collection[int], signum: signal.Signals = signal.SIGKILL, patience: float = PATIENCE) -> Harm:
    """Send a deadly signal to processes and see them die.

    Each is held by a pidfd before the signal is sent, so the signal can reach no other process that has inherited its
    number. One that had died before is not among the dead: somebody else's deed is no receipt for this one.

    Args:
        pids: the victims.
        signum: what they get.
        patience: seconds to wait for their end.
    """
    held: dict[int, int] = {}
    try:
        for pid in pids:
            try:
                held[os.pidfd_open(pid)] = pid
            except ProcessLookupError:
                continue  # it died before its time: no receipt for it
        began = time.monotonic()
        gone, struck = _seen_dead(held, began), False
        for descriptor, pid in held.items():
            if pid in gone:
                continue
            try:
                signal.pidfd_send_signal(descriptor, signum)
                struck = True
            except ProcessLookupError:
                if not struck:  # else the first death has brought this one about
                    gone.add(pid)
        dead = _seen_dead(held, began + patience) - gone
        seconds = time.monotonic() - began
    finally:
        for descriptor in held:
            os.close(descriptor)
    return Harm(tuple(sorted(dead)), bool(dead) and dead == set(pids), round(seconds, 6))


def _seen_dead(held: Mapping[int, int], deadline: float) -> set[int]:
    """Pids whose end became visible in time; a deadline that is over means one look."""
    waiting = dict(held)
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting:
        left = max(deadline - time.monotonic(), 0.0)
        for descriptor, _ in poll.poll(left * 1000):
            poll.unregister(descriptor)
            del waiting[descriptor]
        if left == 0.0:
            break
    return set(held.values()) - set(waiting.values())
