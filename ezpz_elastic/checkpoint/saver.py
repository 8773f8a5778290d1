"""One save, from plan to commit, in the order that makes it survive a kill at any moment.

1. plan   every rank says what it has; the coordinator checks its claim to the directory, the room, and divides the
          work (DCP's planner: replicated values are written once, by somebody)
2. write  every rank writes its shard into ``step-<N>.partial`` and syncs it
3. commit the coordinator writes ``.metadata``, ``manifest.json`` and ``.complete``, syncs them and the directory, asks
          once more whether the round is current, and renames to ``step-<N>``. That rename is the commit

Planning and writing are separate calls because an asynchronous save plans in the foreground and does the rest beside
the training.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from ezpz_elastic.checkpoint import layout, manifest, tree
from ezpz_elastic.checkpoint.durable import rename, sync_directory
from ezpz_elastic.checkpoint.errors import FailureKind, RanksFailed, SaveFailed, Superseded
from ezpz_elastic.checkpoint.filesystem import StripedWriter
from ezpz_elastic.checkpoint.owner import Owner
from ezpz_elastic.checkpoint.peers import Peers, all_reduce
from ezpz_elastic.checkpoint.staging import HostBuffers
from ezpz_elastic.checkpoint.steps import Trash, recover
from ezpz_elastic.errors import UsageError

__all__ = ["Request", "Save", "Saved"]


class Saved(msgspec.Struct, frozen=True):
    """What became durable.

    Args:
        step: its number.
        path: its directory.
        bytes: its size.
        seconds: how long each part took on the coordinator.
    """

    step: int
    path: Path
    bytes: int
    seconds: dict[str, float]


class Request(msgspec.Struct, frozen=True):
    """What is to be saved, as far as it is the same on every rank.

    Args:
        directory: the checkpoint directory.
        step: training step.
        meta: JSON values to remember.
        round: the elastic round, ``None`` outside of one.
        threads: files per rank.
    """

    directory: Path
    step: int
    meta: dict[str, Any] = {}
    round: int | None = None
    threads: int = 1


class Save:
    """One save on one rank.

    After ``plan``, ``nonce`` is unique to this save and the same on every rank.

    Args:
        request: what to save.
        owner: the claim to the directory; used on the coordinator.
        trash: takes what is in the way.
        preflight: called on the coordinator with every rank's bytes before the first one is written; raises if there
            is no room.
    """

    def __init__(
        self,
        request: Request,
        owner: Owner,
        trash: Trash,
        preflight: Callable[[list[int]], None] | None = None,
    ) -> None:
        self._request = request
        self._owner = owner
        self._trash = trash
        self._preflight = preflight
        self._partial = layout.partial_path(request.directory, request.step)
        self._writer = StripedWriter(self._partial, thread_count=request.threads)
        self._planner: Any = DefaultSavePlanner()
        self._plan: Any = None
        self._metadata: Any = None
        self.nonce = ""
        self.seconds: dict[str, float] = {}

    def stage(self, buffers: HostBuffers) -> None:
        """Copy this rank's part to the host; the state may change from here on."""
        began = time.monotonic()
        self._planner = buffers.stage(self._planner, self._plan.items)
        self.seconds["stage"] = time.monotonic() - began

    def plan(self, peers: Peers, state: dict[str, Any]) -> None:
        """Divide the work.

        Raises:
            SaveFailed: on every rank; nothing was written.
            Superseded: on every rank, if a newer round owns the directory.
            UsageError: on every rank, for a wrong argument or a directory another job writes to.
        """
        began = time.monotonic()

        def local() -> Any:
            described = tree.describe(state)
            coordinator = peers.rank == 0
            self._planner.set_up_planner(
                described, storage_meta=self._writer.storage_meta(), is_coordinator=coordinator
            )
            self._writer.set_up_storage_writer(coordinator, rank=peers.rank, use_collectives=True)
            return self._planner.create_local_plan()

        def divide(plans: list[Any]) -> list[Any]:
            if self._owner.claim():
                recover(self._request.directory, self._trash)
            plans, self._metadata = self._planner.create_global_plan(plans)
            if self._preflight is not None:
                self._preflight([_bytes_of(plan) for plan in plans])
            if self._partial.exists():
                self._trash.put(self._partial)
            self._partial.mkdir()
            nonce = uuid.uuid4().hex
            return [(plan, nonce) for plan in self._writer.prepare_global_plan(plans)]

        self._plan, self.nonce = self._agree(peers, "planning", local, divide)
        self._plan = self._planner.finish_plan(self._plan)
        self.seconds["plan"] = time.monotonic() - began

    def write(self, peers: Peers) -> Saved:
        """Write this rank's part and, once every rank has, commit.

        Raises:
            SaveFailed: on every rank; the partial step is removed.
            Superseded: on every rank, if the round ended meanwhile; the partial step is removed.
        """
        began = time.monotonic()

        def local() -> Any:
            written = self._writer.write_data(self._plan, self._planner)
            written.wait()
            return written.value()

        def commit(results: list[Any]) -> list[Saved]:
            self.seconds["write"] = time.monotonic() - began
            return [self._commit(results)] * peers.world

        saved: Saved = self._agree(peers, "writing", local, commit)
        return saved

    def _agree(self, peers: Peers, doing: str, local: Callable[[], Any], reduce: Callable[[list[Any]], Any]) -> Any:
        what = f"checkpoint of step {self._request.step} not saved ({doing} {self._partial})"
        try:
            return all_reduce(peers, what, local, reduce, on_failure=self._discard)
        except RanksFailed as failed:
            for failure in failed.failures:
                if failure.kind is FailureKind.SUPERSEDED:
                    raise Superseded(failure.text) from failed
                if failure.kind is FailureKind.USAGE:
                    raise UsageError(failure.text) from failed
            raise SaveFailed(failed.what, failed.failures) from failed.__cause__

    def _discard(self) -> None:
        if self._partial.exists():
            self._trash.put(self._partial)
            self._trash.wait()  # the space is needed, e.g. for the next attempt

    def _commit(self, results: list[Any]) -> Saved:
        request, partial = self._request, self._partial
        began = time.monotonic()
        self._writer.details = {
            "step": request.step,
            "round": request.round,
            "meta": request.meta,
            "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
        }
        self._writer.finish(self._metadata, results)
        written = manifest.read(partial)
        manifest.check_sizes(partial, written)
        manifest.seal(partial, request.step)
        sync_directory(partial)
        self._owner.check()
        final = layout.step_path(request.directory, request.step)
        if final.exists():
            # Out of the way for as long as one rename takes; ``recover`` gives it its name back if we die in between.
            former = layout.replaced_path(request.directory, request.step)
            rename(final, former)
            rename(partial, final)
            self._trash.put(former)
        else:
            rename(partial, final)
        self.seconds["commit"] = time.monotonic() - began
        return Saved(step=request.step, path=final, bytes=written.bytes, seconds=dict(self.seconds))


def _bytes_of(plan: Any) -> int:
    """Tensor bytes a plan will write; values that are no tensors are not known before they are pickled, and small."""
    total = 0
    for item in plan.items:
        if item.tensor_data is not None:
            chunk = 1
            for extent in item.tensor_data.chunk.sizes:
                chunk *= int(extent)
            total += chunk * item.tensor_data.properties.dtype.itemsize
    return total
