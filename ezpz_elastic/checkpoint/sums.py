"""xxh3 sums of a file, taken while it is written, and checked while it is read.

Behind the last byte that DCP wrote, a shard carries a table of sums: one per item, so that a reader that needs only
some items (another world size, a part of the state) verifies exactly what it reads, in the same pass. DCP finds items
by offset and length and never looks behind them, so plain ``dcp.load`` is not disturbed. Layout of that tail::

    table   msgpack [[offset, length, sum], …], covering the file from 0 without a gap
    16 B    little endian: xxh3 of the table, length of the table
     8 B    b"ezpzsum1"
"""

from __future__ import annotations

import io
import os
import struct
from bisect import bisect_right
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from ezpz_elastic.checkpoint.errors import CorruptCheckpoint

__all__ = ["CHUNK", "Segment", "SummingStream", "file_sum", "read_table", "segments_covering"]

MAGIC = b"ezpzsum1"
_TAIL = struct.Struct("<QQ8s")

# 1 MiB: hashed twice (file and item) and handed to the kernel while it is still in the second-level cache.
CHUNK = 1 << 20


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """One run of bytes and its sum.

    Args:
        offset: first byte in the file.
        length: number of bytes.
        sum: xxh3 (64 bit) of them.
    """

    offset: int
    length: int
    sum: int

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.offset + self.length


class SummingStream(io.RawIOBase):
    """A write-only stream that sums what passes through it and cuts a segment wherever its position is asked for.

    DCP asks for the position before and after every item, which is what makes segments of items. More or fewer
    questions would only change the size of the segments, never what is covered.

    Args:
        path: the file; truncated if it exists, so that a layout given to it beforehand stays.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._raw = io.FileIO(path, "wb")
        self._file = io.BufferedWriter(self._raw, CHUNK)
        self._whole = xxhash.xxh3_64()
        self._part = xxhash.xxh3_64()
        self._position = 0
        self._cut = 0
        self._segments: list[Segment] = []

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int:
        """Write all of ``data``."""
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, CHUNK):
            chunk = view[start : start + CHUNK]
            self._whole.update(chunk)
            self._part.update(chunk)
            self._file.write(chunk)
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Bytes written so far; ends a segment."""
        if self._position > self._cut:
            self._segments.append(Segment(self._cut, self._position - self._cut, self._part.intdigest()))
            self._part.reset()
            self._cut = self._position
        return self._position

    def flush(self) -> None:
        """Nothing: the data reaches the kernel at the latest in ``seal``, and until then nobody may count on it."""

    def close(self) -> None:
        """Nothing: DCP closes before the table is written; ``seal`` or ``abandon`` ends this stream."""

    def seal(self, *, table: bool) -> tuple[int, int, int]:
        """Write the table if asked to, sync the file and close it.

        Returns:
            Size in bytes, xxh3 of the file, xxh3 of its table (0 without one).

        Raises:
            OSError: as the file system says it; a delayed allocation fails here.
        """
        self.tell()
        table_sum = 0
        if table:
            body = msgspec.msgpack.encode(self._segments)
            table_sum = xxhash.xxh3_64_intdigest(body)
            self.write(body + _TAIL.pack(table_sum, len(body), MAGIC))
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self.abandon()
        return self._position, self._whole.intdigest(), table_sum

    def abandon(self) -> None:
        """Close the descriptor whatever is still buffered: a full disk must not raise a second time."""
        self._raw.close()
        super().close()


def file_sum(path: Path) -> int:
    """xxh3 of a whole file.

    Raises:
        OSError: if it cannot be read.
    """
    digest = xxhash.xxh3_64()
    buffer = memoryview(bytearray(4 * CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.intdigest()


def read_table(file: io.BufferedIOBase | io.RawIOBase, path: Path) -> tuple[tuple[Segment, ...], int] | None:
    """The table of an open file, and the table's own sum; ``None`` if the file carries none.

    Raises:
        CorruptCheckpoint: there is one and it is damaged.
    """
    size = file.seek(0, os.SEEK_END)
    if size < _TAIL.size:
        return None
    file.seek(size - _TAIL.size)
    expected, length, magic = _TAIL.unpack(file.read(_TAIL.size))
    if magic != MAGIC:
        return None
    if length > size - _TAIL.size:
        raise CorruptCheckpoint(str(path), f"table of sums claims {length} bytes in a file of {size}")
    file.seek(size - _TAIL.size - length)
    body = file.read(length)
    found = xxhash.xxh3_64_intdigest(body)
    if found != expected:
        raise CorruptCheckpoint(str(path), f"table of sums has xxh3 {found:016x}, expected {expected:016x}")
    return msgspec.msgpack.decode(body, type=tuple[Segment, ...]), found


def segments_covering(table: tuple[Segment, ...], offset: int, length: int, path: Path) -> tuple[Segment, ...]:
    """The segments that hold ``length`` bytes from ``offset``.

    Raises:
        CorruptCheckpoint: the table does not reach that far.
    """
    first = max(bisect_right(table, offset, key=lambda segment: segment.offset) - 1, 0)
    last = first
    while last < len(table) and table[last].end < offset + length:
        last += 1
    if last >= len(table) or table[first].offset > offset:
        raise CorruptCheckpoint(str(path), f"bytes {offset}…{offset + length} are not in the table of sums")
    return table[first : last + 1]
