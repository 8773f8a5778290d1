"""``CheckpointManager``: save, restore, and what lies between."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from ezpz_elastic.checkpoint import facts, layout, manifest, preflight, steps
from ezpz_elastic.checkpoint.background import SaveHandle, connection
from ezpz_elastic.checkpoint.errors import FailureKind, NoSpace, NoUsableCheckpoint, RanksFailed, Superseded
from ezpz_elastic.checkpoint.owner import Owner
from ezpz_elastic.checkpoint.peers import Alone, Peers, StorePeers, all_reduce, foreground
from ezpz_elastic.checkpoint.placer import Assignment, Placer, check_striping, placer_for
from ezpz_elastic.checkpoint.planning import PlanCache
from ezpz_elastic.checkpoint.restorer import Damaged, load_step
from ezpz_elastic.checkpoint.retention import doomed
from ezpz_elastic.checkpoint.saver import Request, Save, Saved, Tools
from ezpz_elastic.checkpoint.staging import HostBuffers
from ezpz_elastic.checkpoint.steps import StepKind, StepState, Trash
from ezpz_elastic.errors import UsageError

__all__ = ["CheckpointManager"]

_log = logging.getLogger(__name__)

# Quarantined steps are evidence, not an archive.
KEEP_QUARANTINED = 2

# What the decision before this life asks of it, joined by commas; one of them is for whoever keeps checkpoints.
CHORES = "EZPZ_CHORES"
PRUNE = "prune_checkpoints"


class CheckpointManager:
    """Checkpoints of one job in one directory that all its ranks see.

    Every rank makes the same calls in the same order; with a process group they are collective, without one the
    process is alone. Nothing here needs an agent.

    Args:
        directory: where the steps go; created by the first save.
        keep_last: how many of the newest steps to keep, at least 1.
        keep_every: also keep every step that is a multiple of this.
        prune_on_quota: after a life that ended because a quota was used up or something might not be written, remove
            all but so many of the newest steps, ``keep_every`` or not, once one is restored; ``None``: such a failure
            deletes nothing.
        striping: ``"auto"`` places every shard on a Lustre target with room, ``"off"`` leaves it to the file system, a
            number is the stripe count of every shard; without effect elsewhere than on Lustre.
        threads: files that each rank writes at the same time.
        preflight: refuse a save that has no room before its first byte, instead of when the disk is full.
        read_only: only restore: no claim to the directory, so that a job that writes there is not disturbed; damaged
            steps are passed over and stay where they are.
        fence: tells whether this process's elastic round is still the current one; asked right before a commit.
        process_group: the ranks; ``None`` for the default group.
        timeout: how long an asynchronous save waits for another rank; torch's default for collectives.
        environ: where the round (``EZPZ_ROUND``) and the run id come from.

    Raises:
        UsageError: a number is less than 1, ``striping`` is none of these, or ``directory`` is a file.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep_last: int = 2,
        *,
        keep_every: int | None = None,
        prune_on_quota: int | None = None,
        striping: str | int = "auto",
        threads: int = 1,
        preflight: bool = True,
        read_only: bool = False,
        fence: Callable[[], bool] | None = None,
        process_group: Any = None,
        timeout: timedelta = timedelta(minutes=30),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if keep_last < 1:
            raise UsageError(f"keep_last is {keep_last}", expected="at least 1")
        if keep_every is not None and keep_every < 1:
            raise UsageError(f"keep_every is {keep_every}", expected="at least 1, or None")
        if prune_on_quota is not None and prune_on_quota < 1:
            raise UsageError(f"prune_on_quota is {prune_on_quota}", expected="at least 1, or None")
        if threads < 1:
            raise UsageError(f"threads is {threads}", expected="at least 1")
        check_striping(striping)
        self.directory = Path(directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise UsageError(f"checkpoint directory {self.directory} is a file", expected="a directory")
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._make_room = prune_on_quota if PRUNE in environ.get(CHORES, "").split(",") else None
        self._threads = threads
        self._group = process_group
        self._striping = striping
        self._preflight = preflight
        self._read_only = read_only
        self._owner = Owner(self.directory, fence, environ, self._create)
        self._trash = Trash(self.directory)
        self._buffers = HostBuffers()
        self._plans = PlanCache()
        self._placer: Placer | None = None
        self._placer_known = False
        self._pending: SaveHandle | None = None
        self._timeout = timeout
        self._store: Any = None

    @facts.busy()
    def save(self, step: int, state: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> Path:
        """Make ``state`` durable as ``step``; returns when it is.

        Args:
            step: training step, 0 or more.
            state: name -> module, optimizer, ``Stateful``, tensor or plain value. Values that are not sharded and have
                the same name on every rank are one value: give each rank a name of its own where they differ.
            meta: JSON values to remember with the step.

        Returns:
            The step's directory.

        Raises:
            SaveFailed: on every rank, whichever failed; the step before is untouched.
            Superseded: on every rank; a newer round owns the directory.
            UsageError: on every rank; an argument is wrong, or another job writes to the directory.
        """
        request = self._request(step, meta)
        self.wait()
        peers = foreground(self._group)
        save = Save(request, self._tools())
        save.plan(peers, dict(state))
        saved = save.write(peers)
        self._after(peers, saved)
        return saved.path

    @facts.busy()
    def save_async(self, step: int, state: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> SaveHandle:
        """Copy ``state`` to host memory and make it durable beside the training.

        What the caller waits for is the save before (``drain``, if that is still running), the division of the work
        (``plan``) and the copy (``stage``); ``handle.seconds`` has each, and ``total`` once it is durable. The writing
        uses the process group's store and none of its collectives.

        Args:
            step: as for ``save``.
            state: as for ``save``; may be changed as soon as this returns.
            meta: as for ``save``.

        Raises:
            SaveFailed: on every rank; this save could not begin, or the one before did not become durable.
            Superseded: on every rank; a newer round owns the directory.
            UsageError: on every rank; as for ``save``.
        """
        began = time.monotonic()
        request = self._request(step, meta)
        self.wait()
        drained = time.monotonic() - began
        peers = foreground(self._group)
        save = Save(request, self._tools())
        save.seconds["drain"] = drained
        save.plan(peers, dict(state))
        save.stage(self._buffers)
        beside = self._beside(peers, save.nonce)

        def work() -> Saved:
            saved = save.write(beside)
            self._after(beside, saved)
            return saved

        self._pending = SaveHandle(step, peers.rank, work, began, save.seconds)
        return self._pending

    @facts.busy()
    def wait(self) -> None:
        """Until the asynchronous save that is under way, if any, is durable.

        Raises:
            SaveFailed: on every rank; it did not become durable.
            Superseded: on every rank; a newer round owns the directory.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    @facts.busy()
    def restore(self, state: dict[str, Any]) -> int | None:
        """Load the newest step that verifies.

        Every rank gets the same step. A step that any rank finds damaged is moved to ``step-<N>.corrupt`` with the
        reason, and the one before it is tried; what a damaged step had already loaded is overwritten by that.

        Args:
            state: as for ``save``; modules, optimizers, ``Stateful``s and tensors are loaded in place, plain values
                are replaced in this dict.

        Returns:
            The step, or ``None`` where there is no checkpoint at all.

        Raises:
            NoUsableCheckpoint: on every rank; there are checkpoints and none verifies.
            UsageError: on every rank; the step does not fit ``state``, or another job writes to the directory.
            RanksFailed: on every rank; the file system failed, which says nothing about the steps.
        """
        self.wait()
        peers = foreground(self._group)
        began = time.monotonic()
        rejected: list[tuple[str, str]] = []
        while True:
            chosen = self._choose(peers, rejected)
            if chosen is None:
                return None
            try:
                load_step(peers, chosen.path, state)
            except Damaged as damaged:
                self._set_aside(peers, chosen, damaged.reason, rejected)
                continue
            if peers.rank == 0:
                seconds = round(time.monotonic() - began, 6)
                verified = chosen.kind is StepKind.WHOLE
                if not verified:
                    _log.warning("%s was written by plain DCP: restored without verification", chosen.path)
                facts.tell(
                    "checkpoint_restored", step=chosen.step, path=str(chosen.path), seconds=seconds, verified=verified
                )
                facts.tell("span", name="load", seconds=seconds)
                if self._make_room is not None and not self._read_only:
                    _log.warning("a quota was used up: %s keeps its %d newest steps", self.directory, self._make_room)
                    self._prune(self._make_room)
                    self._make_room = None
            return chosen.step

    def latest(self) -> Path | None:
        """The newest whole step's directory, by its names and sizes; no rank talks to another."""
        for step, path in layout.steps(self.directory):
            if steps.inspect(step, path).kind is StepKind.WHOLE:
                return path
        return None

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """What was remembered with a step; no rank talks to another.

        Args:
            step: which; the newest whole one if ``None``.

        Raises:
            UsageError: there is no such step.
            CorruptCheckpoint: its manifest is damaged.
        """
        path = self.latest() if step is None else layout.step_path(self.directory, step)
        if path is None or not path.is_dir():
            raise UsageError(f"no step {'at all' if step is None else step} in {self.directory}")
        return dict(manifest.read(path).meta)

    def close(self) -> None:
        """Finish what runs in the background and give up the directory; raises like ``wait``."""
        try:
            self.wait()
        finally:
            self._trash.wait()
            self._owner.release()

    def _beside(self, peers: Peers, nonce: str) -> Peers:
        if peers.world == 1:
            return Alone()
        if self._store is None:
            self._store = connection(self._group)
        return StorePeers(self._store, peers.rank, peers.world, f"ezpz-checkpoint/{nonce}", self._timeout)

    def _request(self, step: int, meta: Mapping[str, Any] | None) -> Request:
        if self._read_only:
            raise UsageError(f"{self.directory} was opened read-only", expected="a manager without read_only=True")
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise UsageError(f"step is {step!r}", expected="an integer, 0 or more")
        remembered = dict(meta or {})
        try:
            msgspec.json.encode(remembered)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"meta cannot be written as JSON: {error}", expected="numbers, strings, lists, dicts"
            ) from error
        return Request(self.directory, step, remembered, self._owner.round, self._threads)

    def _tools(self) -> Tools:
        return Tools(self._owner, self._trash, self._plans, self._room, self._where())

    def _where(self) -> Placer | None:
        """The placer, looked for at the first save, because it costs a program call."""
        if not self._placer_known:
            self._placer = placer_for(self.directory, self._striping)
            self._placer_known = True
        return self._placer

    def _create(self, path: Path, attempt: int) -> None:
        placer = self._where()
        if placer is not None:
            placer.create_control(path, placer.control(), attempt)

    def _room(self, sizes: list[int]) -> list[Assignment]:
        if not self._preflight:
            sizes = [0] * len(sizes)
        try:
            return self._check(sizes)
        except NoSpace:
            self._trash.wait()  # what retention is still removing may be what is missing
            return self._check(sizes)

    def _check(self, sizes: list[int]) -> list[Assignment]:
        def reclaimable() -> int:
            return sum([state.manifest.bytes for state in self._inspect() if state.manifest is not None][1:])

        return preflight.check(self.directory, self._where(), sizes, self._threads, reclaimable)

    def _inspect(self) -> list[StepState]:
        return [steps.inspect(step, path) for step, path in layout.steps(self.directory)]

    def _after(self, peers: Peers, saved: Saved) -> None:
        facts.durable(saved.step)
        if peers.rank == 0:
            facts.tell(
                "checkpoint_saved",
                step=saved.step,
                path=str(saved.path),
                bytes=saved.bytes,
                seconds=round(sum(saved.seconds.values()), 6),
                parts={name: round(value, 6) for name, value in saved.seconds.items()},
            )
            self._prune(self._keep_last, self._keep_every)

    def _prune(self, keep_last: int, keep_every: int | None = None) -> None:
        try:
            self._owner.check()
            found = self._inspect()
            good = [state.step for state in found if state.kind is StepKind.WHOLE]
            for step in doomed([s.step for s in found], good, keep_last, keep_every):
                self._trash.put(layout.step_path(self.directory, step))
            for _, path in layout.quarantined(self.directory)[KEEP_QUARANTINED:]:
                self._trash.put(path)
        except (OSError, Superseded) as error:  # nothing is lost by it; the next save prunes again
            _log.warning("old steps in %s were not removed: %s", self.directory, error)

    def _choose(self, peers: Peers, rejected: list[tuple[str, str]]) -> StepState | None:
        """The newest step that looks whole, the same on every rank; steps that do not are set aside on the way.

        Raises:
            NoUsableCheckpoint: there are steps, and none is left.
        """

        def look(_answers: list[None]) -> list[Any]:
            if not self._read_only and self.directory.is_dir() and self._owner.claim():
                steps.recover(self.directory, self._trash)
            for step, path in layout.steps(self.directory):
                if path.name in {name for name, _ in rejected}:
                    continue  # read only: it stayed where it is
                state = steps.inspect(step, path)
                if state.kind is not StepKind.BROKEN:
                    return [state] * peers.world
                self._quarantine(state, state.reason, rejected)
            aside = {name for name, _ in rejected}
            for _, path in layout.quarantined(self.directory):
                if path.name not in aside:
                    rejected.append((path.name, _reason(path)))
            return [tuple(rejected)] * peers.world

        try:
            answer = all_reduce(peers, f"looking for checkpoints in {self.directory}", lambda: None, look)
        except RanksFailed as failed:
            _raise_usage(failed)
            raise
        if isinstance(answer, StepState):
            return answer
        if answer:
            raise NoUsableCheckpoint(str(self.directory), answer)
        return None

    def _set_aside(self, peers: Peers, state: StepState, reason: str, rejected: list[tuple[str, str]]) -> None:
        def move(_answers: list[None]) -> list[None]:
            self._quarantine(state, reason, rejected)
            return [None] * peers.world

        all_reduce(peers, f"quarantining {state.path}", lambda: None, move)

    def _quarantine(self, state: StepState, reason: str, rejected: list[tuple[str, str]]) -> None:
        if self._read_only:
            _log.warning("checkpoint %s does not verify and is passed over: %s", state.path, reason)
            rejected.append((state.path.name, reason))
            return
        target = steps.quarantine(state.step, state.path, reason, self._trash, self._create)
        rejected.append((target.name, reason))
        facts.tell("checkpoint_quarantined", step=state.step, path=str(target), reason=reason)


def _reason(path: Path) -> str:
    try:
        return (path / layout.REASON).read_text().strip()
    except FileNotFoundError:
        return "no reason recorded"


def _raise_usage(failed: RanksFailed) -> None:
    for failure in failed.failures:
        if failure.kind is FailureKind.USAGE:
            raise UsageError(failure.text) from failed
        if failure.kind is FailureKind.SUPERSEDED:
            raise Superseded(failure.text) from failed
