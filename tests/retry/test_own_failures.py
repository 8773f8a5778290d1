"""Where it is the loop itself that fails or is held up: nothing of the job outlives it, and no host pays for it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from support.retry_loop import HOSTS, Loop

from ezpz_elastic.retry import supervise
from ezpz_elastic.retry.stops import Stops
from ezpz_elastic.retry.stream import AttemptLog, ConsoleSink
from ezpz_elastic.retry.supervise import Attempt

FAMILY = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = '''
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("up").touch()
time.sleep(600)
'''
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print("step=1 ", flush=True)
time.sleep(600)
"""
"""A process and its child in a session of its own; both ignore SIGTERM, and the child tells that it is up."""

BROKEN = """
import os, sys, time
from contextlib import ExitStack
from unittest import mock
from ezpz_elastic.cli import main

def broken(*_):
    deadline = time.monotonic() + 60
    while not os.path.exists("up") and time.monotonic() < deadline:
        time.sleep(0.01)
    raise OSError(24, "broken on purpose")

with ExitStack() as stack:
    for name in sys.argv[1].split():
        stack.enter_context(mock.patch(name, broken))
    main(sys.argv[2:])
"""

NO_PIDFD = """
import errno, os, sys
from unittest import mock
from ezpz_elastic.cli import main

def refuse(*_):
    print("asked for a pidfd", file=sys.stderr)
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

with mock.patch("os.pidfd_open", refuse):
    main(sys.argv[1:])
"""


def plainly(loop: Loop, code: str, before: list[str], command: list[str], *options: str) -> tuple[int, bytes, str]:
    """Run ``retry`` inside a program that has changed something first."""
    words = ["retry", "--nhosts=2", f"--hostfile={loop.hostfile}", f"--run-dir={loop.run_dir}", *options]
    return loop.run_plainly([sys.executable, "-c", code, *before, *words, "--", *command])


@pytest.mark.parametrize(
    "what",
    [
        "ezpz_elastic.retry.loop.RetryLoop._started",
        "ezpz_elastic.retry.supervise.DeathWatch",
        "ezpz_elastic.retry.loop.StepEye.see",
        "ezpz_elastic.retry.loop.StepEye.see ezpz_elastic.retry.supervise.stop_all",
    ],
    ids=["at the start", "when it begins to watch", "at the first output", "and it cannot stop them either"],
)
def test_an_exception_of_ours_leaves_nothing_running(loop: Loop, what: str):
    code, _, err = plainly(loop, BROKEN, [what], loop.script(FAMILY), "--grace=0.5")
    assert (loop.directory / "up").exists(), "both were up when it happened"
    assert code == 1
    assert "OSError: [Errno 24] broken on purpose" in err
    loop.assert_nothing_left()


def test_an_exception_while_the_attempt_is_being_stopped_is_told_and_leaves_nothing(loop: Loop):
    what = "ezpz_elastic.retry.supervise.stop_all"
    code, _, err = plainly(loop, BROKEN, [what], loop.script(FAMILY), "--idle-timeout=1")
    assert (loop.directory / "up").exists()
    assert code == 1
    assert "broken on purpose" in err
    loop.assert_nothing_left()


def test_names_that_are_not_text_are_passed_on_and_written_down_as_far_as_they_are(loop: Loop):
    """A word of the command and the run directory; the verdict tells the name of the log in it."""
    loop.run_dir = loop.directory / os.fsdecode(b"r\xe9")
    dies = f"[ $EZPZ_ATTEMPT = 2 ] || {{ echo '{HOSTS[1]}: shepherd died from signal 9'; exit 9; }}"
    code, out, err = loop.run(["sh", "-c", f'echo "step=4 $1"; {dies}', "sh", os.fsdecode(b"caf\xe9")])
    assert code == 0, err
    assert b"step=4 caf\xe9\n" in out
    assert loop.verdicts() == [("bad_node_known", "host_lost"), ("success", "unknown")]
    assert loop.events("launcher_started")[0]["command"][-1] == "caf?"  # type: ignore[index]
    evidence = loop.events("verdict")[0]["evidence"]
    assert evidence[0]["file"].endswith("/r?/attempt-1.log")  # type: ignore[index]


