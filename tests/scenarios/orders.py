"""How an injector tells a worker to come to harm, and a job that it may end: one file each, looked for at every step.

The trainer knows where in a step it is (``Point``); which fault falls where is the order's matter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ezpz_elastic.faults.modes import MODES, commit
from ezpz_elastic.faults.scene import Point, Scene

__all__ = ["Order", "Orders", "Point", "finish", "give"]

_ORDER, _FINISH, RECEIPTS = "order.json", "finish", "receipts"


class Order(msgspec.Struct, frozen=True):
    """One fault, for one worker.

    Args:
        name: its name in this run.
        kind: a name of ``ezpz_elastic.faults.modes.MODES``.
        round, rank: whose it is.
        host: the victim's host.
        peers: the other hosts of the round.
    """

    name: str
    kind: str
    round: int
    rank: int
    host: str
    peers: tuple[str, ...] = ()


def give(directory: Path, order: Order) -> None:
    """Leave an order; a worker sees all of it or nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / "order.partial"
    partial.write_bytes(msgspec.json.encode(order))
    partial.replace(directory / _ORDER)


def finish(directory: Path, step: int) -> None:
    """Let the job end with the first step from this one on."""
    partial = directory / "finish.partial"
    partial.write_text(str(step))
    partial.replace(directory / _FINISH)


class Orders:
    """A worker's view of the orders.

    Args:
        directory: where they are; ``None`` if nobody gives any.
        rank, round: this worker's.
    """

    def __init__(self, directory: Path | None, rank: int, round: int) -> None:
        self._directory, self._rank, self._round = directory, rank, round
        self._step = 0

    def meet(self, point: Point, step: int, latest: Callable[[], Path | None] = lambda: None) -> None:
        """Come to harm, if that is ordered for this worker at this point.

        Args:
            point: where in the step.
            step: which.
            latest: finds the newest checkpoint.
        """
        if self._directory is None:
            return
        self._step = step
        try:
            order = msgspec.json.decode((self._directory / _ORDER).read_bytes(), type=Order)
        except FileNotFoundError:
            return
        if (order.rank, order.round, MODES[order.kind].point) != (self._rank, self._round, point):
            return
        commit(
            order.kind,
            Scene(
                receipts=self._directory / RECEIPTS,
                attempt=self._round,
                step=step,
                rank=self._rank,
                host=order.host,
                peers=order.peers,
                checkpoint=latest(),
                name=order.name,
            ),
        )

    def finish(self, step: int) -> bool:
        """Whether the job may end with this step."""
        if self._directory is None:
            return False
        try:
            return step >= int((self._directory / _FINISH).read_text())
        except FileNotFoundError:
            return False

    def marker(self) -> object:
        """Something that meets its fate while it is written into a checkpoint."""
        return _Marker(self)


class _Marker:
    """Part of the checkpoint is on the disk when this is pickled, and it is not complete."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        self._orders.meet(Point.IN_SAVE, self._orders._step)
        return int, (0,)
