"""Host copies of what this rank is to write, so that training may go on while they are written.

Only this rank's part of the plan is copied: of replicated state that is a fraction, not the whole. Buffers are kept
from save to save, because fresh memory costs more (page faults) than the copy into it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["HostBuffers", "StagedPlanner"]


class StagedPlanner:
    """Answers DCP's writer with staged copies.

    Args:
        staged: item index -> tensor on the host, or pickled bytes.
    """

    def __init__(self, staged: dict[Any, torch.Tensor | io.BytesIO]) -> None:
        self._staged = staged

    def resolve_data(self, item: Any) -> torch.Tensor | io.BytesIO:
        """The copy made for ``item``."""
        return self._staged[item.index]


class HostBuffers:
    """Host memory for one save at a time."""

    def __init__(self) -> None:
        self._buffers: dict[Any, torch.Tensor] = {}

    def stage(self, planner: Any, items: Sequence[Any]) -> StagedPlanner:
        """Copy what ``planner`` has for ``items``; when this returns, training may change the originals.

        Args:
            planner: of the save.
            items: this rank's part of the plan.
        """
        staged: dict[Any, torch.Tensor | io.BytesIO] = {}
        used: dict[Any, torch.Tensor] = {}
        device: torch.device | None = None
        for item in items:
            data = planner.resolve_data(item)
            if not isinstance(data, torch.Tensor):
                staged[item.index] = data
                continue
            source = data.detach()
            if source.device.type != "cpu":
                device = source.device
            buffer = self._buffer(item.index, source)
            buffer.copy_(source, non_blocking=True)
            staged[item.index] = used[item.index] = buffer
        if device is not None:
            torch.accelerator.synchronize(device)
        self._buffers = used  # what the state no longer has is given back
        return StagedPlanner(staged)

    def _buffer(self, index: Any, source: torch.Tensor) -> torch.Tensor:
        known = self._buffers.get(index)
        if known is not None and known.size() == source.size() and known.dtype == source.dtype:
            return known
        # Pinned memory is what makes a copy from a device run beside it; from the host it would buy nothing.
        return torch.empty_like(source, device="cpu", pin_memory=source.device.type != "cpu", requires_grad=False)
