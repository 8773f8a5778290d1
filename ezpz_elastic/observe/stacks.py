"""Where the processes of a hung rank stand: Python stacks of all threads, and what the kernel says of each.

py-spy where it is installed and permitted; else by signal, which scripts that call ``progress`` answer with
``faulthandler``; and always the kernel's own view, which needs nobody's help. Nothing here stops a process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path

import msgspec

from ezpz_elastic.observe.ask import NoAnswer, ask

__all__ = ["STACKS_FILE", "Place", "Stacks", "look", "process_state", "wait_channel"]

STACKS_FILE = "EZPZ_STACKS_FILE"
"""Environment variable by which an agent tells its worker where to write its stacks when it is asked by SIGUSR2."""

SPY_PATIENCE = 5.0
"""Seconds py-spy gets for one process."""

SIGNAL_PATIENCE = 1.0
"""Seconds a process gets to answer a signal with its stacks."""

_OUTERMOST = ("in <module>", "in _run_module_as_main", "...")
"""How the last line of such an answer ends: the main thread comes last, and its outermost frame is the program's,
unless there are too many. One that ends otherwise is not whole: whoever writes it has no processor at the moment."""

_BLOCKED = 0.25
"""Seconds after which a process that was in uninterruptible sleep is looked at again."""

_INNERMOST = 8
_WAITING = ("torch/distributed/", "torch/autograd/", "torch/futures", "torch/nn/parallel/")
"""Directories of Python frames in which a rank waits for its peers; a backward pass waits for DDP's reductions."""

_WORKING = ("torch/distributed/checkpoint/", "torch/nn/modules/")
"""The same for frames that end such a wait: a checkpoint's files, and the model inside DDP's or FSDP's forward pass."""


class Place(str, Enum):
    """Where a rank stands, as far as its main thread's Python frames tell."""

    COLLECTIVE = "collective"  # in, or waiting for, communication
    ELSEWHERE = "elsewhere"  # in the program's own code
    UNKNOWN = "unknown"  # no Python stack could be had


class Stacks(msgspec.Struct, frozen=True):
    """What was seen of one process.

    Args:
        place: where its main thread stands.
        frame: innermost Python frame of the main thread, empty if unknown.
        state: the kernel's letter for the process (``R``, ``S``, ``D``, ``T`` …), empty if it is gone.
        text: everything, for people to read.
    """

    place: Place
    frame: str
    state: str
    text: str


def look(pid: int, answer: Path) -> Stacks:
    """Look at one process.

    Args:
        pid: a worker.
        answer: its ``EZPZ_STACKS_FILE``.
    """
    state = process_state(pid)
    if state == "D":
        time.sleep(_BLOCKED)  # an interval of measurement: ordinary reads and writes pass through this state
        state = process_state(pid)
    python = "" if state in {"", "T", "t", "D"} else _by_signal(pid, answer)
    spied = _by_spy(pid)
    frames = _main_thread(spied) or _main_thread_by_signal(python)
    place = _place(frames)
    text = "\n".join(part for part in (f"process {pid}, state {state}", spied or python, _kernel(pid)) if part)
    return Stacks(place, frames[0] if frames else "", state, text + "\n")


def _place(frames: list[str]) -> Place:
    """What the frames, innermost first, say of a rank: the first that tells anything decides."""
    for frame in frames[:_INNERMOST]:
        if any(part in frame for part in _WORKING):
            return Place.ELSEWHERE
        if any(part in frame for part in _WAITING):
            return Place.COLLECTIVE
    return Place.ELSEWHERE if frames else Place.UNKNOWN


def process_state(pid: int) -> str:
    """The kernel's letter for a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2][:1]
    except OSError:
        return ""


def wait_channel(pid: int) -> str:
    """Where in the kernel a process waits; empty if it does not, or the kernel does not tell."""
    try:
        channel = Path(f"/proc/{pid}/wchan").read_text(errors="replace").strip()
    except OSError:
        return ""
    return "" if channel == "0" else channel


def _by_spy(pid: int) -> str:
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return ""
    # Not blocking: a process that is stopped or in uninterruptible sleep would never let itself be paused.
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        code, said, _ = ask(command, SPY_PATIENCE, stderr=subprocess.DEVNULL)
    except NoAnswer:
        return ""
    return said if code == 0 else ""


def _by_signal(pid: int, answer: Path) -> str:
    """Ask the process itself, if it has said that it answers."""
    try:
        before = answer.stat().st_size
        caught = int(_status(pid, "SigCgt"), 16)
        if not caught >> (signal.SIGUSR2 - 1) & 1:
            return ""
        os.kill(pid, signal.SIGUSR2)
    except (OSError, ValueError):
        return ""
    deadline, said = time.monotonic() + SIGNAL_PATIENCE, ""
    try:
        while time.monotonic() < deadline and not said.endswith(_OUTERMOST):
            time.sleep(0.02)
            said = answer.read_bytes()[before:].decode(errors="replace").rstrip()
        return said
    except OSError:
        return ""  # somebody has removed the file


def _status(pid: int, key: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith(f"{key}:"):
            return line.partition(":")[2].strip()
    return ""


def _main_thread(text: str) -> list[str]:
    """Frames of the main thread in py-spy's output, innermost first."""
    _, found, rest = text.partition('"MainThread"')
    if not found:
        return []
    block = rest.partition("\nThread ")[0].splitlines()[1:]
    return [line.strip() for line in block if line.startswith(" ")]


def _main_thread_by_signal(text: str) -> list[str]:
    """The same in faulthandler's output, which has the main thread last."""
    block = text.rstrip().rpartition("hread 0x")[2].splitlines()[1:]
    return [line.strip() for line in block if line.startswith("  File ")]


def _kernel(pid: int) -> str:
    """State and wait channel of every thread."""
    lines = []
    try:
        threads = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name))
    except OSError:
        return ""
    for thread in threads:
        try:
            name, state = (thread / "comm").read_text(errors="replace").strip(), process_state(int(thread.name))
            channel = (thread / "wchan").read_text(errors="replace").strip()
        except OSError:
            continue
        lines.append(
            f"  thread {thread.name} {name}: state {state}, waits in {channel if channel != '0' else 'user space'}"
        )
    return "kernel:\n" + "\n".join(lines)
