"""Reading a DCP directory and verifying, in the same pass, every byte that is used."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

from ezpz_elastic.checkpoint import layout, manifest
from ezpz_elastic.checkpoint.errors import CheckpointError, CorruptCheckpoint
from ezpz_elastic.checkpoint.manifest import Manifest
from ezpz_elastic.checkpoint.memory import bytes_of
from ezpz_elastic.checkpoint.sums import CHUNK, Segment, read_table, segments_covering

__all__ = ["ShardFile", "VerifiedReader", "decoding"]

# From this size on an item is read straight into the tensor it is for, when that is one run of host memory.
DIRECT = 1 << 20


@contextmanager
def decoding(path: Path, what: str, vouched: bool) -> Generator[None, None, None]:
    """Around the decoding of an item: bytes that no sum vouches for can raise anything there.

    Args:
        path: the file it is from.
        what: the item.
        vouched: these are the bytes that were saved, so what is raised is no damage.

    Raises:
        CorruptCheckpoint: it could not be decoded.
    """
    try:
        yield
    except (OSError, CheckpointError):
        raise  # the file system, and what is known to be damage already
    except Exception as error:
        if vouched:
            raise
        said = str(error).splitlines()[:1] or ["no text"]
        raise CorruptCheckpoint(str(path), f"{what} cannot be decoded: {type(error).__name__}: {said[0]}") from error


class ShardFile:
    """One open shard whose bytes are checked before anybody gets to see them.

    Args:
        path: the file.
        table_sum: the sum its table must have, 16 hex digits; empty if not known.
    """

    def __init__(self, path: Path, table_sum: str = "") -> None:
        self.path = path
        try:
            self._file = path.open("rb", buffering=0)
        except FileNotFoundError:
            raise CorruptCheckpoint(str(path), "missing") from None
        self._table: tuple[Segment, ...] | None = None
        found = read_table(self._file, path)
        if found is not None:
            self._table, digest = found
            if table_sum and f"{digest:016x}" != table_sum:
                raise CorruptCheckpoint(str(path), f"belongs to another save (table {digest:016x}, not {table_sum})")
        elif table_sum:
            raise CorruptCheckpoint(str(path), "has lost its table of sums")

    @property
    def summed(self) -> bool:
        """Whether this file can be verified at all."""
        return self._table is not None

    def close(self) -> None:
        """Close the descriptor."""
        self._file.close()

    def _read_exactly(self, target: memoryview) -> None:
        done = 0
        while done < target.nbytes:
            count = self._file.readinto(target[done:])
            if not count:
                raise CorruptCheckpoint(str(self.path), f"ends at byte {self._file.tell()}, more was written")
            done += count

    def read(self, offset: int, length: int) -> memoryview:
        """``length`` bytes from ``offset``, verified where the file has sums.

        Raises:
            CorruptCheckpoint: they are not what was written.
        """
        if self._table is None:
            self._file.seek(offset)
            buffer = memoryview(bytearray(length))
            self._read_exactly(buffer)
            return buffer
        covering = segments_covering(self._table, offset, length, self.path)
        start = covering[0].offset
        self._file.seek(start)
        buffer = memoryview(bytearray(covering[-1].end - start))
        self._read_exactly(buffer)
        for segment in covering:
            at = segment.offset - start
            segment.compare(xxhash.xxh3_64_intdigest(buffer[at : at + segment.length]), self.path)
        return buffer[offset - start : offset - start + length]

    def read_direct(self, offset: int, length: int, payload: int, target: memoryview) -> bool:
        """Read the item at ``offset``, its bytes from ``payload`` on straight into ``target``.

        Args:
            offset: of the item in the file.
            length: of the item.
            payload: where in the item the target's bytes begin.
            target: host memory; filled even if the sum then turns out wrong.

        Returns:
            Whether it was done; not if the item is no segment of its own.

        Raises:
            CorruptCheckpoint: the bytes are not what was written.
        """
        if self._table is None:
            return False
        covering = segments_covering(self._table, offset, length, self.path)
        if len(covering) != 1 or covering[0].offset != offset or covering[0].length != length:
            return False
        digest = xxhash.xxh3_64()
        self._file.seek(offset)
        for piece in (
            memoryview(bytearray(payload)),
            target,
            memoryview(bytearray(length - payload - target.nbytes)),
        ):
            for start in range(0, piece.nbytes, CHUNK):
                chunk = piece[start : start + CHUNK]
                self._read_exactly(chunk)
                digest.update(chunk)
        covering[0].compare(digest.intdigest(), self.path)
        return True

    def peek(self, offset: int, length: int) -> io.RawIOBase:
        """The item as a file of its own, unverified: for finding out where in it the tensor's bytes begin."""
        return _Window(self._file, offset, length)


class _Window(io.RawIOBase):
    """A part of an open file."""

    def __init__(self, file: io.RawIOBase, offset: int, length: int) -> None:
        super().__init__()
        self._base, self._offset, self._length, self._at = file, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = origin + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")[: max(self._length - self._at, 0)]
        self._base.seek(self._offset + self._at)
        count = self._base.readinto(view) or 0
        self._at += count
        return count


