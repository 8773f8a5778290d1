"""A process that owns a checkpoint directory for as long as it is told."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from ezpz_elastic.checkpoint import CheckpointManager, SaveFailed, Superseded, manifest
from ezpz_elastic.checkpoint.filesystem import StripedWriter


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


def stall(line: Connection, directory: str, environ: dict[str, str], where: str) -> None:
    """Save step 5, hang while ``where`` (``writing`` or ``committing``) until told to go on, and say how it ended."""
    owner, name = (StripedWriter, "_write_once") if where == "writing" else (manifest, "seal")
    real = getattr(owner, name)

    def hang(*args: Any) -> Any:
        line.send("hangs")
        assert line.recv() == "go on"
        return real(*args)

    setattr(owner, name, hang)
    try:
        CheckpointManager(directory, environ=environ).save(5, {"n": 1})
    except (SaveFailed, Superseded) as error:
        line.send(type(error).__name__)
    else:
        line.send("saved")
