"""That a worker has died, and the exception torchelastic's error file holds. Returns evidence, judges nothing."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import msgspec
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext, PContext, SubprocessContext

from ezpz_elastic.decide.evidence import ErrorRecord
from ezpz_elastic.observe.kernel import KernelWord
from ezpz_elastic.observe.text import readable
from ezpz_elastic.warm.context import WarmContext

__all__ = ["Ended", "error_from_file", "reap", "sender"]

_LONGEST_NAME = 200
"""Characters kept of an exception's type; more is no type."""

_UNLIMITED = resource.RLIM_INFINITY
_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP})


class Ended(msgspec.Struct, frozen=True):
    """How a worker process ended.

    Args:
        exit_code: its exit code; ``None`` if a signal ended it.
        signal: the signal that ended it; ``None`` if it exited.
        core: whether the kernel wrote a core dump.
        peak_rss_bytes: its peak resident memory; ``None`` if the system does not tell.
        cpu_seconds: processor time of it and its waited-for children; ``None`` if the system does not tell.
        seen: whether its end was seen; else its parent is gone, and the exit code is none of its own.
    """

    exit_code: int | None
    signal: int | None
    core: bool = False
    peak_rss_bytes: int | None = None
    cpu_seconds: float | None = None
    seen: bool = True

    @classmethod
    def from_status(cls, status: int, peak_rss_bytes: int | None, cpu_seconds: float | None = None) -> Ended:
        """From a status as ``os.waitpid`` gives it."""
        code = os.waitstatus_to_exitcode(status)
        return cls(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            core=os.WCOREDUMP(status),
            peak_rss_bytes=peak_rss_bytes or None,
            cpu_seconds=cpu_seconds,
        )


def reap(context: PContext, local_rank: int, timeout: float | None = None) -> Ended | None:
    """Say how a worker ended.

    Args:
        context: torch's handle on the round's processes.
        local_rank: which one.
        timeout: seconds to wait for word of its end from the warm server, which is its parent then; ``None``: its end
            has been seen, so word will come. Nothing else is waited for if this is given.

    Returns:
        ``None`` if it has not ended in time.
    """
    if isinstance(context, WarmContext):
        end = context.workers[local_rank].wait(timeout)
        if end is None:
            return None
        ended = Ended.from_status(end.status, end.peak_rss_bytes, end.cpu_seconds)
        return ended if end.seen else msgspec.structs.replace(ended, seen=False)
    if isinstance(context, SubprocessContext):
        process: Any = context.subprocess_handlers[local_rank].proc
        pid, status, usage = os.wait4(process.pid, 0 if timeout is None else os.WNOHANG)
        if not pid:
            return None
        process.returncode = os.waitstatus_to_exitcode(status)
        return Ended.from_status(status, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)
    assert isinstance(context, MultiprocessContext)
    child: Any = context._pc.processes[local_rank]
    child.join(None if timeout is None else 0)
    if child.exitcode is None:
        return None
    code = int(child.exitcode)
    return Ended(code if code >= 0 else None, -code if code < 0 else None)


def sender(ended: Ended, word: KernelWord | None, limits: tuple[int, int]) -> str:
    """Who sent the signal that ended a worker, as far as the system tells.

    A parent learns which signal ended a child, and never who sent it. What can be known is whether it was the kernel:
    it writes down whom it kills for want of memory and whose main thread faulted, and it counts processor time.

    Args:
        ended: how the worker ended.
        word: what the kernel log says of it.
        limits: processor time in seconds that a process may use, soft and hard, as ``resource.getrlimit`` gives it.

    Returns:
        Words; empty where nothing tells.
    """
    if ended.signal is None:
        return ""
    if word is not None:
        fault = word.resident_bytes is None
        if ended.signal == signal.SIGKILL and not fault:
            return "the kernel, for want of memory"
        return f"the kernel: {word.text}" if fault and ended.signal in _FAULTS else ""
    limit = {int(signal.SIGXCPU): limits[0], int(signal.SIGKILL): limits[1]}.get(ended.signal, _UNLIMITED)
    if limit != _UNLIMITED and ended.cpu_seconds is not None and ended.cpu_seconds >= limit:
        return f"the kernel, it seems: {ended.cpu_seconds:.0f} s of processor time were used and {limit} s are allowed"
    return ""


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
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    name, _, rest = readable(text).partition(": ")
    message = rest.splitlines()[0][:500] if rest else ""
    return ErrorRecord(type=name[:_LONGEST_NAME], message=message, frames=_frames(readable(stack)))


def _frames(stack: str) -> tuple[tuple[str, int, str], ...]:
    frames = []
    for line in stack.splitlines():
        parts = line.strip().split('"')
        if len(parts) == 3 and parts[0] == "File " and ", line " in parts[2]:
            number, _, function = parts[2].removeprefix(", line ").partition(", in ")
            if number.isdecimal():
                frames.append((parts[1], int(number), function))
    return tuple(frames)
