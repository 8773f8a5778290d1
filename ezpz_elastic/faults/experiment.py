"""The experiment: the trainer behind the retry loop, on this machine, with faults on cue."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from ezpz_elastic.faults.record import AttemptRecord, read_run

__all__ = ["Experiment", "Result"]

_LIMIT_S = 600.0
"""Seconds that a whole experiment may take; a hang of the loop itself must not hang the experiment."""


class Experiment(msgspec.Struct, frozen=True):
    """What is done.

    Args:
        total_steps, ckpt_every: of the job.
        fail_at: attempt -> the step at which it fails.
        modes: the Nth drives the Nth attempt, and the last repeats.
        nhosts, spares: of the allocation, which is a list of names only.
        host: the host that is named in every attempt; empty: one that is active at the time.
        retry: further options of ``ezpz-elastic retry``.
        environment: further knobs of the trainer.
    """

    total_steps: int = 300
    ckpt_every: int = 25
    fail_at: dict[int, int] = {}
    modes: tuple[str, ...] = ("shepherd",)
    nhosts: int = 2
    spares: int = 3
    host: str = ""
    retry: tuple[str, ...] = ()
    environment: dict[str, str] = {}

    def hosts(self) -> tuple[str, ...]:
        """The allocation, spelled as a PALS machine spells it."""
        every = range(self.nhosts + self.spares)
        return tuple(f"x1922c7s{number}b0n0-hsn0.hsn.cm.sunspot.alcf.anl.gov" for number in every)

    def perform(self, directory: Path) -> Result:
        """Run it.

        Args:
            directory: new or empty; hostfile, checkpoint, receipts and the run directory go there.

        Raises:
            subprocess.TimeoutExpired: the loop did not end.
        """
        directory.mkdir(parents=True, exist_ok=True)
        hostfile, run_dir, receipts = directory / "hostfile", directory / "run", directory / "receipts"
        hostfile.write_text("".join(f"{host}\n" for host in self.hosts()))
        last = max(self.fail_at, default=0)
        knobs = {
            "FI_TOTAL": str(self.total_steps),
            "FI_CKPT_EVERY": str(self.ckpt_every),
            "FI_CKPT": str(directory / "checkpoint.json"),
            "FI_RECEIPTS": str(receipts),
            "FI_COUNTER": str(directory / "attempts.txt"),
            "FI_FAIL_AT": ",".join(str(self.fail_at.get(attempt, "-")) for attempt in range(1, last + 1)),
            "FI_MODE": ",".join(self.modes),
            "FI_HOST": self.host,
        }
        command = [sys.executable, "-c", "from ezpz_elastic.cli import main; main()", "retry"]
        command += [f"--nhosts={self.nhosts}", f"--hostfile={hostfile}", f"--run-dir={run_dir}", *self.retry]
        command += ["--", sys.executable, "-m", "ezpz_elastic.faults.trainer", "--hostfile={hostfile}"]
        began = time.monotonic()
        done = subprocess.run(
            command,
            check=False,
            env={**os.environ, **knobs, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
        )
        elapsed = time.monotonic() - began
        return Result(
            exit_code=done.returncode,
            elapsed=elapsed,
            attempts=read_run(run_dir, receipts) if (run_dir / "journal").is_dir() else (),
            console=done.stderr.decode(errors="replace"),
        )


class Result(msgspec.Struct, frozen=True):
    """What came of it.

    Args:
        exit_code: of the retry loop.
        elapsed: seconds.
        attempts: what each attempt left.
        console: what the loop said.
    """

    exit_code: int
    elapsed: float
    attempts: tuple[AttemptRecord, ...]
    console: str

    def missing(self, experiment: Experiment) -> list[int]:
        """Attempts in which a fault was to be done and has no witness: then nothing was tested."""
        landed = {record.attempt for record in self.attempts if record.landed}
        return sorted(set(experiment.fail_at) - landed)
