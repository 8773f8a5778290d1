"""What can go wrong with a checkpoint, in words that reach a log: rank, path, OST, errno and the frame that saw it."""

from __future__ import annotations

import errno as errnos
import os
import traceback
from enum import Enum

import msgspec

from ezpz_elastic.errors import UsageError

__all__ = [
    "STORAGE_ERRNOS",
    "TARGET_ERRNOS",
    "CheckpointError",
    "CorruptCheckpoint",
    "Failure",
    "FailureKind",
    "NoSpace",
    "NoUsableCheckpoint",
    "RanksFailed",
    "SaveFailed",
    "ShardWriteError",
    "Superseded",
    "failure_of",
]

# What a file system says when the medium, not the program, is at fault. ESHUTDOWN and ESTALE are what Lustre clients
# see while a target is down or evicted.
STORAGE_ERRNOS = frozenset(
    {
        errnos.ENOSPC,
        errnos.EDQUOT,
        errnos.EIO,
        errnos.ESTALE,
        errnos.ESHUTDOWN,
        errnos.EROFS,
        errnos.EFBIG,
        errnos.ENOTCONN,
        errnos.ETIMEDOUT,
        errnos.EREMOTEIO,
    }
)

# What another target may not say: the target is full, broken, down, or has forgotten the file. A quota or a permission
# is the same everywhere.
TARGET_ERRNOS = frozenset(
    {errnos.ENOSPC, errnos.EIO, errnos.ESHUTDOWN, errnos.ENOTCONN, errnos.ESTALE, errnos.EREMOTEIO}
)


class CheckpointError(RuntimeError):
    """Base of every error of this package that is not a wrong argument."""


class CorruptCheckpoint(CheckpointError):
    """Bytes on disk are not the bytes that were saved.

    Args:
        path: the file or directory.
        reason: what differs, with both values.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class Superseded(CheckpointError):
    """A newer round owns this checkpoint directory; nothing of this save was committed."""


class ShardWriteError(OSError):
    """A file of a checkpoint could not be written, on any target that was tried.

    Keeps the errno and text of the last attempt, so that its string contains ``[Errno 28] No space left on device``
    where that is the cause.

    Args:
        cause: the error of the last attempt.
        path: the file.
        tried: the OSTs tried, in order; empty where the file system has none to choose from.
    """

    def __init__(self, cause: OSError, path: str, tried: tuple[int, ...] = ()) -> None:
        super().__init__(cause.errno, cause.strerror or str(cause), path)
        self.tried = tried


class NoSpace(OSError):
    """There is no room for the save; found out before its first byte.

    Its text begins like the kernel's own, ``[Errno 28] No space left on device`` (or ``[Errno 122] Disk quota
    exceeded``), because to everybody who reads logs it is the same trouble.

    Args:
        code: ``ENOSPC`` or ``EDQUOT``.
        detail: a table of what is needed and what there is, in one line.
        path: the checkpoint directory.
    """

    def __init__(self, code: int, detail: str, path: str) -> None:
        super().__init__(code, f"{os.strerror(code)} ({detail})", path)


class FailureKind(str, Enum):
    """Which kind of trouble one rank met."""

    STORAGE = "storage"
    CORRUPT = "corrupt"
    SUPERSEDED = "superseded"
    USAGE = "usage"
    OTHER = "other"


class Failure(msgspec.Struct, frozen=True):
    """One rank's trouble in a form that travels to the other ranks.

    Args:
        rank: the rank that met it.
        kind: what kind.
        text: the exception in one line, as Python prints it.
        trace: the frames, as Python prints them.
        errno: of an ``OSError``; ``None`` otherwise.
        path: the file concerned; empty if none.
        osts: the OSTs tried for it.
    """

    rank: int
    kind: FailureKind
    text: str
    trace: str = ""
    errno: int | None = None
    path: str = ""
    osts: tuple[int, ...] = ()


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, CorruptCheckpoint):
        return FailureKind.CORRUPT
    if isinstance(error, Superseded):
        return FailureKind.SUPERSEDED
    if isinstance(error, UsageError):
        return FailureKind.USAGE
    if isinstance(error, OSError) and error.errno in STORAGE_ERRNOS:
        return FailureKind.STORAGE
    return FailureKind.OTHER


def failure_of(rank: int, error: BaseException) -> Failure:
    """Describe ``error`` for the other ranks."""
    cause = error
    # ShardWriteError is our wrapper; the frames worth showing are those of the write that failed.
    if isinstance(error, ShardWriteError) and error.__cause__ is not None:
        cause = error.__cause__
    text = "".join(traceback.format_exception_only(type(cause), cause)).strip()
    trace = "".join(traceback.format_tb(cause.__traceback__))
    path = ""
    if isinstance(error, OSError):
        path = str(error.filename or "")
    elif isinstance(error, CorruptCheckpoint):
        path = error.path
    if isinstance(error, (CorruptCheckpoint, Superseded, UsageError)):
        text = str(error)
    return Failure(
        rank=rank,
        kind=_kind(error),
        text=text,
        trace=trace,
        errno=error.errno if isinstance(error, OSError) else None,
        path=path,
        osts=error.tried if isinstance(error, ShardWriteError) else (),
    )


class RanksFailed(CheckpointError):
    """At least one rank failed; raised with the same content on every rank.

    Args:
        what: what was being done.
        failures: the ranks that met trouble themselves, lowest first; ranks that merely heard of it are not here.
        where: what they were at, in words; told on a line of its own, because a path may be long.
    """

    def __init__(self, what: str, failures: tuple[Failure, ...], where: str = "") -> None:
        self.what = what
        self.failures = failures
        super().__init__(self._text(where))

    @property
    def errno(self) -> int | None:
        """The errno of the first failing rank that has one."""
        return next((f.errno for f in self.failures if f.errno is not None), None)

    def _text(self, where: str) -> str:
        first = self.failures[0]
        # On one line: a rank that merely heard of it may end first, and then nothing else says what it ended of.
        why = f"rank {first.rank} with {first.text.partition(chr(10))[0]}"
        lines = [f"{self.what}: {len(self.failures)} rank(s) failed, {why}", *([where] if where else [])]
        for failure in self.failures:
            where = f" writing {failure.path}" if failure.path and failure.kind is FailureKind.STORAGE else ""
            osts = f" (tried OST {', '.join(map(str, failure.osts))})" if failure.osts else ""
            lines.append(f"rank {failure.rank}{where}{osts}: {failure.text}")
        for failure in self.failures:
            if failure.trace:
                lines.append(f"Traceback of rank {failure.rank} (most recent call last):")
                lines.append(f"{failure.trace.rstrip()}\n{failure.text}")
        return "\n".join(lines)


class SaveFailed(RanksFailed):
    """A save did not become durable; the step before it is untouched and nothing half-written is left."""


class NoUsableCheckpoint(CheckpointError):
    """There are checkpoints and not one of them verifies; nothing was deleted.

    Args:
        directory: the checkpoint directory.
        reasons: step directory -> what is wrong with it, newest first.
    """

    def __init__(self, directory: str, reasons: tuple[tuple[str, str], ...]) -> None:
        self.directory = directory
        self.reasons = reasons
        listing = "; ".join(f"{name}: {reason}" for name, reason in reasons)
        super().__init__(
            f"checkpoint corrupt: no step in {directory} can be restored ({listing}); nothing was deleted; "
            f"look with `ezpz-elastic checkpoint verify {directory}`, or start from an empty directory"
        )