class VerifiedReader(FileSystemReader):  # type: ignore[misc]
    """Reads a DCP directory; verifies what it reads where the directory has sums.

    Args:
        path: the directory. Without ``manifest.json`` (a plain DCP directory) shards that carry sums are still
            verified, others are read as they are.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._manifest: Manifest | None = None

    @property
    def verified(self) -> bool:
        """Whether this directory says what it should contain."""
        return self._read_manifest() is not None

    def _read_manifest(self) -> Manifest | None:
        if self._manifest is None and (Path(self.path) / layout.MANIFEST).exists():
            self._manifest = manifest.read(Path(self.path))
        return self._manifest

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Forget the directory read before."""
        super().reset(checkpoint_id)
        self._manifest = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """DCP's metadata, unpickled only if its sum is right."""
        known = self._read_manifest()
        entry = next((e for e in known.files if e.name == layout.METADATA), None) if known is not None else None
        if entry is None:
            with decoding(Path(self.path) / layout.METADATA, "the metadata", vouched=False):
                return super().read_metadata(*args, **kwargs)
        path = Path(self.path) / layout.METADATA
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            raise CorruptCheckpoint(str(path), "missing") from None
        found = f"{xxhash.xxh3_64_intdigest(body):016x}"
        if found != entry.xxh3:
            raise CorruptCheckpoint(str(path), f"has xxh3 {found}, was written with {entry.xxh3}")
        metadata = pickle.loads(body)
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def open(self, name: str) -> ShardFile:
        """One shard of this directory, bound to the manifest's word about it."""
        known = self._read_manifest()
        entry = next((e for e in known.files if e.name == name), None) if known is not None else None
        if known is not None and entry is None:
            raise CorruptCheckpoint(str(Path(self.path) / name), "is not in the manifest")
        return ShardFile(Path(self.path) / name, entry.xxh3 if entry is not None else "")

    def read_data(self, plan: Any, planner: Any) -> Future[None]:
        """Read, verify and hand over every item of ``plan``, each file in the order of its bytes.

        Raises:
            CorruptCheckpoint: the file, and what is wrong with it. Tensors handed over before stay overwritten.
        """
        by_file: dict[str, list[Any]] = {}
        for request in plan.items:
            by_file.setdefault(self.storage_data[request.storage_index].relative_path, []).append(request)
        for name in sorted(by_file):
            shard = self.open(name)
            try:
                self._read_file(shard, by_file[name], planner)
            finally:
                shard.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_file(self, shard: ShardFile, requests: Iterable[Any], planner: Any) -> None:
        for request in sorted(requests, key=lambda r: int(self.storage_data[r.storage_index].offset)):
            info = self.storage_data[request.storage_index]
            if request.type == LoadItemType.BYTE_IO:
                with decoding(shard.path, request.storage_index.fqn, shard.summed):
                    planner.load_bytes(request, io.BytesIO(self._decode(shard, request, info).read()))
                continue
            target = planner.resolve_tensor(request).detach()
            if not self._read_direct(shard, request, info, target):
                stored = self._load(shard, request, info)
                part = narrow_tensor_by_index(stored, request.storage_offsets, request.lengths)
                if part.size() != target.size():
                    raise CorruptCheckpoint(
                        str(shard.path),
                        f"{request.storage_index.fqn} has shape {tuple(part.size())}, not {tuple(target.size())}",
                    )
                target.copy_(part)
            planner.commit_tensor(request, target)

    def _load(self, shard: ShardFile, request: Any, info: Any) -> torch.Tensor:
        with decoding(shard.path, request.storage_index.fqn, shard.summed):
            return torch.load(self._decode(shard, request, info), map_location="cpu", weights_only=True)

    def _decode(self, shard: ShardFile, request: Any, info: Any) -> io.BytesIO:
        raw = io.BytesIO(shard.read(info.offset, info.length))
        if not info.transform_descriptors:
            return raw
        return io.BytesIO(self.transforms.transform_load_stream(request, info.transform_descriptors, raw).read(-1))

    def _read_direct(self, shard: ShardFile, request: Any, info: Any, target: torch.Tensor) -> bool:
        """Skip the intermediate tensor where the saved bytes are the target's bytes, one to one."""
        size = target.numel() * target.element_size()
        if (
            size < DIRECT
            or not shard.summed
            or info.transform_descriptors
            or target.device.type != "cpu"
            or not target.is_contiguous()
            or any(request.storage_offsets)
        ):
            return False
        payload = _payload(shard.peek(info.offset, info.length), target, size)
        if payload is None or payload + size > info.length:
            return False
        return shard.read_direct(info.offset, info.length, payload, bytes_of(target))


def _payload(item: io.RawIOBase, target: torch.Tensor, size: int) -> int | None:
    """Where in a saved tensor its bytes begin, if they are exactly ``target``'s bytes; else ``None``.

    The archive is not verified yet, so whatever goes wrong here is left to the path that verifies first.
    """
    try:
        with torch.serialization.skip_data():
            stored = torch.load(item, map_location="cpu", weights_only=True)
        if (
            stored.dtype != target.dtype
            or stored.size() != target.size()
            or not stored.is_contiguous()
            or stored.storage_offset() != 0
            or stored.untyped_storage().nbytes() != size
        ):
            return None
        item.seek(0)
        return int(torch._C.PyTorchFileReader(item).get_record_offset("data/0"))
    except Exception:
        return None
