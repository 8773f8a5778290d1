"""``manifest.json`` and ``.complete``: what a step consists of, and the word that it is all there."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from ezpz_elastic import __version__
from ezpz_elastic.checkpoint import layout
from ezpz_elastic.checkpoint.durable import Create, write_file
from ezpz_elastic.checkpoint.errors import CorruptCheckpoint
from ezpz_elastic.checkpoint.sums import check_segments, file_sum

__all__ = ["Complete", "FileEntry", "Manifest", "check_sizes", "check_sums", "read", "seal", "versions", "write"]

FORMAT = 1
SHARD_SUFFIX = ".distcp"


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a step.

    Args:
        name: within the step's directory.
        size: bytes.
        xxh3: 64-bit xxh3, 16 hex digits: of the whole file, or, for a shard (``.distcp``), of the table at its end
            that has the xxh3 of every item (``sums.py``).
        rank: who wrote it; ``None`` for the coordinator's own files.
        osts: the storage targets it was placed on; empty where that was not chosen.
    """

    name: str
    size: int
    xxh3: str
    rank: int | None = None
    osts: tuple[int, ...] = ()


class Manifest(msgspec.Struct, frozen=True):
    """What a step consists of.

    Args:
        files: every file but this one and ``.complete``.
        world_size: ranks that wrote it.
        step: training step; ``None`` when saved by plain ``dcp.save`` with our writer.
        round: the elastic round that wrote it; ``None`` outside of one.
        meta: what the caller wanted remembered; JSON values.
        versions: of the programs that wrote it.
        seconds: how long each part of the save took, seconds.
        format: of this file.
    """

    files: tuple[FileEntry, ...]
    world_size: int
    step: int | None = None
    round: int | None = None
    meta: dict[str, Any] = {}
    versions: dict[str, str] = {}
    seconds: dict[str, float] = {}
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        """Size of the step, bytes, without the manifest itself."""
        return sum(entry.size for entry in self.files)


class Complete(msgspec.Struct, frozen=True):
    """Content of ``.complete``: ties the step to exactly one manifest.

    Args:
        step: training step.
        manifest_xxh3: xxh3 of ``manifest.json``, 16 hex digits.
    """

    step: int | None
    manifest_xxh3: str


def versions() -> dict[str, str]:
    """The versions worth knowing when a step cannot be read one day."""
    import torch  # reading a manifest does not need it

    return {"ezpz_elastic": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def write(directory: Path, manifest: Manifest, create: Create | None = None) -> None:
    """Write ``manifest.json``, durable but for the directory entry."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    write_file(directory / layout.MANIFEST, body, create)


def seal(directory: Path, step: int | None, create: Create | None = None) -> None:
    """Write ``.complete``: from here on the step counts as whole. The caller has made everything else durable."""
    digest = file_sum(directory / layout.MANIFEST)
    body = msgspec.json.encode(Complete(step=step, manifest_xxh3=f"{digest:016x}"))
    write_file(directory / layout.COMPLETE, body + b"\n", create)


def read(directory: Path) -> Manifest:
    """The manifest, checked against ``.complete`` where that is there.

    Raises:
        CorruptCheckpoint: it is missing, unreadable as a manifest, or not the one ``.complete`` speaks of.
        OSError: the file system refuses.
    """
    path = directory / layout.MANIFEST
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        raise CorruptCheckpoint(str(path), "missing") from None
    if not body:
        raise CorruptCheckpoint(str(path), "empty")
    _check_marker(directory, body)
    try:
        return msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptCheckpoint(str(path), f"not a manifest: {error}") from error


def _check_marker(directory: Path, manifest: bytes) -> None:
    path = directory / layout.COMPLETE
    try:
        marker = msgspec.json.decode(path.read_bytes(), type=Complete)
    except FileNotFoundError:
        return
    except msgspec.DecodeError as error:
        raise CorruptCheckpoint(str(path), f"not readable: {error}") from error
    found = f"{xxhash.xxh3_64_intdigest(manifest):016x}"
    if found != marker.manifest_xxh3:
        raise CorruptCheckpoint(
            str(directory / layout.MANIFEST), f"has xxh3 {found}, {layout.COMPLETE} says {marker.manifest_xxh3}"
        )


def check_sizes(directory: Path, manifest: Manifest) -> None:
    """Every file is there with its size; costs one ``stat`` per file.

    Raises:
        CorruptCheckpoint: naming the first file that is not as it was written.
    """
    for entry in manifest.files:
        path = directory / entry.name
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise CorruptCheckpoint(str(path), "missing") from None
        if size != entry.size:
            raise CorruptCheckpoint(str(path), f"has {size} bytes, was written with {entry.size}")


def check_sums(directory: Path, manifest: Manifest, only: tuple[str, ...] | None = None) -> None:
    """Read files in full and compare their sums.

    Args:
        directory: the step.
        manifest: its manifest.
        only: names to check; all of them if ``None``.

    Raises:
        CorruptCheckpoint: naming the first file that differs.
    """
    for entry in manifest.files:
        if only is not None and entry.name not in only:
            continue
        path = directory / entry.name
        found = f"{check_segments(path) if path.suffix == SHARD_SUFFIX else file_sum(path):016x}"
        if found != entry.xxh3:
            raise CorruptCheckpoint(str(path), f"has xxh3 {found}, was written with {entry.xxh3}")