def test_where_the_kernel_has_no_pidfd_an_end_is_seen_all_the_same(loop: Loop):
    code, out, err = plainly(loop, NO_PIDFD, [], ["sh", "-c", "sleep 600 & echo step=1; exit 0"])
    assert code == 0, err
    assert "asked for a pidfd" in err
    assert "Traceback" not in err
    assert out == b"step=1\n"
    loop.assert_nothing_left()


def test_where_the_kernel_has_no_pidfd_silence_ends_an_attempt_too(loop: Loop):
    options = ("--idle-timeout=2", "--grace=0.5", "--max-retries=0")
    code, _, err = plainly(loop, NO_PIDFD, [], loop.script(FAMILY), *options)
    assert code == 124, err
    assert "asked for a pidfd" in err
    assert "Traceback" not in err
    loop.assert_nothing_left()


def test_times_longer_than_the_kernel_waits_at_once_are_no_trouble(loop: Loop):
    """The child leaves a process behind, so that the grace period is waited for, too."""
    code, _, err = loop.run(["sh", "-c", "sleep 600 & echo step=1"], "--idle-timeout=1e8", "--grace=1e8")
    assert code == 0, err
    loop.assert_nothing_left()


class Clock:
    """The time module with a clock that can be put forward."""

    sleep = staticmethod(time.sleep)
    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


LIMIT, HELD_UP = 1000.0, 2000.0


def await_file(path: Path) -> None:
    Loop.await_true(path.exists, f"{path.name} is there")


def test_output_that_waits_when_the_time_is_over_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """We are held up for longer than the limit before the first look at the pipe."""
    clock = Clock()
    monkeypatch.setattr(supervise, "time", clock)

    def held_up(pid: int) -> None:
        await_file(tmp_path / "said")
        clock.ahead = HELD_UP

    def heard(data: bytes) -> None:
        assert data == b"step=1\n"
        (tmp_path / "go").touch()

    log = AttemptLog(tmp_path / "log")
    with Stops() as stops:
        attempt = Attempt("held-up", log, ConsoleSink(None), heard, LIMIT, 5.0, stops)
        script = f"echo step=1; touch {tmp_path}/said; until [ -e {tmp_path}/go ]; do sleep 0.01; done"
        ended = attempt.run(["sh", "-c", script], os.environ, held_up)
    log.close()
    assert clock.ahead == HELD_UP, "the time was over"
    assert (ended.exit_code, ended.idle) == (0, False)


def test_a_log_that_holds_us_up_is_no_silence_of_the_childs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One write takes longer than the limit, and the child says nothing more meanwhile."""
    clock = Clock()
    monkeypatch.setattr(supervise, "time", clock)

    class Slow(AttemptLog):
        def write(self, data: bytes) -> None:
            clock.ahead = HELD_UP
            super().write(data)

    log = Slow(tmp_path / "log")
    with Stops() as stops:
        attempt = Attempt("slow-log", log, ConsoleSink(None), lambda _: None, LIMIT, 5.0, stops)
        select = attempt._selector.select

        def waits(timeout: float | None = None):
            if clock.ahead and timeout:  # the attempt goes on: the child need not any more
                (tmp_path / "go").touch()
            return select(timeout)

        monkeypatch.setattr(attempt._selector, "select", waits)
        script = f"echo step=1; until [ -e {tmp_path}/go ]; do sleep 0.01; done"
        ended = attempt.run(["sh", "-c", script], os.environ)
    log.close()
    assert clock.ahead == HELD_UP, "the write was slow"
    assert (ended.exit_code, ended.idle) == (0, False)


def test_a_log_that_cannot_be_read_is_judged_by_the_exit_code_and_a_line_says_so(loop: Loop):
    """The log names a host, and then reading it fails with EIO, as the memory of a process does at its beginning."""
    log = '"$EZPZ_RUN_DIR/attempt-$EZPZ_ATTEMPT.log"'
    lose = f"ln -sf /proc/self/mem {log}; echo step=1; echo '{HOSTS[1]}: shepherd died from signal 9'; exit 3"
    code, _, err = loop.run(["sh", "-c", lose], "--max-retries=0", "--on-blind=never")
    assert code == 3, err
    assert "Traceback" not in err
    assert "the attempt's log cannot be read" in err
    assert "Input/output error" in err
    verdict = loop.events("verdict")[0]
    assert "its exit code alone was judged" in str(verdict["note"])
    assert verdict["hosts"] == []
    assert loop.text("bad_nodes.txt") == ""
