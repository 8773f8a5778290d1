"""Harm that a worker does to itself, for real; most of these do not return."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from ezpz_elastic.faults.scene import Scene

__all__ = [
    "EXIT_CODE",
    "InjectedFailure",
    "eat_memory",
    "hang",
    "hold_the_gil",
    "leave",
    "linger",
    "raise_error",
    "segv",
    "sigkill",
    "sigstop",
    "truncate_shard",
    "write_to_full_device",
]

EXIT_CODE = 3
"""Of a worker that leaves by ``os._exit``: told from a Python exception (1), a usage error (2) and a shell's codes."""

_PIECE = 16 << 20


class InjectedFailure(RuntimeError):
    """An exception raised on purpose."""


def sigkill(scene: Scene) -> None:
    """Killed, with no chance to say anything."""
    del scene
    _by(signal.SIGKILL)


def segv(scene: Scene) -> None:
    """A crash in native code."""
    del scene
    _by(signal.SIGSEGV)


def sigstop(scene: Scene) -> None:
    """Stopped: alive, and silent for ever."""
    del scene
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSTOP)


def leave(scene: Scene) -> None:
    """Leaves without a word, without a traceback, without clean-up."""
    del scene
    sys.stdout.flush()
    os._exit(EXIT_CODE)


def raise_error(scene: Scene) -> None:
    """An ordinary exception.

    Raises:
        InjectedFailure: always.
    """
    raise InjectedFailure(f"injected at step {scene.step}")


def hang(scene: Scene) -> None:
    """Goes silent in Python code, where signals and other threads still run."""
    sys.stdout.flush()
    threading.Event().wait(scene.seconds)


def hold_the_gil(scene: Scene) -> None:
    """Goes silent in native code that does not let go of the GIL: no other thread of the process runs either."""
    sys.stdout.flush()
    sleep, left = ctypes.PyDLL(None).sleep, int(scene.seconds)
    while left > 0:  # a signal that somebody handles ends it early
        left = sleep(ctypes.c_uint(left))


def linger(scene: Scene) -> None:
    """A slow step; ``seconds`` long."""
    time.sleep(scene.seconds)


def eat_memory(scene: Scene) -> None:
    """Takes memory until the kernel ends it; only for a process under a limit of its own."""
    del scene
    held = []
    while True:
        held.append(b"x" * _PIECE)


def write_to_full_device(scene: Scene) -> None:
    """Saves a checkpoint where there is no room: ``/dev/full`` refuses the bytes as a full storage target does.

    Raises:
        OSError: ``ENOSPC``, always.
    """
    del scene
    _save_checkpoint(Path("/dev/full"))


def _save_checkpoint(path: Path) -> None:
    with path.open("wb", buffering=0) as stream:
        stream.write(b"\0" * 4096)


def truncate_shard(scene: Scene) -> None:
    """Cuts the newest complete checkpoint's largest file in half, and then leaves: the next life finds it so.

    Raises:
        FileNotFoundError: there is no checkpoint to harm.
    """
    newest = scene.checkpoint
    if newest is None:
        raise FileNotFoundError("no checkpoint to truncate")
    files = [path for path in newest.iterdir() if path.suffix == ".distcp"] if newest.is_dir() else [newest]
    victim = max(files, key=lambda path: path.stat().st_size)
    os.truncate(victim, victim.stat().st_size // 2)
    leave(scene)


def _by(signum: signal.Signals) -> None:
    sys.stdout.flush()
    if signum is not signal.SIGKILL:
        signal.signal(signum, signal.SIG_DFL)  # a handler of the program's own (faulthandler) may not soften it
    os.kill(os.getpid(), signum)
