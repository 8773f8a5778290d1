"""One save, from plan to commit, in the order that makes it survive a kill at any moment.

1. plan   every rank says what it has, the coordinator divides the work (DCP's planner: replicated values are written
          once, by somebody)
2. room   the coordinator checks its claim to the directory, cleans up after a killed predecessor, finds a place for
          every shard and makes ``step-<N>.partial-<n>``
3. write  every rank writes its shard and syncs it
4. commit the coordinator writes ``.metadata``, ``manifest.json`` and ``.complete``, syncs them and the directory, asks
          once more whether the round is current, and renames to ``step-<N>``. That rename is the commit

Planning and writing are separate calls because an asynchronous save plans in the foreground and does the rest beside
the training.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ezpz_elastic.checkpoint import layout, manifest, tree
from ezpz_elastic.checkpoint.durable import rename, sync_directory
from ezpz_elastic.checkpoint.errors import FailureKind, RanksFailed, SaveFailed, Superseded
from ezpz_elastic.checkpoint.filesystem import StripedWriter
from ezpz_elastic.checkpoint.owner import Owner
from ezpz_elastic.checkpoint.peers import Peers, all_reduce
from ezpz_elastic.checkpoint.placer import Assignment, Placer
from ezpz_elastic.checkpoint.planning import PlanCache, Planning
from ezpz_elastic.checkpoint.staging import HostBuffers
from ezpz_elastic.checkpoint.steps import Trash, recover
from ezpz_elastic.errors import UsageError

__all__ = ["Request", "Save", "Saved", "Tools"]


@dataclass(frozen=True)
class Tools:
    """What outlives a save and is shared by all of one manager.

    Args:
        owner: the claim to the directory; used on the coordinator.
        trash: takes what is in the way.
        plans: the division of the work, kept while the state keeps its shape.
        room: bytes per rank -> a place per rank, or ``NoSpace``; called on the coordinator before the first byte.
        placer: places files on storage targets; ``None`` where there are none to choose from.
    """

    owner: Owner
    trash: Trash
    plans: PlanCache
    room: Callable[[list[int]], list[Assignment]]
    placer: Placer | None = None


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
    """One save on one rank. After ``plan``, ``nonce`` is unique to this save and the same on every rank.

    Args:
        request: what to save.
        tools: what outlives this save.
    """

    def __init__(self, request: Request, tools: Tools) -> None:
        self._request = request
        self._tools = tools
        self._final = layout.step_path(request.directory, request.step)
        self._writer = StripedWriter(self._final, thread_count=request.threads, striping="off", placer=tools.placer)
        self._planning = Planning(tools.plans, self._writer)
        self._data: Any = self._planning.planner
        self._plan: Any = None
        self._stage_error: Exception | None = None
        self.nonce = ""
        self._partial = self._final  # until ``plan`` has given this save a name of its own
        self.seconds: dict[str, float] = {}

    def plan(self, peers: Peers, state: dict[str, Any]) -> None:
        """Divide the work; touches no file.

        Raises:
            SaveFailed: on every rank.
        """
        began = time.monotonic()

        def divide(proposals: list[Any]) -> list[Any]:
            nonce = uuid.uuid4().hex
            return [(part, nonce) for part in self._planning.divide(proposals)]

        try:
            part, self.nonce = self._agree(
                peers, "planning", lambda: self._planning.propose(tree.describe(state, peers.rank), peers.rank), divide
            )
        except BaseException:
            self._tools.plans.signature = None  # ranks may have got differently far
            self._tools.plans.local = []
            raise
        self._partial = layout.partial_path(self._request.directory, self._request.step, int(self.nonce, 16) % 10**12)
        self._writer.path = self._partial
        self._plan = self._planning.accept(part)
        self.seconds["plan"] = time.monotonic() - began

    def stage(self, buffers: HostBuffers) -> None:
        """Copy this rank's part to the host; the state may change from here on.

        What goes wrong (a value that cannot be pickled, no memory) is kept for ``write``, where every rank hears of it.
        """
        began = time.monotonic()
        try:
            self._data = buffers.stage(self._data, self._plan.items)
        except Exception as error:
            self._stage_error = error
        self.seconds["stage"] = time.monotonic() - began

    def write(self, peers: Peers) -> Saved:
        """Make room, write this rank's part and, once every rank has, commit.

        Raises:
            SaveFailed: on every rank; the partial step is removed.
            Superseded: on every rank, if a newer round owns the directory; the partial step is removed.
            UsageError: on every rank, if another job does.
        """
        self._agree_on_room(peers)
        began = time.monotonic()

        def local() -> Any:
            if self._stage_error is not None:
                raise self._stage_error
            written = self._writer.write_data(self._plan, self._data)
            written.wait()
            return written.value()

        def commit(results: list[Any]) -> list[Saved]:
            self.seconds["write"] = time.monotonic() - began
            try:
                return [self._commit(results)] * peers.world
            except OSError:
                self._tools.owner.check()  # a newer round clears away what we wrote, and that is not the disk's fault
                raise

        saved: Saved = self._agree(peers, "writing", local, commit, self._discard)
        return saved

    def _agree_on_room(self, peers: Peers) -> None:
        began = time.monotonic()

        def prepare(_answers: list[None]) -> list[Assignment]:
            tools = self._tools
            if tools.owner.claim():
                recover(self._request.directory, tools.trash)
            for left in layout.partials(self._request.directory, self._request.step):
                tools.trash.put(left)  # a failed save of this step could not be discarded
            assigned = tools.room(self._planning.sizes)
            self._partial.mkdir()
            return assigned

        self._writer.assignment = self._agree(peers, "making room for", lambda: None, prepare, self._discard)
        self.seconds["room"] = time.monotonic() - began

    def _agree(
        self,
        peers: Peers,
        doing: str,
        local: Callable[[], Any],
        reduce: Callable[[list[Any]], Any],
        on_failure: Callable[[], None] | None = None,
    ) -> Any:
        what = f"checkpoint of step {self._request.step} not saved"
        try:
            return all_reduce(peers, what, local, reduce, on_failure)
        except RanksFailed as failed:
            if self._tools.placer is not None:
                self._tools.placer.remember(ost for failure in failed.failures for ost in failure.osts)
            for failure in failed.failures:
                if failure.kind is FailureKind.SUPERSEDED:
                    raise Superseded(failure.text) from failed
                if failure.kind is FailureKind.USAGE:
                    raise UsageError(failure.text) from failed
            raise SaveFailed(failed.what, failed.failures, f"while {doing} {self._final}") from failed.__cause__

    def _discard(self) -> None:
        if self._partial.exists():
            self._tools.trash.put(self._partial)
            self._tools.trash.wait()  # the space is needed, e.g. for the next attempt

    def _commit(self, results: list[Any]) -> Saved:
        request, partial, final, writer = self._request, self._partial, self._final, self._writer
        began = time.monotonic()
        writer.details = {
            "step": request.step,
            "round": request.round,
            "meta": request.meta,
            "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
        }
        writer.finish(self._planning.metadata, results)
        if self._tools.placer is not None:
            self._tools.placer.remember(writer.failed)
        written = manifest.read(partial)
        manifest.check_sizes(partial, written)
        manifest.seal(partial, request.step, writer.create_control)
        sync_directory(partial)
        self._tools.owner.check()
        if final.exists():
            # Out of the way for as long as one rename takes; ``recover`` gives it its name back if we die in between.
            former = layout.replaced_path(request.directory, request.step)
            rename(final, former)
            rename(partial, final)
            self._tools.trash.put(former)
        else:
            rename(partial, final)
        self.seconds["commit"] = time.monotonic() - began
        return Saved(step=request.step, path=final, bytes=written.bytes, seconds=dict(self.seconds))
