"""How the ranks of one save or restore talk: gather to the coordinator, scatter from it, and nothing else.

Three ways to do that: alone, over a process group (foreground), and over a store (background, so that no collective
of the training's group runs beside the training). Failures travel as values: a rank that fails still answers, so no
rank waits for one that has raised, and all of them raise the same.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from ezpz_elastic.checkpoint.errors import Failure, RanksFailed, failure_of
from ezpz_elastic.checkpoint.memory import bytes_of, tensor_of

__all__ = ["Alone", "GroupPeers", "Peers", "StorePeers", "all_reduce", "foreground"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class Peers(Protocol):
    """The ranks that save or restore together; rank 0 coordinates."""

    rank: int
    world: int

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's ``value`` in rank order on rank 0, ``None`` elsewhere."""

    def scatter(self, values: list[Any] | None) -> Any:
        """This rank's element of the list that rank 0 passes."""


class Alone:
    """One process, no group."""

    rank = 0
    world = 1

    def gather(self, value: Any) -> list[Any] | None:
        """A list of one."""
        return [value]

    def scatter(self, values: list[Any] | None) -> Any:
        """The only element."""
        assert values is not None
        return values[0]


class GroupPeers:
    """Over a process group that the caller shares with nobody for the moment.

    Plain collectives on bytes: torch's own for objects need numpy, which torch does not bring.

    Args:
        group: the group; ``None`` for the default one.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.rank = int(dist.get_rank(group))
        self.world = int(dist.get_world_size(group))
        self._root = int(dist.get_global_rank(group, 0)) if group is not None else 0
        self._device = _device_of(group)

    def gather(self, value: Any) -> list[Any] | None:
        """To the group's first rank: sizes first, then the bytes, padded to the longest."""
        data = pickle.dumps(value)
        sizes = [self._size(0) for _ in range(self.world)]
        dist.all_gather(sizes, self._size(len(data)), group=self._group)
        lengths = [int(size.item()) for size in sizes]
        sent = tensor_of(data, max(lengths), self._device)
        taken = [torch.empty_like(sent) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(sent, taken, dst=self._root, group=self._group)
        if taken is None:
            return None
        return [_value(tensor, length) for tensor, length in zip(taken, lengths, strict=True)]

    def scatter(self, values: list[Any] | None) -> Any:
        """From the group's first rank: sizes first, then the bytes, padded to the longest."""
        parts = [pickle.dumps(value) for value in values] if values is not None else None
        sizes = torch.tensor([len(p) for p in parts] if parts is not None else [0] * self.world, dtype=torch.int64)
        sizes = sizes.to(self._device)
        dist.broadcast(sizes, src=self._root, group=self._group)
        lengths = [int(size) for size in sizes.tolist()]
        longest = max(lengths)
        taken = torch.empty(longest, dtype=torch.uint8, device=self._device)
        sent = [tensor_of(part, longest, self._device) for part in parts] if parts is not None else None
        dist.scatter(taken, sent, src=self._root, group=self._group)
        return _value(taken, lengths[self.rank])

    def _size(self, length: int) -> torch.Tensor:
        return torch.tensor([length], dtype=torch.int64, device=self._device)


def _value(tensor: torch.Tensor, length: int) -> Any:
    host = tensor.cpu()
    return pickle.loads(bytes_of(host)[:length])


def _device_of(group: Any) -> torch.device:
    """Where a group's collectives take their tensors: the host if it can, else this process's accelerator."""
    backends = str(dist.get_backend_config(group))
    if "cpu:" in backends or "gloo" in backends or "mpi" in backends:
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


class StorePeers:
    """Over a key-value store, for use in a background thread.

    Args:
        store: a connection that nothing else uses: a blocking wait holds it.
        rank: this rank.
        world: how many ranks.
        prefix: unique to this save; its keys are removed as they are read.
        timeout: how long to wait for another rank.
    """

    def __init__(self, store: Any, rank: int, world: int, prefix: str, timeout: timedelta) -> None:
        self._store = store
        self.rank = rank
        self.world = world
        self._prefix = prefix
        self._timeout = timeout
        self._turn = 0

    def _keys(self) -> list[str]:
        return [f"{self._prefix}/{self._turn}/{rank}" for rank in range(1, self.world)]

    def _take(self, keys: list[str]) -> list[Any]:
        self._store.wait(keys, self._timeout)
        values = [pickle.loads(self._store.get(key)) for key in keys]
        for key in keys:
            self._store.delete_key(key)
        return values

    def gather(self, value: Any) -> list[Any] | None:
        """Each rank leaves its value; rank 0 takes them all."""
        self._turn += 1
        keys = self._keys()
        if self.rank != 0:
            self._store.set(keys[self.rank - 1], pickle.dumps(value))
            return None
        return [value, *self._take(keys)]

    def scatter(self, values: list[Any] | None) -> Any:
        """Rank 0 leaves each rank's value; each takes its own."""
        self._turn += 1
        keys = self._keys()
        if self.rank != 0:
            return self._take([keys[self.rank - 1]])[0]
        assert values is not None
        for key, value in zip(keys, values[1:], strict=True):
            self._store.set(key, pickle.dumps(value))
        return values[0]


def foreground(group: Any = None) -> Peers:
    """The peers of a call from the training loop: the process group where there is one, else this process alone."""
    if dist.is_available() and dist.is_initialized():
        return GroupPeers(group)
    return Alone()


def all_reduce(
    peers: Peers,
    what: str,
    local: Callable[[], T],
    reduce: Callable[[list[T]], list[R]],
    on_failure: Callable[[], None] | None = None,
) -> R:
    """Run ``local`` everywhere, ``reduce`` on the coordinator, and give each rank its part of the result.

    Args:
        peers: the ranks.
        what: what is being done, for the error.
        local: this rank's part.
        reduce: from every rank's answer to every rank's result; not called when a rank failed.
        on_failure: called on the coordinator when any of it failed, before any rank raises, when no rank is still
            working. What it raises is logged: the ranks are owed the answer that they wait for.

    Raises:
        RanksFailed: on every rank, when ``local`` failed on any of them or ``reduce`` failed.
    """
    mine: T | Failure
    cause: Exception | None = None
    try:
        mine = local()
    except Exception as error:
        mine, cause = failure_of(peers.rank, error), error
    answers = peers.gather(mine)
    results: list[Any] | None = None
    if answers is not None:
        failures = tuple(answer for answer in answers if isinstance(answer, Failure))
        if not failures:
            try:
                results = list(reduce(answers))
            except Exception as error:
                failures, cause = (failure_of(peers.rank, error),), error
        if failures:
            if on_failure is not None:
                try:
                    on_failure()
                except Exception as error:
                    _log.warning("%s, and cleaning up after it failed too: %s", what, error)
            # Wrapped, so that a result that happens to be a tuple is never taken for a failure.
            results = [_Failed(failures)] * peers.world
    result = peers.scatter(results)
    if isinstance(result, _Failed):
        raise RanksFailed(what, result.failures) from cause
    return result  # type: ignore[no-any-return]


class _Failed:
    def __init__(self, failures: tuple[Failure, ...]) -> None:
        self.failures = failures
