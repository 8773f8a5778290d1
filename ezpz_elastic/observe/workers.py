"""That a worker has died, and the exception torchelastic's error file holds. Returns evidence, judges nothing."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext, PContext, SubprocessContext

from ezpz_elastic.decide.evidence import ErrorRecord
from ezpz_elastic.warm.context import WarmContext

__all__ = ["DeathWatch", "Ended", "error_from_file", "reap"]


class Ended(msgspec.Struct, frozen=True):
    """How a worker process ended.

    Args:
        exit_code: its exit code; ``None`` if a signal ended it.
        signal: the signal that ended it; ``None`` if it exited.
        core: whether the kernel wrote a core dump.
        peak_rss_bytes: its peak resident memory; ``None`` if the system does not tell.
    """

    exit_code: int | None
    signal: int | None
    core: bool = False
    peak_rss_bytes: int | None = None

    @classmethod
    def from_status(cls, status: int, peak_rss_bytes: int | None) -> Ended:
        """From a status as ``os.waitpid`` gives it."""
        code = os.waitstatus_to_exitcode(status)
        return cls(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            core=os.WCOREDUMP(status),
            peak_rss_bytes=peak_rss_bytes or None,
        )


def reap(context: PContext, local_rank: int) -> Ended:
    """Wait for a worker and say how it ended.

    Args:
        context: torch's handle on the round's processes.
        local_rank: which one; its end should have been seen.
    """
    if isinstance(context, WarmContext):
        end = context.workers[local_rank].wait()
        assert end is not None
        return Ended.from_status(end.status, end.peak_rss_bytes)
    if isinstance(context, SubprocessContext):
        process: Any = context.subprocess_handlers[local_rank].proc
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return Ended.from_status(status, usage.ru_maxrss * 1024)
    assert isinstance(context, MultiprocessContext)
    child: Any = context._pc.processes[local_rank]
    child.join()
    code = int(child.exitcode)
    return Ended(code if code >= 0 else None, -code if code < 0 else None)


class DeathWatch:
    """A file descriptor that becomes readable when a child process ends, without waiting for it.

    A pidfd where the kernel has them (Linux 5.3); elsewhere a thread waits and writes into a pipe.

    Args:
        pid: a child of this process that has not been waited for.
    """

    def __init__(self, pid: int) -> None:
        self._thread: threading.Thread | None = None
        try:
            self._fd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
            self._fd, done = os.pipe()
            self._thread = threading.Thread(target=_wait_for_exit, args=(pid, lambda: os.close(done)), daemon=True)
            self._thread.start()

    def fileno(self) -> int:
        """For a selector."""
        return self._fd

    def close(self) -> None:
        """Let go of the descriptor."""
        os.close(self._fd)


def _wait_for_exit(pid: int, done: Callable[[], None]) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    done()


def error_from_file(path: Path) -> ErrorRecord | None:
    """The exception in torchelastic's error file, which scripts write whose main is decorated with ``@record``.

    Args:
        path: the worker's ``TORCHELASTIC_ERROR_FILE``.

    Returns:
        ``None`` if there is no such file or it holds nothing that can be read.
    """
    try:
        message = json.loads(path.read_text(errors="replace"))["message"]
        text = message if isinstance(message, str) else message["message"]
        stack = "" if isinstance(message, str) else message.get("extraInfo", {}).get("py_callstack", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    name, _, rest = str(text).partition(": ")
    return ErrorRecord(type=name, message=rest.splitlines()[0][:500] if rest else "", frames=_frames(str(stack)))


def _frames(stack: str) -> tuple[tuple[str, int, str], ...]:
    frames = []
    for line in stack.splitlines():
        parts = line.strip().split('"')
        if len(parts) == 3 and parts[0] == "File " and ", line " in parts[2]:
            number, _, function = parts[2].removeprefix(", line ").partition(", in ")
            if number.isdigit():
                frames.append((parts[1], int(number), function))
    return tuple(frames)
