"""How often to save: Young's and Daly's interval. Pure arithmetic.

A save costs ``save`` seconds; a failure costs the restart and, on average, half an interval of work. Young (1974)
minimises the sum to first order; Daly (2006) carries the expansion on, for saves that are not short beside the time
between failures.
"""

from __future__ import annotations

import math
import re

import msgspec

from ezpz_elastic.errors import UsageError

__all__ = ["Advice", "advise", "daly", "parse_duration", "young"]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|[smhd])?")


class Advice(msgspec.Struct, frozen=True):
    """What to do and what it costs.

    Args:
        young: Young's interval, seconds of work between two saves.
        daly: Daly's, the one to use.
        overhead: share of the time that saving, lost work and restarts take with it.
    """

    young: float
    daly: float
    overhead: float


def young(mtbf: float, save: float) -> float:
    """``sqrt(2 * save * mtbf)``, all in seconds (J. W. Young, CACM 17(9), 1974)."""
    return math.sqrt(2 * save * mtbf)


def daly(mtbf: float, save: float) -> float:
    """Daly's higher-order interval, all in seconds (J. T. Daly, FGCS 22(3), 2006, eq. 37).

    For saves that take twice the time between failures or longer there is no better interval than that time.
    """
    if save >= 2 * mtbf:
        return mtbf
    ratio = save / (2 * mtbf)
    return young(mtbf, save) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save


def advise(mtbf: float, save: float, restart: float = 0.0) -> Advice:
    """The interval and its cost.

    Args:
        mtbf: mean time between failures of the whole job, seconds.
        save: what one save holds the training up, seconds.
        restart: from a failure to the first new step, seconds.

    Raises:
        UsageError: a number is not positive.
    """
    if mtbf <= 0 or save <= 0 or restart < 0:
        raise UsageError(
            f"mtbf {mtbf:g} s, save {save:g} s, restart {restart:g} s",
            expected="mtbf and save above 0, restart 0 or more",
        )
    interval = daly(mtbf, save)
    # Exact for failures that come at random (Daly's eq. 20): wall time per second of work.
    wall = mtbf * math.exp(restart / mtbf) * math.expm1((interval + save) / mtbf) / interval
    return Advice(young(mtbf, save), interval, 1 - 1 / wall)


def parse_duration(text: str) -> float:
    """Seconds in ``90``, ``24s``, ``1.5h``, ``1h30m``, ``2d``.

    Raises:
        UsageError: it is none of these.
    """
    stripped = text.replace(" ", "").lower()
    total, at = 0.0, 0
    while at < len(stripped):
        match = _PART.match(stripped, at)
        if match is None:
            break
        total += float(match.group(1)) * _UNITS[match.group(2) or ""]
        at = match.end()
    if not stripped or at != len(stripped):
        raise UsageError(f"{text!r} is no duration", expected="a number with s, m, h or d, e.g. 24s or 1h30m")
    return total
