"""How many hosts and ranks a scenario runs on, and how the model is divided among them."""

from __future__ import annotations

from enum import Enum

import msgspec

__all__ = ["MODES", "THREE", "TOPOLOGIES", "Mode", "Parallel"]


class Parallel(str, Enum):
    """What is divided among the ranks."""

    DDP = "ddp"  # the batch
    FSDP2 = "fsdp2"  # the batch and the parameters
    FSDP2_TP = "fsdp2_tp"  # the batch and the parameters among hosts, each layer among the ranks of a host


class Mode(msgspec.Struct, frozen=True):
    """One topology.

    Args:
        hosts: hosts that hold a slot.
        per_host: ranks on each.
        parallel: what is divided.
    """

    hosts: int
    per_host: int
    parallel: Parallel

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return f"{self.parallel.value}_{self.hosts}x{self.per_host}"

    @property
    def computation(self) -> tuple[Parallel, int]:
        """What decides every bit of the result: who runs where does not."""
        return self.parallel, self.ranks

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return self.hosts * self.per_host


MODES = {
    mode.name: mode
    for mode in (
        Mode(2, 1, Parallel.DDP),
        Mode(4, 1, Parallel.DDP),
        Mode(2, 2, Parallel.DDP),
        Mode(2, 2, Parallel.FSDP2),
        Mode(2, 2, Parallel.FSDP2_TP),
    )
}
"""What the comparing scenarios run on."""

THREE = Mode(3, 1, Parallel.DDP)
"""What the random faults fall on."""

TOPOLOGIES = {**MODES, THREE.name: THREE}
"""All that the trainer knows."""
