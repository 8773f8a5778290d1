"""The job as a user would start it: one ``torchrun`` per host, and nothing of it left when the demo ends."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil

from ezpz_elastic.demo.plot import ACTIVE, SAVE_EVERY, STEPS
from ezpz_elastic.errors import UsageError

__all__ = ["Job"]

TAG = "EZPZ_DEMO"
"""Environment variable by which everything this demo has started, however indirectly, is found."""

GRACE = 10.0
"""Seconds the agents have to leave in good order when the demo is interrupted."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Job:
    """Agents on loopback hosts.

    Args:
        run_dir: the run directory.
        checkpoints: where the trainer saves.
        receipts: where the trainer leaves receipts.

    Raises:
        UsageError: this machine has no torchrun, or no loopback network of more than one address.
    """

    def __init__(self, run_dir: Path, checkpoints: Path, receipts: Path) -> None:
        self._run_dir, self._checkpoints, self._receipts = run_dir, checkpoints, receipts
        self._torchrun = Path(sys.executable).with_name("torchrun")
        if not self._torchrun.exists():
            raise UsageError(f"no {self._torchrun}", expected="torch installed beside this Python")
        self._port = _free_port(ACTIVE[0])
        self._tag = uuid.uuid4().hex
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, host: str) -> list[str]:
        """What a user would type on that host."""
        return [
            "torchrun",
            "--rdzv-backend=ezpz",
            f"--rdzv-endpoint={ACTIVE[0]}:{self._port}",
            "--rdzv-id=demo",
            f"--nnodes={len(ACTIVE)}:{len(ACTIVE)}",
            "--nproc-per-node=1",
            f"--local-addr={host}",
            "--max-restarts=3",
            "--rdzv-conf=run_dir=.",
            "-m",
            "ezpz_elastic.demo.trainer",
            f"--checkpoints={self._checkpoints}",
            f"--receipts={self._receipts}",
            f"--steps={STEPS}",
            f"--save-every={SAVE_EVERY}",
        ]

    def start(self, host: str) -> None:
        """Start a host's agent; its console goes to ``agents/<host>.log``."""
        log = self.log(host)
        log.parent.mkdir(exist_ok=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "TORCHELASTIC_"))}
        environment |= {TAG: self._tag, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as console:
            self.agents[host] = subprocess.Popen(
                [str(self._torchrun), *self.command(host)[1:]],
                cwd=self._run_dir,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is the demo's to pass on, in order
                preexec_fn=_end_with_parent,  # noqa: PLW1509  # one thread here, and nothing is allocated in it
            )

    def log(self, host: str) -> Path:
        """Where a host's console goes."""
        return self._run_dir / "agents" / f"{host}.log"

    def exit_codes(self) -> dict[str, int]:
        """Of the agents that have ended."""
        return {host: agent.returncode for host, agent in self.agents.items() if agent.poll() is not None}

    def ended(self) -> bool:
        """Whether all agents have ended."""
        return len(self.exit_codes()) == len(self.agents)

    def left(self) -> tuple[int, ...]:
        """Processes of this job that are still there."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(TAG) == self._tag:
                    found.append(process.pid)
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                continue  # another user's, or gone meanwhile
        return tuple(found)

    def close(self) -> None:
        """End whatever still runs: in good order if it can be, by force if it must."""
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.terminate()
        deadline = time.monotonic() + GRACE
        for agent in self.agents.values():
            try:
                agent.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise UsageError(
                f"cannot use {host}: {error.strerror}", expected="a loopback network where 127.0.0.2 and up are usable"
            ) from error
        return int(probe.getsockname()[1])
