"""How a model is divided among ranks, and how what is divided is looked at as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scenarios.gpt import GPT, Rows
from scenarios.modes import Parallel

__all__ = ["Layout", "divided", "layout_of", "whole"]


class Layout:
    """A rank's place.

    Args:
        replica: which part of the batch is this rank's.
        replicas: into how many parts it is divided.
        mesh: of the ranks; ``None`` for DDP.
    """

    def __init__(self, replica: int, replicas: int, mesh: Any = None) -> None:
        self.replica, self.replicas, self.mesh = replica, replicas, mesh

    def rows(self, batch: int) -> Rows:
        """This rank's rows; the parts differ by one row at most."""
        return Rows(batch * self.replica // self.replicas, batch * (self.replica + 1) // self.replicas, batch)


def layout_of(parallel: Parallel, per_host: int) -> Layout:
    """Find this rank's place in the default process group.

    Args:
        parallel: what is divided.
        per_host: ranks that share a layer under ``FSDP2_TP``.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if parallel is Parallel.DDP:
        return Layout(rank, world)
    from torch.distributed.device_mesh import init_device_mesh

    if parallel is Parallel.FSDP2:
        return Layout(rank, world, init_device_mesh("cpu", (world,), mesh_dim_names=("dp",)))
    mesh = init_device_mesh("cpu", (world // per_host, per_host), mesh_dim_names=("dp", "tp"))
    return Layout(rank // per_host, world // per_host, mesh)


def divided(model: GPT, parallel: Parallel, layout: Layout) -> nn.Module:
    """Divide the model; what is returned is called in its place."""
    if parallel is Parallel.DDP:
        from torch.nn.parallel import DistributedDataParallel

        wrapped = DistributedDataParallel(model)
        wrapped.register_comm_hook(None, _added_in_order)
        return wrapped
    from torch.distributed.fsdp import fully_shard

    if parallel is Parallel.FSDP2_TP:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        for block in model.blocks:
            split = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
            parallelize_module(block, layout.mesh["tp"], {**split, "out": RowwiseParallel(), "down": RowwiseParallel()})
    for block in model.blocks:
        fully_shard(block, mesh=layout.mesh["dp"])
    fully_shard(model, mesh=layout.mesh["dp"])
    return model


def _added_in_order(_, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations and takes no text for one
    """The mean of the ranks' gradients, added up from rank 0 on.

    DDP arranges its buckets anew after its first step, and with more than two ranks gloo's order of addition depends on
    an element's place in its bucket. Without this a job that restarts would be off by a rounding of the last bit.
    """
    mine, world = bucket.buffer(), dist.get_world_size()
    parts = [torch.empty_like(mine) for _ in range(world)]

    def added(gathered: torch.futures.Future[Any]) -> torch.Tensor:
        gathered.value()
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return mine.copy_(total / world)

    return dist.all_gather(parts, mine, async_op=True).get_future().then(added)


def whole(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Every tensor as if it were not divided; all ranks call this with the same names in the same order."""
    return {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach() for name, tensor in tensors
    }
