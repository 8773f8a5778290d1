"""DCP storage that sums while it writes and verifies while it reads.

``StripedWriter`` and ``VerifiedReader`` are what DCP's own ``FileSystemWriter`` and ``FileSystemReader`` are, and can
be passed to plain ``dcp.save`` and ``dcp.load``. The directory they write is a DCP directory.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import queue
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs
from torch.distributed.checkpoint.filesystem import (
    DEFAULT_SUFFIX,
    FileSystem,
    FileSystemWriter,
    _StoragePrefix,
    _write_files_from_queue,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ezpz_elastic.checkpoint import layout, manifest
from ezpz_elastic.checkpoint.attempts import Attempts
from ezpz_elastic.checkpoint.durable import CREATE_LIMIT, sync_directory
from ezpz_elastic.checkpoint.errors import TARGET_ERRNOS
from ezpz_elastic.checkpoint.manifest import FileEntry, Manifest
from ezpz_elastic.checkpoint.placer import Assignment, Placer, estimate, estimate_items, placer_for
from ezpz_elastic.checkpoint.reader import VerifiedReader
from ezpz_elastic.checkpoint.striping import Placement
from ezpz_elastic.checkpoint.sums import SummingStream
from ezpz_elastic.checkpoint.threads import start

__all__ = ["StripedWriter", "VerifiedReader"]


class SummingFileSystem(FileSystem):  # type: ignore[misc]
    """DCP's local file system, with sums and durable files.

    DCP syncs ``.metadata`` before its buffer reaches the kernel; files made here are synced when they are sealed.
    """

    def __init__(self) -> None:
        self.written: dict[str, FileEntry] = {}
        self.create: Callable[[Path], None] | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[Any, None, None]:
        """A stream on ``path``; for ``"wb"`` one that leaves a sealed, summed file behind, or none."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        target = Path(path)
        if self.create is not None:
            self.create(target)
        summing = SummingStream(target, table=target.suffix == DEFAULT_SUFFIX)
        try:
            yield summing
            size, digest = summing.seal()
        except BaseException as error:
            summing.abandon()
            target.unlink(missing_ok=True)
            if summing.error is not None and error is not summing.error:
                raise summing.error from None
            raise
        name = target.name.removesuffix(".tmp")
        self.written[name] = FileEntry(name=name, size=size, xxh3=f"{digest:016x}")


@dataclass(frozen=True)
class SummedResult(WriteResult):  # type: ignore[misc]
    """DCP's result of one item, with what the coordinator must know of the file it went to.

    Args:
        entry: of the file.
        failed: targets that refused the file before it found its place.
    """

    entry: FileEntry | None = None
    failed: tuple[int, ...] = ()


@dataclass
class PlacedPrefix(_StoragePrefix):  # type: ignore[misc]
    """DCP's word to a rank what its files are called, with ours where they go."""

    assignment: Assignment = field(default_factory=Assignment)


