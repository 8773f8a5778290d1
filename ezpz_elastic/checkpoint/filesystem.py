"""DCP storage that sums while it writes and verifies while it reads.

``StripedWriter`` and ``VerifiedReader`` are what DCP's own ``FileSystemWriter`` and ``FileSystemReader`` are, and can
be passed to plain ``dcp.save`` and ``dcp.load``. The directory they write is a DCP directory.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs
from torch.distributed.checkpoint.filesystem import (
    DEFAULT_SUFFIX,
    FileSystem,
    FileSystemWriter,
    _write_files_from_queue,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ezpz_elastic.checkpoint import layout, manifest
from ezpz_elastic.checkpoint.durable import sync_directory
from ezpz_elastic.checkpoint.errors import ShardWriteError
from ezpz_elastic.checkpoint.manifest import FileEntry, Manifest
from ezpz_elastic.checkpoint.reader import VerifiedReader
from ezpz_elastic.checkpoint.sums import SummingStream

__all__ = ["StripedWriter", "VerifiedReader"]


class SummingFileSystem(FileSystem):  # type: ignore[misc]
    """DCP's local file system, with sums and durable files.

    DCP syncs ``.metadata`` before its buffer reaches the kernel; files made here are synced when they are sealed.
    """

    def __init__(self) -> None:
        self.written: dict[str, FileEntry] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[Any, None, None]:
        """A stream on ``path``; for ``"wb"`` one that leaves a sealed, summed file behind, or none."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        target = Path(path)
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
    """DCP's result of one item, with what the coordinator must know of the file it went to."""

    entry: FileEntry | None = None


class StripedWriter(FileSystemWriter):  # type: ignore[misc]
    """Writes a DCP directory with sums and a manifest.

    Args:
        path: the directory.
        thread_count: files per rank, each written by a thread of its own.
        details: what the manifest shall say beyond files and versions; set by the manager.
    """

    def __init__(self, path: str | os.PathLike[str], *, thread_count: int = 1) -> None:
        # DCP would sync a stream it has not flushed; our file system syncs when it seals.
        super().__init__(path, thread_count=thread_count, sync_files=False)
        self.fs = SummingFileSystem()
        self.details: dict[str, Any] = {}
        self._plans = 1

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Give every rank its file names (coordinator)."""
        self._plans = len(plans)
        return list(super().prepare_global_plan(plans))

    def _write_data(self, planner: Any, file_queue: queue.Queue[Any]) -> Future[list[WriteResult]]:
        jobs = []
        while not file_queue.empty():
            path, name, items = file_queue.get_nowait()
            if items:  # a rank that owns nothing of the state needs no file
                jobs.append((path, name, items))
        if len(jobs) <= 1:
            parts = [self._write_one(planner, *job) for job in jobs]
        else:
            with ThreadPoolExecutor(max(self.thread_count, 1), thread_name_prefix="checkpoint-write") as pool:
                parts = list(pool.map(lambda job: self._write_one(planner, *job), jobs))
        done: Future[list[WriteResult]] = Future()
        done.set_result([result for part in parts for result in part])
        return done

    def _write_one(self, planner: Any, path: Path, name: str, items: Sequence[Any]) -> list[WriteResult]:
        """One file; DCP's own threads lose the exception of all but one of them, so each file is one call here."""
        single: queue.Queue[Any] = queue.Queue()
        single.put((path, name, items))
        results: queue.Queue[Any] = queue.Queue()
        try:
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
        except OSError as error:
            raise ShardWriteError(error, str(path)) from error
        entry = self.fs.written[name]
        return [
            SummedResult(index=r.index, size_in_bytes=r.size_in_bytes, storage_data=r.storage_data, entry=entry)
            for r in results.get_nowait()
        ]

    def finish(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        """Write ``.metadata`` and ``manifest.json``; everything but the name of the directory is durable after it."""
        entries: dict[str, FileEntry] = {}
        for rank, part in enumerate(results):
            for result in part:
                entry = getattr(result, "entry", None)
                if entry is not None:
                    entries[entry.name] = structs.replace(entry, rank=rank)
        plain = [[WriteResult(r.index, r.size_in_bytes, r.storage_data) for r in part] for part in results]
        super().finish(metadata, plain)
        entries[layout.METADATA] = self.fs.written[layout.METADATA]
        body = Manifest(
            files=tuple(entries[name] for name in sorted(entries)),
            world_size=self._plans,
            versions=manifest.versions(),
            **self.details,
        )
        manifest.write(Path(self.path), body)
        sync_directory(Path(self.path))
