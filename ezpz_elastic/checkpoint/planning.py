"""Dividing the work of a save, and not doing it again while the state keeps its shape.

DCP's planner looks at every tensor and sends every rank's plan to the coordinator and back: tens of milliseconds that
the training waits for. Names, shapes and shardings hardly ever change between saves, so a rank that sees the same as
last time says only that, and if all of them do, everybody keeps what they have. DCP has such a cache of its own; it is
one per process, whichever states are saved through it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.tensor import DTensor

from ezpz_elastic.checkpoint.filesystem import StripedWriter
from ezpz_elastic.checkpoint.placer import estimate

__all__ = ["PlanCache", "Planning"]


@dataclasses.dataclass
class PlanCache:
    """What is kept from save to save on one rank.

    Args:
        signature: of the state that ``plan`` is for; ``None`` if there is no plan.
        plan: this rank's part.
        local: every rank's own plan (coordinator).
        metadata: DCP's metadata (coordinator).
        sizes: bytes each rank will write, about (coordinator).
    """

    signature: Any = None
    plan: Any = None
    local: list[Any] = dataclasses.field(default_factory=list)
    metadata: Any = None
    sizes: list[int] = dataclasses.field(default_factory=list)


class Planning:
    """One division of the work; its three calls are made around a gather and a scatter.

    Args:
        cache: from the save before; updated by ``accept``.
        writer: of this save.
    """

    def __init__(self, cache: PlanCache, writer: StripedWriter) -> None:
        self._cache = cache
        self._writer = writer
        self._signature: Any = None
        self.planner: Any = DefaultSavePlanner()

    def propose(self, described: dict[str, Any], rank: int) -> Any:
        """This rank's own plan; ``None`` if it is what it was.

        Args:
            described: from ``tree.describe``.
            rank: of this process.
        """
        coordinator = rank == 0
        self.planner.set_up_planner(described, storage_meta=self._writer.storage_meta(), is_coordinator=coordinator)
        self._writer.set_up_storage_writer(coordinator, rank=rank, use_collectives=True)
        self._signature = _signature(self.planner.state_dict)
        if self._signature is not None and self._signature == self._cache.signature:
            return None
        return self.planner.create_local_plan()

    def divide(self, proposals: list[Any]) -> list[Any]:
        """Every rank's part, on the coordinator; ``None`` for each if nothing changed."""
        cache = self._cache
        self._writer.world = len(proposals)
        if cache.local and all(proposal is None for proposal in proposals):
            return [None] * len(proposals)
        known = cache.local or [None] * len(proposals)
        cache.local = [old if new is None else new for old, new in zip(known, proposals, strict=True)]
        plans, cache.metadata = self.planner.create_global_plan(cache.local)
        cache.sizes = [estimate(plan) for plan in plans]
        return self._writer.name_files(plans)

    def accept(self, part: Any) -> Any:
        """This rank's part after the scatter."""
        if part is not None:
            self._cache.plan = self.planner.finish_plan(part)
            self._cache.signature = self._signature
        return self._cache.plan

    @property
    def metadata(self) -> Any:
        """A copy of DCP's metadata for the writer to complete (coordinator)."""
        return dataclasses.replace(self._cache.metadata)

    @property
    def sizes(self) -> list[int]:
        """Bytes each rank will write, about (coordinator)."""
        return self._cache.sizes


def _signature(flat: dict[str, Any]) -> Any:
    """Equal for states that DCP would plan alike; ``None`` if that cannot be told."""
    found: list[tuple[Any, ...]] = []
    for name, value in flat.items():
        if isinstance(value, DTensor):
            found.append((name, value.size(), value.dtype, value.placements, value.device_mesh))
        elif type(value) in (torch.Tensor, torch.nn.Parameter):
            found.append((name, value.size(), value.dtype, value.requires_grad))
        elif isinstance(value, torch.Tensor) or hasattr(value, "__create_write_items__"):
            return None
        else:
            found.append((name,))
    return tuple(found)
