"""How a worker ended, and who made it end, as far as the system tells."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ezpz_elastic.decide.evidence import ErrorRecord
from ezpz_elastic.observe.kernel import KernelLog, KernelWord, in_first_namespace
from ezpz_elastic.observe.workers import Ended, error_from_file, sender

NEVER = resource.RLIM_INFINITY
OOM = KernelWord(7, "Killed process 7 (python) …", 1 << 30)
FAULT = KernelWord(7, "segfault at 0 ip 1 sp 2 error 4 in libc.so.6")


def killed(signum: int, cpu: float | None = 1.0) -> Ended:
    return Ended(None, signum, cpu_seconds=cpu)


@pytest.mark.parametrize(
    ("ended", "word", "limits", "expected"),
    [
        (killed(signal.SIGKILL), None, (NEVER, NEVER), ""),  # the rule: nothing tells
        (killed(signal.SIGTERM), None, (NEVER, NEVER), ""),
        (Ended(1, None, cpu_seconds=9.0), FAULT, (1, 1), ""),
        (killed(signal.SIGKILL), OOM, (NEVER, NEVER), "the kernel, for want of memory"),
        (killed(signal.SIGSEGV), FAULT, (NEVER, NEVER), f"the kernel: {FAULT.text}"),
        (killed(signal.SIGKILL), FAULT, (NEVER, NEVER), ""),  # it had handled that fault, and died of something else
        (killed(signal.SIGXCPU, 60.2), None, (60, NEVER), "the kernel, it seems: 60 s of processor time were used"),
        (killed(signal.SIGKILL, 60.2), None, (60, NEVER), ""),
        (killed(signal.SIGKILL, 90.0), None, (60, 90), "the kernel, it seems: 90 s of processor time were used"),
        (killed(signal.SIGKILL, 89.0), None, (60, 90), ""),
        (killed(signal.SIGRTMIN + 3), None, (1, 1), ""),
    ],
)
def test_the_sender_is_told_where_the_kernel_was_it_and_nowhere_else(ended, word, limits, expected):
    told = sender(ended, word, limits)
    assert told.startswith(expected)
    assert bool(told) == bool(expected)


def test_an_exception_about_a_file_whose_name_is_not_text_can_be_reported(tmp_path: Path):
    file = tmp_path / "error.json"
    script = (
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main(): raise ValueError('cannot read caf\\udce9.txt')\n"
        "main()"
    )
    environment = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(file)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False, capture_output=True)
    assert done.returncode == 1
    told = error_from_file(file)
    assert told is not None
    assert (told.type, told.message) == ("ValueError", "cannot read caf?.txt")
    assert msgspec.json.decode(msgspec.json.encode(told), type=ErrorRecord) == told


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"message": {"message": ' + "[" * 100_000, "null", "\0", '{"message": 7}']
)
def test_an_error_file_that_holds_something_else_holds_nothing(tmp_path: Path, content: str):
    file = tmp_path / "error.json"
    file.write_text(content)
    assert error_from_file(file) is None


def test_a_real_fault_is_told_by_the_real_kernel_where_its_log_can_be_read():
    if not in_first_namespace():
        pytest.skip("the kernel log counts processes otherwise here; its words are faked above")
    log, switch = KernelLog(), Path("/proc/sys/debug/exception-trace")
    if log._fd is None or not switch.exists() or switch.read_text().strip() != "1":
        pytest.skip("this user cannot read the kernel log, or it is told nothing of faults; its words are faked above")
    deadline, told = time.monotonic() + 30, ""
    while not told and time.monotonic() < deadline:  # the kernel tells of ten faults in five seconds at most
        with subprocess.Popen([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"]) as process:
            pass
        assert process.returncode == -signal.SIGSEGV
        words = {word.pid: word for word in log.words()}
        told = sender(Ended(None, -process.returncode), words.get(process.pid), (NEVER, NEVER))
    assert "segfault at 0" in told
    log.close()