class StripedWriter(FileSystemWriter):  # type: ignore[misc]
    """Writes a DCP directory with sums and a manifest, each file on a storage target that has room for it.

    Args:
        path: the directory.
        thread_count: files per rank, each written by a thread of its own.
        striping: ``"auto"`` places every file by name on Lustre; ``"off"`` leaves it to the file system; a number is
            the stripe count of every shard.
        placer: places the files; made from ``striping`` if not given.

    ``details`` is what the manifest shall say beyond files and versions.

    Raises:
        UsageError: ``striping`` is none of these.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        thread_count: int = 1,
        striping: str | int = "auto",
        placer: Placer | None = None,
    ) -> None:
        # DCP would sync a stream it has not flushed; our file system syncs when it seals.
        super().__init__(path, thread_count=thread_count, sync_files=False)
        self.fs = SummingFileSystem()
        self.details: dict[str, Any] = {}
        self.failed: set[int] = set()
        self.assignment = Assignment()
        self.world = 1
        self._striping = striping
        self._placer = placer
        self._asked = placer is not None

    @property
    def placer(self) -> Placer | None:
        """Places the files of this directory; looked for once, because it costs a program call."""
        if not self._asked:
            self._placer = placer_for(Path(self.path), self._striping)
            self._asked = True
        return self._placer

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Give every rank its file names and, on Lustre, its targets (coordinator)."""
        named = self.name_files(plans)
        if self.placer is None:
            return named
        assigned = self.placer.assign([estimate(plan) for plan in plans], self.thread_count, self.placer.table())
        self.assignment = assigned[0]
        return [
            dataclasses.replace(plan, storage_data=PlacedPrefix(plan.storage_data.prefix, assignment))
            for plan, assignment in zip(named, assigned, strict=True)
        ]

    def name_files(self, plans: list[Any]) -> list[Any]:
        """Give every rank its file names only."""
        self.world = len(plans)
        return list(super().prepare_global_plan(plans))

    def write_data(self, plan: Any, planner: Any) -> Future[list[WriteResult]]:
        """Write this rank's files.

        Raises:
            ShardWriteError: one could not be written on any target that was tried.
        """
        if isinstance(plan.storage_data, PlacedPrefix):
            self.assignment = plan.storage_data.assignment
        done: Future[list[WriteResult]] = super().write_data(plan, planner)
        return done

    def _write_data(self, planner: Any, file_queue: queue.Queue[Any]) -> Future[list[WriteResult]]:
        jobs: list[tuple[Path, str, Sequence[Any], int]] = []
        while not file_queue.empty():
            path, name, items = file_queue.get_nowait()
            if items:  # a rank that owns nothing of the state needs no file
                jobs.append((path, name, items, len(jobs)))
        outcomes: list[list[WriteResult] | Exception] = [[] for _ in jobs]

        def write(job: tuple[Path, str, Sequence[Any], int]) -> None:
            try:
                outcomes[job[-1]] = self._write_file(planner, *job)
            except Exception as error:
                outcomes[job[-1]] = error

        workers = [start(functools.partial(write, job), f"checkpoint write {job[1]}") for job in jobs[1:]]
        for job in jobs[:1]:
            write(job)
        for worker in workers:
            if worker is not None:
                worker.join()
        written: list[WriteResult] = []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
            written += outcome
        done: Future[list[WriteResult]] = Future()
        done.set_result(written)
        return done

    def _write_file(self, planner: Any, path: Path, name: str, items: Sequence[Any], number: int) -> list[WriteResult]:
        """One file, on another target if one fails under it."""
        shards = self.assignment.shards
        attempts = Attempts(
            self.placer,
            path,
            self.rank or 0,
            estimate_items(items),
            shards[number] if number < len(shards) else Placement(),
            self.assignment.avoid,
        )
        while True:
            try:
                attempts.create()
                written = self._write_once(planner, path, name, items)
                break
            except OSError as error:
                attempts.after(error)
        entry = structs.replace(self.fs.written[name], osts=attempts.placement.osts)
        return [
            SummedResult(r.index, r.size_in_bytes, r.storage_data, entry=entry, failed=attempts.failed) for r in written
        ]

    def _write_once(self, planner: Any, path: Path, name: str, items: Sequence[Any]) -> list[WriteResult]:
        # DCP's own threads lose the exception of all but one of them, so each file is a call of its own.
        single: queue.Queue[Any] = queue.Queue()
        single.put((path, name, items))
        results: queue.Queue[list[WriteResult]] = queue.Queue()
        _write_files_from_queue(
            create_stream=self.fs.create_stream,
            file_queue=single,
            result_queue=results,
            planner=planner,
            transforms=self.transforms,
            inflight_threshhold=self.per_thread_copy_ahead,
            use_fsync=False,
            thread_count=self.thread_count,
            serialization_format=self.serialization_format,
        )
        return results.get_nowait()

    def finish(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        """Write ``.metadata`` and ``manifest.json``; everything but the name of the directory is durable after it."""
        entries: dict[str, FileEntry] = {}
        for rank, part in enumerate(results):
            for result in part:
                entry = getattr(result, "entry", None)
                if entry is not None:
                    entries[entry.name] = structs.replace(entry, rank=rank)
                    self.failed.update(result.failed)
        plain = [[WriteResult(r.index, r.size_in_bytes, r.storage_data) for r in part] for part in results]
        self._write_metadata(metadata, plain)
        entries[layout.METADATA] = self.fs.written[layout.METADATA]
        body = Manifest(
            files=tuple(entries[name] for name in sorted(entries)),
            world_size=self.world,
            versions=manifest.versions(),
            **self.details,
        )
        manifest.write(Path(self.path), body, self.create_control)
        sync_directory(Path(self.path))

    def _write_metadata(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        for attempt in range(CREATE_LIMIT):
            self.fs.create = functools.partial(self.create_control, attempt=attempt)
            try:
                super().finish(metadata, results)
                return
            except OSError as error:
                if self.placer is None or attempt + 1 == CREATE_LIMIT or error.errno not in TARGET_ERRNOS:
                    raise
            finally:
                self.fs.create = None

    def create_control(self, path: Path, attempt: int) -> None:
        """Create one of the coordinator's small files where there is room."""
        if self.placer is not None:
            self.placer.create_control(path, self.assignment.control, attempt)
