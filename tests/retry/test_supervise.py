"""Nothing that a child does to its output, or anybody to ours, stops the loop; nothing of an attempt outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.retry_loop import HOSTS, Loop

FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print("step=1 ", flush=True)
time.sleep(600)
"""
"""A process and its child in a session of its own; both ignore SIGTERM."""


def spoke(loop: Loop) -> bool:
    path = loop.run_dir / "attempt-1.log"
    return path.exists() and b"up" in path.read_bytes()


def test_output_is_copied_byte_for_byte_whatever_the_bytes_are(loop: Loop):
    output = bytes(range(256)) * 64 + b"\xff\xfe no line end"
    (loop.directory / "bytes").write_bytes(output)
    code, out, _ = loop.run(["sh", "-c", "cat bytes; echo 'to stderr' >&2"])
    assert code == 0
    assert out == output + b"to stderr\n"
    assert loop.log(1) == out


def test_a_line_that_does_not_end_is_no_trouble(loop: Loop):
    size = 96 << 20
    code, out, _ = loop.run(loop.script(f"import sys\nfor _ in range({size >> 20}): sys.stdout.write('x' * (1 << 20))"))
    assert code == 0
    assert len(out) == size
    assert (loop.run_dir / "attempt-1.log").stat().st_size == size


def test_a_child_that_closes_its_output_and_lives_on_is_waited_for(loop: Loop):
    close = "import os, time, pathlib\nos.close(1); os.close(2)\ntime.sleep(0.5)\n"
    script = loop.script(f"{close}pathlib.Path('finished').touch()\nos._exit(0)")
    code, _, _ = loop.run(script)
    assert code == 0
    assert (loop.directory / "finished").exists(), "it was not stopped for its silence"
    assert loop.verdicts() == [("success", "unknown")]


def test_a_grandchild_that_holds_the_output_open_does_not_keep_the_loop_and_is_ended(loop: Loop):
    code, out, _ = loop.run(["sh", "-c", "sleep 600 & echo step=1; exit 0"])
    assert code == 0
    assert out == b"step=1\n"
    loop.assert_nothing_left()


def test_a_console_that_is_closed_costs_the_job_nothing(loop: Loop):
    script = loop.script("for n in range(20000): print('step=%d of many more to come' % n, flush=n % 100 == 0)")
    process = loop.start(script)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(60) == 0
    assert loop.log(1).endswith(b"step=19999 of many more to come\n")
    assert loop.outcome()["kind"] == "success"


def test_closed_standard_descriptors_are_no_console_either(loop: Loop):
    command = ["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", sys.executable, "-c"]
    command += ["from ezpz_elastic.cli import main; main()", "retry", "--nhosts=2", f"--hostfile={loop.hostfile}"]
    command += [f"--run-dir={loop.run_dir}", "--", "echo", "step=1"]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    assert loop.log(1) == b"step=1\n"


def test_silence_ends_an_attempt_with_all_its_processes_and_124(loop: Loop):
    options = ("--idle-timeout=4", "--grace=0.5", "--max-retries=0")
    code, _, err = loop.run(loop.script(FAMILY), *options)
    assert spoke(loop), "the grandchild was there"
    assert code == 124
    assert loop.verdicts() == [("bad_node_blind", "hang")]
    assert b"watchdog: no output for 4 s" in loop.log(1)
    assert "FAILOVER STOP: bad_node_blind (hang; " in err
    assert loop.text("bad_nodes.txt") == ""
    loop.assert_nothing_left()


def test_a_child_that_speaks_is_not_silent(loop: Loop):
    script = loop.script("import time\nfor n in range(20): print('step=%d' % n, flush=True); time.sleep(0.25)")
    code, _, _ = loop.run(script, "--idle-timeout=4")  # it speaks for 5 s
    assert code == 0
    assert len(loop.verdicts()) == 1


def test_what_a_launcher_says_while_we_stop_it_names_nobody(loop: Loop):
    """A launcher tells of each rank it kills with 9, which is our doing and no host's."""
    script = loop.script(
        "import signal, sys, time\n"
        f"def end(*_): print('{HOSTS[1]}: rank 3 died from signal 9', flush=True); sys.exit(137)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('step=5 ', flush=True)\ntime.sleep(600)"
    )
    code, _, _ = loop.run(script, "--idle-timeout=4", "--max-retries=0")
    assert b"rank 3 died from signal 9" in loop.log(1), "it did say so"
    assert code == 124
    assert loop.verdicts() == [("bad_node_blind", "hang")]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_told_to_stop_it_stops_everything_and_says_by_whom(loop: Loop, signum: signal.Signals, code: int):
    process = loop.start(loop.script(FAMILY), "--grace=0.5")
    loop.await_true(lambda: spoke(loop), "both are up")
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"FAILOVER STOP: interrupted (" in err
    assert loop.verdicts() == [("interrupted", "unknown")]
    assert loop.outcome()["exit_code"] == code
    loop.assert_nothing_left()


def test_a_second_signal_skips_the_grace_period(loop: Loop):
    process = loop.start(loop.script(FAMILY), "--grace=3600")
    loop.await_true(lambda: spoke(loop), "both are up")
    process.send_signal(signal.SIGINT)
    loop.await_true(lambda: b"Sending SIGTERM" in loop.log(1), "the stop has begun")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    loop.assert_nothing_left()


def test_told_to_stop_between_two_attempts_it_does_not_begin_the_next(loop: Loop):
    """The second restart of a job that never trains waits 5 s."""
    process = loop.start(["sh", "-c", "exit 3"], "--no-steps", "--on-blind=never")
    loop.await_true(lambda: any(event["delay"] for event in loop.events("decision")), "a wait")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert len(loop.events("round_committed")) == 2
    assert loop.verdicts()[-1] == ("interrupted", "unknown")


def test_sigterm_near_the_end_of_the_allocation_is_walltime(loop: Loop):
    process = loop.start(loop.script(FAMILY), "--grace=0.5", "--remaining=60s")
    loop.await_true(lambda: spoke(loop), "both are up")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert loop.verdicts() == [("walltime", "unknown")]


def test_a_loop_that_is_killed_leaves_nothing(loop: Loop):
    process = loop.start(loop.script(FAMILY))
    loop.await_true(lambda: spoke(loop), "both are up")
    assert len(loop.alive()) >= 3
    process.kill()
    process.wait(60)
    loop.assert_nothing_left()


def test_under_nohup_the_end_of_the_terminal_is_nothing(loop: Loop):
    script = loop.script(
        "import time, pathlib\nprint('up', flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a child inherits it
    try:
        process = loop.start(script)
    finally:
        signal.signal(signal.SIGHUP, before)
    loop.await_true(lambda: spoke(loop), "it is up")
    os.kill(process.pid, signal.SIGHUP)
    Path(loop.directory / "go").touch()
    assert process.wait(60) == 0


def test_the_attempt_after_a_used_up_quota_is_asked_to_make_room(loop):
    text = (
        "import os\n"
        "print('asked:', os.environ['EZPZ_CHORES'], flush=True)\n"
        "if os.environ['EZPZ_ATTEMPT'] == '1':\n"
        "    raise OSError(122, os.strerror(122), '/home/u/step-3')\n"
    )
    code, _, _ = loop.run(loop.script(text))
    assert code == 0
    assert loop.log(1).startswith(b"asked: \n")
    assert loop.log(2) == b"asked: prune_checkpoints\n"
