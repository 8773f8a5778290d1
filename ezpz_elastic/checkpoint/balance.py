"""Spreading shards over targets of unequal room, so that the fullest one is as empty as can be. Pure.

Fullness is bytes placed per byte of room. Longest-first placement alone is within a few per cent for many shards and
can be a third off for a few; so a few are searched exactly and some are improved by moves and swaps. Both have a fixed
budget of work, not of time, so that every rank that asks gets the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["Loads", "balance"]

# Worth no further work: within this factor of what even divisible shards could reach.
GOOD_ENOUGH = 1.02
# Shards up to which the search is tried, and how many partial placements it may look at.
FEW, SEARCH_BUDGET = 10, 20_000
# Shards up to which moves and swaps are tried, and how many of them.
SOME, MOVES = 200, 50


class Loads:
    """What has been placed where.

    Args:
        room: target -> bytes it can take.
    """

    def __init__(self, room: Mapping[int, int]) -> None:
        self.room = dict(room)
        self.placed = dict.fromkeys(room, 0)

    def fill(self, index: int, extra: int = 0) -> float:
        """Bytes per byte of room on ``index`` if ``extra`` more were there."""
        return (self.placed[index] + extra) / self.room[index]

    def fits(self, index: int, extra: int) -> bool:
        """Whether ``extra`` more bytes fit."""
        return self.placed[index] + extra <= self.room[index]

    def add(self, osts: Sequence[int], extra: int) -> None:
        """Place ``extra`` bytes on each of ``osts``."""
        for index in osts:
            self.placed[index] += extra

    def left(self) -> dict[int, int]:
        """Room that is left, by target."""
        return {index: self.room[index] - self.placed[index] for index in self.room}

    def emptiest(self, part: int, count: int) -> tuple[int, ...]:
        """Up to ``count`` targets that would be the least full with ``part`` bytes more."""
        fitting = [index for index in self.room if self.fits(index, part)]
        if count == 1:
            return (min(fitting, key=lambda index: (self.fill(index, part), index)),) if fitting else ()
        return tuple(sorted(fitting, key=lambda index: (self.fill(index, part), index))[:count])

    def fullest(self) -> tuple[int, float]:
        """The fullest target and how full it is."""
        index = max(self.placed, key=lambda index: (self.fill(index), -index))
        return index, self.fill(index)


def balance(sizes: Sequence[int], order: Sequence[int], chosen: dict[int, int], loads: Loads) -> None:
    """Better a placement in place.

    Args:
        sizes: bytes by rank.
        order: ranks, longest shard first.
        chosen: rank -> target; changed.
        loads: of ``chosen``; changed with it.
    """
    if not order:
        return
    bound = max(sum(sizes) / sum(loads.room.values()), max(sizes) / max(loads.room.values()))
    if loads.fullest()[1] <= bound * GOOD_ENOUGH or len(sizes) > SOME:
        return
    for _ in range(MOVES):
        if not _one_move(sizes, chosen, loads):
            break
    if loads.fullest()[1] > bound * GOOD_ENOUGH and len(sizes) <= FEW:
        better = _Search(sizes, order, loads).best
        for rank, index in better.items():
            loads.add((chosen[rank],), -sizes[rank])
            loads.add((index,), sizes[rank])
            chosen[rank] = index


def _one_move(sizes: Sequence[int], chosen: dict[int, int], loads: Loads) -> bool:
    """Move one shard off the fullest target, or swap it for a smaller one, whichever helps most."""
    top, now = loads.fullest()
    best: tuple[float, int, int | None, int] | None = None
    for rank in (r for r in chosen if chosen[r] == top):
        for back in (None, *(r for r in chosen if chosen[r] != top and sizes[r] < sizes[rank])):
            moved = sizes[rank] - (sizes[back] if back is not None else 0)
            for other in loads.room if back is None else (chosen[back],):
                if other == top or not loads.fits(other, moved):
                    continue
                worse = max(loads.fill(top, -moved), loads.fill(other, moved))
                if worse < now and (best is None or worse < best[0]):
                    best = (worse, rank, back, other)
    if best is None:
        return False
    _, rank, back, other = best
    moved = sizes[rank] - (sizes[back] if back is not None else 0)
    chosen[rank] = other
    if back is not None:
        chosen[back] = top
    loads.add((top,), -moved)
    loads.add((other,), moved)
    return True


class _Search:
    """Depth first, longest shard first, emptiest target first; cut where it cannot beat the best so far."""

    def __init__(self, sizes: Sequence[int], order: Sequence[int], loads: Loads) -> None:
        self._sizes, self._order = sizes, order
        self._limit = loads.fullest()[1]
        self._budget = SEARCH_BUDGET
        self._loads = Loads(loads.room)
        self._path: dict[int, int] = {}
        self.best: dict[int, int] = {}
        self._visit(0, 0.0)

    def _visit(self, depth: int, worst: float) -> None:
        if depth == len(self._order):
            self.best, self._limit = dict(self._path), worst
            return
        rank = self._order[depth]
        size = self._sizes[rank]
        for index in sorted(self._loads.room, key=lambda index: (self._loads.fill(index, size), index)):
            fill = self._loads.fill(index, size)
            if fill >= self._limit or self._budget <= 0:
                return
            if not self._loads.fits(index, size):
                continue
            self._budget -= 1
            self._path[rank] = index
            self._loads.add((index,), size)
            self._visit(depth + 1, max(worst, fill))
            self._loads.add((index,), -size)
