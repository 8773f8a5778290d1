"""Where a log's bytes come from: plain files, gz and zst; and what a person is told when they cannot be had."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ezpz_elastic.errors import UsageError

__all__ = ["CHUNK_BYTES", "chunks", "open_log", "packing"]

CHUNK_BYTES = 512 * 1024
"""Small enough to stay in the second-level cache between scanning and counting."""

_GZIP, _ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
"""How compressed files begin, whatever they are called."""
_EXPECTED = "a log file (plain, .gz or .zst)"


def chunks(path: Path) -> Iterator[bytes]:
    """The log's bytes in order, decompressed; a compressed file that is cut short ends where it is cut.

    Args:
        path: the log.

    Raises:
        UsageError: it is missing, a directory, not readable, no regular file, or broken.
    """
    with open_log(path) as file:
        packed = packing(path, file)
        if packed == "gz":
            yield from _unzip(path, file)
        elif packed == "zst":
            yield from _unzstd(path, file)
        else:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


def packing(path: Path, file: BinaryIO) -> str:
    """How an opened log is compressed, by its name or by how it begins: ``gz``, ``zst``, or empty for not at all."""
    begins = file.read(4)
    file.seek(0)
    if path.suffix == ".gz" or begins.startswith(_GZIP):
        return "gz"
    return "zst" if path.suffix in {".zst", ".zstd"} or begins == _ZSTD else ""


def open_log(path: Path) -> BinaryIO:
    """Open a regular file for reading, unbuffered.

    Raises:
        UsageError: with what was wrong, what was expected and what to do.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path} is a directory", expected=_EXPECTED, hint="name one file inside it")
        if not stat.S_ISREG(mode):
            raise UsageError(
                f"{path} is no regular file", expected=_EXPECTED, hint="a pipe cannot be read twice: save it to a file"
            )
        return open(path, "rb", buffering=0)  # noqa: PTH123 (closed by the caller; Path.open buffers)
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist", expected=_EXPECTED, hint="check the path") from error
    except PermissionError as error:
        raise UsageError(f"{path} may not be read", expected=_EXPECTED, hint=f"chmod u+r {path}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be opened: {os.strerror(error.errno or 0)}", expected=_EXPECTED) from error


def _unzip(path: Path, file: BinaryIO) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=file) as unzipped:
            while chunk := unzipped.read1(CHUNK_BYTES):
                yield chunk
    except EOFError:
        return
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path} is no valid gzip file: {error}", expected=_EXPECTED) from error


def _unzstd(path: Path, file: BinaryIO) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise UsageError(
            f"{path} is compressed with zstd", expected="the zstandard package", hint="pip install zstandard"
        ) from error
    try:
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as unzipped:
            while chunk := unzipped.read(CHUNK_BYTES):
                yield chunk
    except zstandard.ZstdError as error:
        raise UsageError(f"{path} is no valid zstd file: {error}", expected=_EXPECTED) from error
