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

__all__ = ["CHUNK", "Segment", "SummingStream", "check_segments", "file_sum", "read_table", "segments_covering"]

MAGIC = b"ezpzsum1"
_TAIL = struct.Struct("<QQ8s")

# 1 MiB: hashed and handed to the kernel while it is still in the second-level cache.
CHUNK = 1 << 20
# An archive's headers come in pieces of a few bytes; they are gathered up to this size.
SMALL = 1 << 16


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

    def compare(self, found: int, path: Path) -> None:
        """Raise ``CorruptCheckpoint`` unless ``found`` is the sum of these bytes of ``path``."""
        if found != self.sum:
            raise CorruptCheckpoint(
                str(path),
                f"bytes {self.offset}…{self.end} have xxh3 {found:016x}, were written with {self.sum:016x}",
            )


class SummingStream(io.RawIOBase):
    """A write-only stream that sums what passes through it, each byte once.

    With a table it cuts a segment wherever its position is asked for. DCP asks before and after every item, which is
    what makes segments of items; more or fewer questions would only change the size of the segments, never what is
    covered.

    Args:
        path: the file; truncated if it exists, so that a layout given to it beforehand stays.
        table: end the file with a table of sums.

    ``error`` is what the file system said, if it refused a write: torch's archive writer hides it behind a complaint of
    its own about positions.
    """

    def __init__(self, path: Path, *, table: bool) -> None:
        super().__init__()
        self._file = io.FileIO(path, "wb")
        self._small = bytearray()
        self.error: OSError | None = None
        self._table = table
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
        self._position += view.nbytes
        if view.nbytes < SMALL:
            self._part.update(view)
            self._small += view
            if len(self._small) >= SMALL:
                self._drain()
            return view.nbytes
        self._drain()
        for start in range(0, view.nbytes, CHUNK):
            chunk = view[start : start + CHUNK]
            self._part.update(chunk)
            self._put(chunk)
        return view.nbytes

    def _put(self, view: memoryview) -> None:
        done = 0
        try:
            while done < view.nbytes:  # a nearly full disk takes a part first and says so at the next call
                done += self._file.write(view[done:]) or 0
        except OSError as error:
            self.error = error
            raise

    def _drain(self) -> None:
        self._put(memoryview(bytes(self._small)))
        self._small.clear()

    def tell(self) -> int:
        """Bytes written so far; ends a segment."""
        if self._table and self._position > self._cut:
            self._segments.append(Segment(self._cut, self._position - self._cut, self._part.intdigest()))
            self._part.reset()
            self._cut = self._position
        return self._position

    def flush(self) -> None:
        """Nothing: the data reaches the kernel at the latest in ``seal``, and until then nobody may count on it."""

    def close(self) -> None:
        """Nothing: DCP closes before the table is written; ``seal`` or ``abandon`` ends this stream."""

    def seal(self) -> tuple[int, int]:
        """Write the table if there is to be one, sync the file and close it.

        Returns:
            Size in bytes, and the sum: of the table, which has the sum of every byte before it, or of the whole file.

        Raises:
            OSError: as the file system says it; a delayed allocation fails here.
        """
        self.tell()
        digest = self._part.intdigest()
        if self._table:
            body = msgspec.msgpack.encode(self._segments)
            digest = xxhash.xxh3_64_intdigest(body)
            self.write(body + _TAIL.pack(digest, len(body), MAGIC))
        try:
            self._drain()
            os.fsync(self._file.fileno())
        finally:
            self.abandon()
        return self._position, digest

    def abandon(self) -> None:
        """Close the descriptor whatever is still buffered: a full disk must not raise a second time."""
        self._file.close()
        super().close()


def file_sum(path: Path) -> int:
    """xxh3 of a whole file.

    Raises:
        OSError: if it cannot be read.
    """
    digest = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        _feed(digest, file, None, memoryview(bytearray(4 * CHUNK)))
    return digest.intdigest()


def check_segments(path: Path) -> int:
    """Read a file with a table in full and compare every sum.

    Returns:
        The sum of the table.

    Raises:
        CorruptCheckpoint: naming the first bytes that differ.
        OSError: if it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        found = read_table(file, path)
        if found is None:
            raise CorruptCheckpoint(str(path), "has lost its table of sums")
        table, table_sum = found
        file.seek(0)
        buffer = memoryview(bytearray(4 * CHUNK))
        for segment in table:
            digest = xxhash.xxh3_64()
            _feed(digest, file, segment.length, buffer)
            segment.compare(digest.intdigest(), path)
    return table_sum


def _feed(digest: Any, file: io.RawIOBase, length: int | None, buffer: memoryview) -> None:
    left = length
    while left is None or left > 0:
        count = file.readinto(buffer if left is None else buffer[: min(left, buffer.nbytes)])
        if not count:
            return
        digest.update(buffer[:count])
        if left is not None:
            left -= count


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
