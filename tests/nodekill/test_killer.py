"""The killer: what it takes for what, that it sees its victims die, and that it says so when it killed nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nodekill.experiment import killer
from sunspot.killer import Process, kind_of, targets

RUN = "/lus/run/checkpoints-77"
TRAIN = ("/venv/bin/python3", "/home/me/benchmarks/sunspot/train.py", "--checkpoints", RUN)
AGENT = ("/venv/bin/python3", "/venv/bin/ezpz-elastic", "run", "--rdzv-backend=ezpz", *TRAIN[1:])
DAEMON = ("/usr/bin/hydra_pmi_proxy", "--control-port", "127.0.0.1:4242")


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (TRAIN, "rank"),
        (("/venv/bin/python3", "-u", *TRAIN[1:]), "rank"),
        (AGENT, "agent"),
        (("/venv/bin/python3", "/venv/bin/torchrun", "--rdzv-backend=ezpz", *TRAIN[1:]), "agent"),
        (DAEMON, "daemon"),
        (("palsd",), "daemon"),
        # What drives the job must live, or there is nothing left to fail over.
        (("/venv/bin/python3", "/venv/bin/ezpz-elastic", "retry", "--nhosts", "2", "--", "mpiexec", *TRAIN), None),
        (("mpiexec", "--hostfile", "h", *TRAIN), None),
        (("/usr/bin/mpiexec.hydra", "--hostfile", "h", *AGENT), None),
        # Nor is anything touched that belongs to another run, or only speaks of this one.
        (("/venv/bin/python3", "/home/me/benchmarks/sunspot/train.py", "--checkpoints", "/lus/other"), None),
        (("tail", "-f", f"{RUN}/../retry.log"), None),
        (("bash", "/var/spool/pbs/77.SC"), None),
    ],
)
def test_what_a_process_is(command: tuple[str, ...], kind: str | None) -> None:
    assert kind_of(command, RUN) == kind


@pytest.mark.parametrize(
    ("mode", "pids"),
    [("rank", {1, 2}), ("pals", {3}), ("agent", {4}), ("node", {1, 2, 3, 4})],
    ids=str,
)
def test_a_mode_takes_its_own_and_nothing_of_another_user_or_host(mode: str, pids: set[int]) -> None:
    there = [
        *[Process(pid, 500, command, "b") for pid, command in enumerate([TRAIN, TRAIN, DAEMON, AGENT], 1)],
        *[Process(pid, 500, command, "a") for pid, command in enumerate([TRAIN, DAEMON, AGENT], 11)],
        *[Process(pid, 0, command, "b") for pid, command in enumerate([TRAIN, DAEMON, AGENT], 21)],
        *[Process(pid, 500, command, None) for pid, command in enumerate([TRAIN, DAEMON, AGENT], 31)],
    ]
    assert set(targets(there, mode, RUN, 500, "b")) == pids


def victim(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A process that looks like a rank of the run ``tmp_path``."""
    script = tmp_path / "train.py"
    script.write_text("input()\n")
    environ = {**os.environ, "NODEKILL_HOST": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, str(script), "--checkpoints", str(tmp_path)], stdin=subprocess.PIPE, env=environ
    )


def send(tmp_path: Path, mode: str) -> subprocess.CompletedProcess[str]:
    """The killer, as it is run on the victim's host."""
    return subprocess.run(
        [sys.executable, killer.__file__, mode, str(tmp_path), str(tmp_path / "receipt.json")],
        env={"NODEKILL_HOST": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_victim_is_seen_dead_and_the_receipt_says_so(tmp_path: Path) -> None:
    with victim(tmp_path) as process:
        done = send(tmp_path, "rank")
        assert process.poll() == -9
    assert done.returncode == 0, done.stderr
    (told,) = json.loads((tmp_path / "receipt.json").read_text())["processes"]
    assert (told["pid"], told["kind"], told["dead"]) == (process.pid, "rank", True)


@pytest.mark.parametrize("mode", ["rank", "pals", "agent", "node"])
def test_a_killer_that_kills_nothing_says_so_and_fails(tmp_path: Path, mode: str) -> None:
    done = send(tmp_path, mode)
    assert done.returncode == 3
    assert "killed 0 of 0" in done.stdout
    assert json.loads((tmp_path / "receipt.json").read_text())["processes"] == []


def test_a_killer_that_finds_others_than_it_is_about_leaves_them_alone_and_fails(tmp_path: Path) -> None:
    with victim(tmp_path) as process:
        assert send(tmp_path, "agent").returncode == 3
        assert process.poll() is None


@pytest.mark.parametrize("words", [[], ["rank"], ["everything", "a", "b"]])
def test_wrong_words_are_told_and_kill_nothing(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, killer.__file__, *words], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "usage: killer.py" in done.stderr
