"""``ezpz-elastic demo``, once, as a user types it; and what it leaves when it is not let finish."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

TIMEOUT = 240
"""Seconds; it takes less than a minute on two idle cores, and a test machine is not idle."""

COMMAND = str(Path(sys.executable).parent / "ezpz-elastic")


def of_the_demo(run_dir: Path) -> list[str]:
    """Processes that work for a demo in this directory."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            inside = any(str(run_dir) in word for word in words) or process.cwd() == str(run_dir)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if inside and process.pid != os.getpid():
            found.append(" ".join(words)[:120])
    return found


def test_the_job_lives_through_all_three_faults_and_the_demo_proves_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [COMMAND, "demo", "--run-dir", str(run_dir), "--keep"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    said = done.stdout
    for words in (
        "FAULT: SIGKILL to the worker of 127.0.0.2",
        "retryable_unattributed (worker_killed)",
        "FAULT: 127.0.0.3 goes dark",
        "bad_node_known (host_lost)",
        "127.0.0.3 is retired, provenance lost",
        "round 3 opens: 127.0.0.2 in slot 0, 127.0.0.4 in slot 1",
        "FAULT: the disk",
        "retryable_unattributed (storage)",
        "every fault landed and was answered as it had to be",
    ):
        assert words in said, f"{words!r} was not said"
    assert json.loads((run_dir / "outcome.json").read_text())["rounds"] == 4
    assert (run_dir / "bad_nodes.txt").read_text() == "127.0.0.3  lost  attempt=2\n"
    assert (run_dir / "active.hostfile").read_text().split() == ["127.0.0.2", "127.0.0.4"]
    assert {path.stem for path in (run_dir / "receipts").iterdir()} == {
        "worker_killed",
        "host_lost",
        "disk_full-rank0",
        "disk_full-rank1",
    }
    assert (run_dir / "checkpoints" / "step-160" / ".complete").exists(), "--keep keeps the checkpoints"
    assert of_the_demo(run_dir) == []
    assert str(run_dir) not in Path("/proc/self/mounts").read_text()


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    demo = subprocess.Popen(
        [COMMAND, "demo", "--run-dir", str(run_dir)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + TIMEOUT
        while not (run_dir / "rounds" / "1" / "1" / "stdout.log").exists():
            assert demo.poll() is None
            assert time.monotonic() < deadline, "no worker was started"
            time.sleep(0.05)
        assert of_the_demo(run_dir), "there is something to leave behind"
        demo.send_signal(signal.SIGINT)
        _, said = demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 130
    assert said.strip().splitlines()[-1] == "ezpz-elastic demo: interrupted; nothing of it is left running"
    assert of_the_demo(run_dir) == []
