"""No step for too long, and which rank is to blame: the limit, learned from the run itself, and the comparison."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from ezpz_elastic.observe.stacks import Place

__all__ = ["LEAST", "Standing", "StepClock", "behind", "to_blame"]

LEAST = 60.0
"""Seconds: no learned limit is shorter."""

BUSY = 600.0
"""Seconds: no learned limit is shorter while a checkpoint is saved or restored. Storage that takes its time is no hang,
and the rank that writes is not to blame for it."""

TIMES = 10
"""A step that takes so many times the 99th percentile of this run's steps is a hang."""

PAUSES = 3
"""A pause that training came back from (an evaluation, a checkpoint) may be so many times longer the next time."""

_KEPT = 1000
_STOPPED = frozenset("TtD")


class Standing(msgspec.Struct, frozen=True):
    """How far a rank has come, and where it stands now.

    Args:
        rank: global rank.
        host: its host.
        step: its last step; ``None`` if it has told of none.
        state: the kernel's letter for the process.
        place: where its main thread stands.
        frame: innermost Python frame.
    """

    rank: int
    host: str
    step: int | None
    state: str = ""
    place: Place = Place.UNKNOWN
    frame: str = ""


class StepClock:
    """Times the steps of one host's workers, over all lives.

    Args:
        given: limit in seconds; 0: never; ``None``: learn it.
        startup: limit in seconds for the first step of a life; 0: none.
    """

    def __init__(self, given: float | None, startup: float) -> None:
        self._given, self._startup = given, startup
        self._times: deque[float] = deque(maxlen=_KEPT)
        self._longest = 0.0
        self._step: int | None = None
        self._since = 0.0
        self._busy = False

    @property
    def step(self) -> int | None:
        """The furthest step of this life so far."""
        return self._step

    def begin(self, now: float) -> None:
        """A life begins; ``now`` is a monotonic clock, seconds."""
        self._step, self._since, self._busy = None, now, False

    def see(self, step: int | None, now: float, busy: bool = False) -> None:
        """The furthest step of the local workers at this moment, and whether one of them waits for a checkpoint."""
        if self._step is not None and self._busy and not busy:
            self._since = now  # the step begins where the wait ends
        self._busy = busy
        if step is None or step == self._step:
            return
        if self._step is not None and step > self._step:
            self._times.append((now - self._since) / (step - self._step))
            self._longest = max(self._longest, now - self._since)
        self._step, self._since = step, now

    def limit(self) -> float:
        """Seconds that the step under way may take; infinite if there is no limit."""
        if self._step is None:
            return self._startup or float("inf")
        if self._given is not None:
            return self._given or float("inf")
        if not self._times:
            return float("inf")  # one step says nothing about the next one
        ordered = sorted(self._times)
        percentile = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        return max(BUSY if self._busy else LEAST, TIMES * percentile, PAUSES * self._longest)

    def waiting(self, now: float) -> float:
        """Seconds since the last step, or since the life began."""
        return now - self._since


def to_blame(standings: Sequence[Standing], later: Mapping[int, int | None], ranks: int) -> list[Standing]:
    """The ranks that hold up all others, where the standings are of one moment.

    Ranks are not looked at at the same time, so a job that goes on meanwhile seems to have ranks that are behind: those
    that were looked at first. A step that is the same after the last look as it was at its own rank's look was the
    same at any moment in between.

    Args:
        standings: of every rank that could be asked.
        later: rank -> its step, read when all standings were known.
        ranks: how many there are in the round. If some are not told of, only a process that is stopped is to blame:
            nobody can be behind ranks of which nothing is known.
    """
    if any(later.get(item.rank, item.step) != item.step for item in standings):
        return []
    found = behind(standings)
    whole = len(standings) == ranks and all(item.rank in later for item in standings)
    return found if whole else [item for item in found if item.state in _STOPPED]


def behind(standings: Sequence[Standing]) -> list[Standing]:
    """The ranks that hold up all others, most certain first; empty if nothing sets any apart.

    In this order: processes that are stopped or in uninterruptible sleep, ranks with a lower step than others, ranks
    outside communication while all others are inside. The last two are never more than half of all: what most ranks
    do is what waiting looks like in this program.

    Args:
        standings: of every rank that could be asked.
    """
    stopped = [item for item in standings if item.state in _STOPPED]
    if stopped:
        return stopped if len(stopped) < len(standings) else []
    most = len(standings) // 2
    steps = [item.step for item in standings]
    known = [step for step in steps if step is not None]
    if len(known) == len(steps) and known and min(known) < max(known):
        last = [item for item in standings if item.step == min(known)]
        return last if len(last) <= most else []
    outside = [item for item in standings if item.place is Place.ELSEWHERE]
    inside = [item for item in standings if item.place is Place.COLLECTIVE]
    return outside if len(outside) <= most and len(outside) + len(inside) == len(standings) else []
