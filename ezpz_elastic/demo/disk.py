"""A disk that can be full: a small tmpfs of the demo's own, else a limit on the size of the trainer's files.

The tmpfs is mounted in a mount namespace that only the demo and its children live in. Nobody else sees it, and it is
gone with the last of them, however they end. Where neither that nor a user namespace is allowed, ``RLIMIT_FSIZE``
refuses the bytes instead; the errno is ``EFBIG`` then, and the demo says so.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["SmallDisk", "narrowed"]

SIZE = 24 << 20
"""Bytes of the tmpfs: several checkpoints of the demo's model, and quick to fill."""

LEFT = 96 << 10
"""Bytes left free by the ballast: more than a checkpoint's small files need, and less than any of its shards."""

BALLAST = "ballast"
NARROW = "narrow"
"""Name of the file that stands for a full disk where only a limit can play one."""

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _own_namespace() -> None:
    """Move this process into a mount namespace of its own; without root, into a user namespace as well."""
    try:
        _call("unshare", _CLONE_NEWNS)
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def _mount(path: Path) -> None:
    _own_namespace()
    _call("mount", b"ezpz-demo", os.fsencode(path), b"tmpfs", 0, f"size={SIZE},mode=700".encode())


def _rehearsed(deed: Callable[[], None]) -> str:
    """Try in a child what cannot be undone halfway; returns why it does not work, or nothing."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            deed()
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read()


class SmallDisk:
    """Where the demo's checkpoints go.

    Made before anything else is started, since a namespace is inherited and not joined.

    Args:
        path: the directory; created here.
        mount: whether to try for a real file system.
    """

    def __init__(self, path: Path, mount: bool = True) -> None:
        self.path = path
        self.why_not = "told not to mount"
        path.mkdir(parents=True)
        if mount:
            self.why_not = _rehearsed(lambda: _mount(path))
            if self.real:
                _mount(path)

    @property
    def real(self) -> bool:
        """Whether it is a file system that runs full, rather than a limit on the size of a file."""
        return not self.why_not

    @property
    def errno(self) -> int:
        """What a write meets when there is no room."""
        return errno.ENOSPC if self.real else errno.EFBIG

    def fill(self) -> None:
        """Leave less room than a save needs. Called again it takes what has become free meanwhile."""
        if not self.real:
            (self.path / NARROW).touch()
            return
        with (self.path / BALLAST).open("ab") as file:
            stat = os.fstatvfs(file.fileno())
            excess = stat.f_bavail * stat.f_frsize - LEFT
            if excess > 0:
                os.posix_fallocate(file.fileno(), file.tell(), excess)

    def heal(self) -> None:
        """Give the room back."""
        for name in (BALLAST, NARROW):
            (self.path / name).unlink(missing_ok=True)


@contextmanager
def narrowed(directory: Path) -> Iterator[None]:
    """Where a limit plays the full disk: no file of this process may grow beyond ``LEFT`` bytes meanwhile."""
    if not (directory / NARROW).exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LEFT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
