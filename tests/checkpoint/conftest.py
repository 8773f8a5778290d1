"""Fixtures: a small training state, and file systems small enough to be full."""

from __future__ import annotations

import ctypes
import json
import os
import sys
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


def consume(write: Callable[[], int]) -> None:
    """Write until it raises."""
    while True:
        write()


class Targets:
    """A Lustre stand-in: a root directory, its targets, and an ``lfs`` on the ``PATH``.

    The root lies on target 0, so files that nobody placed are written there.

    Args:
        scratch: for the program and its configuration.
        mounts: target index -> mount point.
    """

    def __init__(self, scratch: Path, mounts: dict[int, Path]) -> None:
        self.mounts = mounts
        self.root = mounts[0] / "root"
        self.root.mkdir()
        self._file = scratch / "standin.json"
        self.calls = scratch / "calls"
        self.setup(calls=str(self.calls))
        self.program = scratch / "bin" / "lfs"
        self.program.parent.mkdir()
        self.program.write_text(f"#!{sys.executable} -SE\n" + (Path(__file__).parent / "lfs_standin.py").read_text())
        self.program.chmod(0o755)
        self.environ = {
            "LFS_STANDIN": str(self._file),
            "PATH": f"{self.program.parent}{os.pathsep}{os.environ['PATH']}",
        }

    def setup(self, **settings: object) -> None:
        """Write the configuration; see ``lfs_standin.py``."""
        targets = {str(index): str(path) for index, path in self.mounts.items()}
        body = {"root": str(self.root), "targets": targets, "calls": str(self.calls), **settings}
        self._file.write_text(json.dumps(body))

    def fill(self, index: int, leave: int = 0) -> None:
        """Until the kernel says that target ``index`` is full; then give ``leave`` bytes back."""
        with (self.mounts[index] / "filler").open("wb", 0) as file, pytest.raises(OSError, match=r"\[Errno 28\]"):
            consume(lambda: file.write(bytes(4096)))
        os.truncate(self.mounts[index] / "filler", (self.mounts[index] / "filler").stat().st_size - leave)

    def target_of(self, path: Path) -> int:
        """The target that ``path`` really lies on."""
        device = path.stat().st_dev
        return next(index for index, mount in self.mounts.items() if mount.stat().st_dev == device)


@pytest.fixture
def targets(small_disk: Callable[[str, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Targets:
    """Four targets of 6 MiB."""
    made = Targets(tmp_path, {index: small_disk(f"ost{index}", 6 << 20) for index in range(4)})
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    return made
