"""Real agents on loopback "hosts" of one machine, each a ``torchrun`` in a session of its own.

They are forked from a process that has torch imported, unless a test starts them by a command of its own or asks for a
new interpreter.

Everything a cluster starts carries a mark in its environment, so that a test can tell what is left of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from ezpz_elastic import guard
from support.forked import Program, fork
from support.marked import MARK, end, told

JOBS = Path(__file__).parent / "jobs"

Event = dict[str, object]


def free_port(host: str) -> int:
    """A free port, of those that the kernel gives to nobody by itself: it may be taken much later."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):  # in use
            probe.bind((host, port))
            return port


class Cluster:
    """Agents on ``127.0.0.<n>``; the endpoint is on ``127.0.0.<first>``."""

    def __init__(self, directory: Path, first: int = 2) -> None:
        self.directory = directory
        self.run_dir = directory / "run"
        self.mark = uuid.uuid4().hex
        self.endpoint = f"127.0.0.{first}:{free_port(f'127.0.0.{first}')}"
        self.agents: dict[int, subprocess.Popen[bytes] | Program] = {}
        self._sessions = set[int]()  # of those that were forked
        self.shared_before = set(Path("/dev/shm").iterdir())

    @staticmethod
    def torchrun() -> str:
        """The torchrun beside this interpreter."""
        return shutil.which("torchrun", path=str(Path(sys.executable).parent)) or "torchrun"

    def start(
        self,
        host: int,
        script: Sequence[str],
        *,
        nnodes: str = "2:2",
        nproc: int = 1,
        max_restarts: int = 3,
        conf: str = "",
        command: Sequence[str] = (),
        env: dict[str, str] | None = None,
        options: Sequence[str] = (),
        cold: bool = False,
    ) -> subprocess.Popen[bytes] | Program:
        """Start the agent of one host; ``cold``: with an interpreter of its own, which sees this environment and these
        words from its first import on."""
        arguments = [
            *(command or [self.torchrun(), "--rdzv-backend=ezpz"]),
            f"--rdzv-endpoint={self.endpoint}",
            "--rdzv-id=job",
            f"--nnodes={nnodes}",
            f"--nproc-per-node={nproc}",
            f"--local-addr=127.0.0.{host}",
            f"--max-restarts={max_restarts}",
            f"--rdzv-conf=run_dir={self.run_dir}" + (f",{conf}" if conf else ""),
            *options,
            *script,
        ]
        whole = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {}), MARK: self.mark}
        with (self.directory / f"host-{host}.log").open("wb") as log:
            if command or cold:
                self.agents[host] = subprocess.Popen(
                    arguments,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd=self.directory,
                    env=whole,
                )
            else:
                self.agents[host] = agent = fork(arguments, self.directory, whole, log)
                self._sessions.add(agent.pid)
        return self.agents[host]

    def output(self, host: int) -> str:
        """Everything a host's agent has printed."""
        return (self.directory / f"host-{host}.log").read_text(errors="replace")

    def wait(self, host: int, timeout: float = 60.0) -> int:
        """An agent's exit code."""
        try:
            return self.agents[host].wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"host {host} still runs after {timeout} s:\n{self.output(host)[-3000:]}") from None

    def events(self, name: str = "") -> list[Event]:
        """The journal of all hosts, in order of time."""
        found: list[Event] = []
        for path in (self.run_dir / "journal").glob("*.jsonl"):
            lines = path.read_bytes().split(b"\n")[:-1]
            found += [json.loads(line) for line in lines]
        return sorted((e for e in found if not name or e["event"] == name), key=lambda event: event["ts"])  # type: ignore[arg-type,return-value]

    def await_true(self, what: Callable[[], object], why: str, timeout: float = 60.0) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + timeout
        while not what():
            dead = {host: agent.poll() for host, agent in self.agents.items() if agent.poll() is not None}
            if time.monotonic() > deadline:
                outputs = "\n".join(f"--- host {host}:\n{self.output(host)[-2000:]}" for host in self.agents)
                there = f"ended agents: {dead}; there: {self.alive()}, {self._shared()}"
                raise AssertionError(f"{why}: not within {timeout} s ({there})\n{outputs}")
            time.sleep(0.02)

    def await_step(self, step: int, round_number: int = 1, timeout: float = 60.0) -> None:
        """Wait until rank 0 has printed a step of a round."""
        log = self.run_dir / "rounds" / str(round_number) / "0" / "stdout.log"
        wanted = f"step={step} "
        self.await_true(
            lambda: log.exists() and wanted in log.read_text(), f"step {step} of round {round_number}", timeout
        )

    def workers(self, host: int, round_number: int) -> list[int]:
        """Pids of a host's workers in a round."""
        started = [e for e in self.events("worker_started") if e["round"] == round_number]
        return [int(str(e["pid"])) for e in started if e["host"] == f"127.0.0.{host}"]

    def worker(self, host: int, round_number: int, local_rank: int = 0) -> int:
        """Pid of one of a host's workers in a round, as soon as it is there."""
        self.await_true(
            lambda: len(self.workers(host, round_number)) > local_rank, f"worker {local_rank} of host {host}"
        )
        return self.workers(host, round_number)[local_rank]

    def kill_host(self, host: int, round_number: int) -> None:
        """Agent and workers at once, and make sure that they died of it."""
        self.worker(host, round_number)
        victims = [self.agents[host].pid, *self.workers(host, round_number)]
        assert len(victims) > 1, "the host has no workers to lose"
        assert self.agents[host].poll() is None, "it has ended before"
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # a worker that the agent's guard has ended by now
                os.kill(pid, signal.SIGKILL)
        assert self.agents[host].wait(60) == -signal.SIGKILL

    def text(self, name: str) -> str:
        """A file of the run directory; empty if there is none."""
        path = self.run_dir / name
        return path.read_text() if path.exists() else ""

    def outcome(self) -> Event:
        """``outcome.json``."""
        loaded: Event = json.loads(self.text("outcome.json"))
        return loaded

    def rosters(self) -> list[list[str]]:
        """The hosts of every round, in slot order."""
        return [list(e["roster"]) for e in self.events("round_committed")]  # type: ignore[call-overload]

    def alive(self) -> list[str]:
        """Command lines of everything this cluster started that is still there."""
        return told(self.mark, self._sessions)

    def assert_nothing_left(self) -> None:
        """No process, no port, no shared memory."""
        self.await_true(lambda: not self.alive(), "nothing is left", 25)  # what a grace period (30 s) ends was left
        host, port = self.endpoint.split(":")
        with socket.socket() as probe:
            assert probe.connect_ex((host, int(port))) != 0, "the endpoint still listens"
        self.await_true(lambda: not self._shared(), "no shared memory is left", 10)  # another run's may be ownerless

    def _shared(self) -> set[Path]:
        new = {p for p in set(Path("/dev/shm").iterdir()) - self.shared_before if "torch" in p.name or "psm_" in p.name}
        new -= guard.segments(psutil.pids()) if new else set()  # of another test run on this machine
        return {path for path in new if path.exists()}

    def close(self) -> None:
        """End whatever a failed test has left running."""
        for agent in self.agents.values():
            agent.kill()
        end(self.mark, self._sessions)
        for agent in self.agents.values():
            agent.wait()
