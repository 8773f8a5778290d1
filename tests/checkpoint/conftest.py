"""Fixtures: a small training state, and file systems small enough to be full."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

libc = ctypes.CDLL(None, use_errno=True)


def mount_tmpfs(path: Path, size: int) -> None:
    """A tmpfs of ``size`` bytes at ``path``.

    Raises:
        PermissionError: this process may not mount.
    """
    path.mkdir(parents=True, exist_ok=True)
    if libc.mount(b"tmpfs", str(path).encode(), b"tmpfs", 0, f"size={size}".encode()) != 0:
        code = ctypes.get_errno()
        raise PermissionError(code, os.strerror(code), str(path))


def unmount(path: Path) -> None:
    """Lazily, so that a descriptor left open by a failed test does not keep the mount."""
    libc.umount2(str(path).encode(), 2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """``small_disk(name, bytes)`` mounts a tmpfs; where mounting is not permitted, fails in CI and skips elsewhere."""
    mounted: list[Path] = []

    def make(name: str, size: int) -> Path:
        path = tmp_path / name
        try:
            mount_tmpfs(path, size)
        except PermissionError as error:
            if os.environ.get("CI", "").lower() == "true":
                raise
            pytest.skip(f"this process may not mount a tmpfs ({error}); run as root to test a full disk for real")
        mounted.append(path)
        return path

    yield make
    for path in reversed(mounted):
        unmount(path)
