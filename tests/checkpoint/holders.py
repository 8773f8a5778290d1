"""A process that owns a checkpoint directory for as long as it is told."""

from __future__ import annotations

from multiprocessing.connection import Connection

from ezpz_elastic.checkpoint import CheckpointManager, Superseded


def hold(line: Connection, directory: str, environ: dict[str, str]) -> None:
    """Claim ``directory``, say ``held``, then obey ``save N`` and ``end``."""
    manager = CheckpointManager(directory, environ=environ)
    manager._owner.claim()
    line.send("held")
    while (order := line.recv()) != "end":
        step = int(order.split()[1])
        try:
            manager.save(step, {"n": step})
            line.send("saved")
        except Superseded as error:
            line.send(f"{type(error).__name__}: {error}")
