"""When which fault falls on whom: drawn from a seed, so that a run that failed can be had again."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from ezpz_elastic.decide.verdict import Cause
from ezpz_elastic.faults.modes import MODES, Mode

__all__ = ["KINDS", "SILENT", "Plan", "draw", "retires"]

SLOTS = 3


class Plan(msgspec.Struct, frozen=True):
    """One fault to come.

    Args:
        gap: how long after the recovery from the one before, in whatever the caller counts.
        kind: a name of ``MODES``.
        slot: whose host.
    """

    gap: float
    kind: str
    slot: int


def _ends_a_round(mode: Mode) -> bool:
    return mode.live is not None and mode.live.kind is not None and not mode.live.stops and not mode.needs


def _silent(mode: Mode) -> bool:
    return mode.live is not None and mode.live.causes == (Cause.HANG,)


KINDS = tuple(name for name, mode in MODES.items() if _ends_a_round(mode) and not _silent(mode))
"""Every fault that ends a round, needs nothing that only some machines have, and does not have to be waited for."""

SILENT = tuple(name for name, mode in MODES.items() if _ends_a_round(mode) and _silent(mode))
"""Those that nothing but a timeout tells of."""


def retires(kind: str) -> bool:
    """Whether a fault costs a host."""
    live = MODES[kind].live
    return live is not None and live.retires


def draw(seed: int, kinds: Sequence[str], count: int, spares: int, mean: float, slots: int = SLOTS) -> list[Plan]:
    """Draw a schedule. No kind comes twice before all have come once.

    Args:
        seed: of the draw.
        kinds: to draw from.
        count: how many faults.
        spares: hosts that there are to replace others; no more faults than that cost a host.
        mean: of the exponential distribution of the gaps.
        slots: hosts that hold one. Slot 0's host serves the store and is never taken out.
    """
    chance = random.Random(seed)
    bag: list[str] = []
    made: list[Plan] = []
    while len(made) < count:
        if not bag:
            bag = chance.sample(kinds, len(kinds))
        kind = bag.pop()
        if retires(kind):
            if not spares:
                continue
            spares -= 1
        slot = chance.randrange(1 if retires(kind) else 0, slots)
        made.append(Plan(chance.expovariate(1.0 / mean), kind, slot))
    return made
