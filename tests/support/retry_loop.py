"""The retry loop as a user starts it: the command, real children, a run directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from support.marked import MARK, end, told

HOSTS = tuple(f"x1922c7s{number}b0n0-hsn0.hsn.cm.sunspot.alcf.anl.gov" for number in range(5))
RETRY = (sys.executable, "-c", "from ezpz_elastic.cli import main; main()", "retry")
PATIENCE = 60.0
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("PBS_", "SLURM_", "FI_", "EZPZ_"))}


class Loop:
    """One run of ``ezpz-elastic retry``, everything of which carries a mark."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run_dir = directory / "run"
        self.mark = uuid.uuid4().hex
        self.hostfile = directory / "hostfile"
        self.hostfile.write_text("".join(f"{host}\n" for host in HOSTS))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], *options: str, **more: object) -> subprocess.Popen[bytes]:
        """Start it; standard output and error are pipes unless told otherwise."""
        env = {**CLEAN, MARK: self.mark, **more.pop("env", {})}  # type: ignore[dict-item]
        words = [*RETRY, "--nhosts=2", f"--hostfile={self.hostfile}", f"--run-dir={self.run_dir}", *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        self.process = subprocess.Popen([*words, "--", *command], env=env, cwd=self.directory, **{**pipes, **more})  # type: ignore[call-overload]
        return self.process

    def run(self, command: Sequence[str], *options: str, **more: object) -> tuple[int, bytes, str]:
        """Run it to the end: exit code, standard output, standard error."""
        process = self.start(command, *options, **more)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out or b"", (err or b"").decode(errors="replace")

    def run_plainly(self, words: Sequence[str]) -> tuple[int, bytes, str]:
        """Run some other command under the mark, to the end."""
        pipe = subprocess.PIPE
        env = {**CLEAN, MARK: self.mark}
        self.process = subprocess.Popen(words, env=env, cwd=self.directory, stdout=pipe, stderr=pipe)
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err.decode(errors="replace")

    def script(self, text: str) -> list[str]:
        """A Python program as a command."""
        path = self.directory / f"script-{uuid.uuid4().hex[:6]}.py"
        path.write_text(text)
        return [sys.executable, str(path)]

    def text(self, name: str) -> str:
        path = self.run_dir / name
        return path.read_text(errors="replace") if path.exists() else ""

    def log(self, attempt: int) -> bytes:
        return (self.run_dir / f"attempt-{attempt}.log").read_bytes()

    def events(self, name: str) -> list[dict[str, object]]:
        files = [path.read_bytes().split(b"\n")[:-1] for path in (self.run_dir / "journal").glob("*.jsonl")]
        lines = [line for file in files for line in file]  # whole ones
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def verdicts(self) -> list[tuple[object, object]]:
        return [(event["kind"], event["cause"]) for event in self.events("verdict")]

    def rosters(self) -> list[list[int]]:
        """The hosts of every attempt, as numbers in ``HOSTS``."""
        return [[HOSTS.index(host) for host in event["roster"]] for event in self.events("round_committed")]  # type: ignore[attr-defined]

    def outcome(self) -> dict[str, object]:
        loaded: dict[str, object] = json.loads(self.text("outcome.json"))
        return loaded

    def alive(self) -> list[str]:
        """Command lines of what is left of this run."""
        return told(self.mark)

    @staticmethod
    def await_true(so: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not so():
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:.0f} s"
            time.sleep(0.01)

    def assert_nothing_left(self) -> None:
        self.await_true(lambda: not self.alive(), f"processes left: {self.alive()}")

    def close(self) -> None:
        """End what a failed test has left."""
        end(self.mark)
        if self.process is not None:
            self.process.wait(PATIENCE)
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()
