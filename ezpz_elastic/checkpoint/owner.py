"""One writer per directory, and a fence against the writer of a round that is over.

Two things are kept apart. ``.lock`` is a POSIX record lock held by the coordinator's process for its life: the kernel
drops it with the process, however that dies, and children do not inherit it. ``.writer`` says who owns the directory;
an owner that finds another name there has been superseded and commits nothing. The same job in a newer round may take
over while a stopped or cut-off process of an older round still holds the lock; another job may not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import psutil

from ezpz_elastic.checkpoint import layout
from ezpz_elastic.checkpoint.durable import Create, write_file
from ezpz_elastic.checkpoint.errors import Superseded
from ezpz_elastic.errors import UsageError

__all__ = ["Owner", "Writer", "current_round"]

_log = logging.getLogger(__name__)

# What a file system without record locks answers (Lustre mounted without -o flock: ENOSYS; some NFS: ENOLCK).
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
_BUSY = frozenset({errno.EACCES, errno.EAGAIN})
# What torchrun calls a job that was given no id: every such job.
_NO_ID = frozenset({"", "none"})
# A predecessor that was just killed is gone within this time; a living one is not.
PATIENCE = 10.0


class Writer(msgspec.Struct, frozen=True):
    """Content of ``.writer``: who owns the directory.

    Args:
        token: identifies one process on one host.
        host: where it runs.
        pid: its process id there.
        run_id: of the job; empty where nothing tells one job from another.
        round: of the job; ``None`` outside of an elastic run.
        attempt: of ``ezpz-elastic retry``, in each of which rounds are counted anew; 0 outside of it.
    """

    token: str
    host: str
    pid: int
    run_id: str = ""
    round: int | None = None
    attempt: int = 0

    @property
    def life(self) -> str:
        """Which life of its job, in words."""
        return f"round {self.round}" + (f" of attempt {self.attempt}" if self.attempt else "")


def current_round(environ: Mapping[str, str]) -> int | None:
    """The elastic round: the agent's, else torchrun's restart count, else the attempt of the retry loop, else none."""
    for name in ("EZPZ_ROUND", "TORCHELASTIC_RESTART_COUNT", "EZPZ_ATTEMPT"):
        value = environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None


def _run_id(environ: Mapping[str, str]) -> str:
    """What all lives of one job have in common: its id, or the run directory.

    Scripts often make a new id at every start, so in a retry loop its run directory comes first. An agent of ours puts
    its own in the place of that one.
    """
    names = [environ.get("TORCHELASTIC_RUN_ID", ""), environ.get("EZPZ_RUN_DIR", "")]
    if "EZPZ_ATTEMPT" in environ and "EZPZ_ROUND" not in environ:
        names.reverse()
    return next((name for name in names if name not in _NO_ID), "")


def _this_process(environ: Mapping[str, str]) -> Writer:
    host, pid, attempt = socket.gethostname(), os.getpid(), environ.get("EZPZ_ATTEMPT", "")
    return Writer(
        token=f"{host}:{pid}:{psutil.Process(pid).create_time()}",
        host=host,
        pid=pid,
        run_id=_run_id(environ),
        round=current_round(environ),
        attempt=int(attempt) if attempt.isdigit() else 0,
    )


class Owner:
    """This process's claim to a checkpoint directory; used by the coordinator only.

    Args:
        directory: the checkpoint directory.
        fence: tells whether the round of this process is still current; ``None`` if nobody can tell.
        environ: where round and run id come from.
        create: makes an empty file on a storage target that has room.
        patience: seconds to wait for a dying predecessor.
        advice: what somebody is told to do whose claim is refused.
    """

    def __init__(
        self,
        directory: Path,
        fence: Callable[[], bool] | None = None,
        environ: Mapping[str, str] = os.environ,
        create: Create | None = None,
        patience: float = PATIENCE,
        advice: str = "give this job a directory of its own, or stop the other one",
    ) -> None:
        self._directory = directory
        self._fence = fence
        self._create = create
        self._me = _this_process(environ)
        self._patience = patience
        self._advice = advice
        self._fd: int | None = None
        self._claimed = False

    @property
    def round(self) -> int | None:
        """The round of this process."""
        return self._me.round

    def claim(self) -> bool:
        """Own the directory, or say who does. Later calls only check that it is still ours.

        Returns:
            Whether this call made it ours, which is the moment to clean up after the former owner.

        Raises:
            UsageError: another living job writes here.
            Superseded: a newer round of this job does.
        """
        if self._claimed:
            self.check()
            return False
        self._directory.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + self._patience
        while not self._lock():
            other = self._read()
            if other is not None and self._may_take_over(other):
                _log.warning("taking %s over from %s (pid %s)", self._directory, other.life, other.pid)
                break
            if time.monotonic() > deadline:
                raise self._busy(other)
            # The kernel tells nobody when a lock is dropped, unless one blocks for it without a deadline.
            time.sleep(0.05)
        self._check_fence()
        write_file(self._directory / layout.WRITER, msgspec.json.encode(self._me) + b"\n", self._create)
        self._claimed = True
        return True

    def check(self) -> None:
        """Raise unless the directory is still ours and our round current.

        Raises:
            Superseded: otherwise; nothing may be committed.
        """
        self._check_fence()
        other = self._read()
        if other is None or other.token != self._me.token:
            who = f"{other.life} (pid {other.pid} on {other.host})" if other is not None else "nobody"
            raise Superseded(
                f"{self._me.life} no longer owns {self._directory}: it belongs to {who}; this save is dropped"
            )

    def release(self) -> None:
        """Give the lock back before the process ends."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._claimed = False

    def _check_fence(self) -> None:
        if self._fence is not None and not self._fence():
            raise Superseded(f"{self._me.life} is over; this save of {self._directory} is dropped")

    def _lock(self) -> bool:
        if self._fd is None:
            self._fd = os.open(self._directory / layout.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            if error.errno not in _NO_LOCKS:
                raise
            return self._without_locks(error)
        return True

    def _without_locks(self, error: OSError) -> bool:
        other = self._read()
        if other is None or other.token == self._me.token or self._may_take_over(other):
            return True
        if other.host == self._me.host:
            return not _alive(other)
        _log.warning(
            "%s has no file locks (%s): cannot tell whether pid %s on %s still writes here",
            self._directory,
            error.strerror,
            other.pid,
            other.host,
        )
        return True

    def _read(self) -> Writer | None:
        try:
            return msgspec.json.decode((self._directory / layout.WRITER).read_bytes(), type=Writer)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            _log.warning("%s is unreadable and counts as nobody's", self._directory / layout.WRITER)
            return None

    def _may_take_over(self, other: Writer) -> bool:
        """Whether ``other`` is a former life of this very job.

        Raises:
            Superseded: it is a later one.
        """
        mine = self._me
        if other.token == mine.token:
            return True
        if not mine.run_id or other.run_id != mine.run_id or other.round is None or mine.round is None:
            return False
        theirs, ours = (other.attempt, other.round), (mine.attempt, mine.round)
        if theirs > ours and self._written_in_our_time():
            raise Superseded(f"{mine.life} is over: {self._directory} belongs to {other.life}")
        return theirs < ours

    def _written_in_our_time(self) -> bool:
        """Whether ``.writer`` is younger than this process.

        A later round begins after us. A record that was there before us is of a former job of the same id, which had
        come further in counting its rounds.
        """
        try:
            written = (self._directory / layout.WRITER).stat().st_mtime
        except FileNotFoundError:
            return False
        return written > psutil.Process().create_time()

    def _busy(self, other: Writer | None) -> UsageError:
        who = f"run {other.run_id or '(none)'}, pid {other.pid} on {other.host}" if other else "an unknown process"
        return UsageError(
            f"checkpoint directory {self._directory} is being written by another job ({who})",
            expected="one writer per directory",
            hint=self._advice,
        )


def _alive(other: Writer) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(other.pid).create_time()
        return other.token.endswith(f":{started}")
    return False
