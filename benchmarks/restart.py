"""How long a killed worker costs: from its SIGKILL to the first step of the whole restarted group.

    python benchmarks/restart.py [--kills 30] [--per-job 5] [--agents 1 2] [--jobs bare ddp] [--json FILE]
        [--contenders ezpz torchrun torchrun-shared] [--ft-launcher PATH]

Two ranks train on this machine, on one agent or on two. A rank is killed, the time until every rank of the restarted
group has finished a step is taken from the ranks' own clocks (one machine, one clock), and again, ``--per-job`` times
in one job; jobs of all contenders alternate within the run, so that a noisy machine is noisy for all. A restart that
takes longer than ``--limit`` seconds is a hung one: it is counted, and its job is ended. Compare only within one run.

Contenders: ``ezpz``; ``torchrun`` (a fresh store for every restart: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1);
``torchrun-shared`` (torchrun's default); ``ft_launcher`` of nvidia-resiliency-ext, if it is in PATH or named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

JOBS = Path(__file__).parent / "jobs"
MARK = "EZPZ_BENCHMARK"
SETTLED = 4.0
"""Seconds a group trains before a rank of it is killed."""


@dataclass
class Row:
    """What one contender did on one job with one number of agents."""

    seconds: list[float] = field(default_factory=list)
    hung: int = 0
    spans: dict[str, list[float]] = field(default_factory=dict)


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def command(contender: str, agent: int, agents: int, port: int, scratch: Path, launcher: str) -> list[str]:
    """The agent's command line, up to the script."""
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    shared = [f"--nnodes={agents}", f"--nproc-per-node={2 // agents}", "--max-restarts=1000", "--rdzv-id=bench"]
    shared += [f"--local-addr=127.0.0.{2 + agent}", f"--rdzv-endpoint=127.0.0.2:{port}"]
    if contender == "ezpz":
        return [torchrun, "--rdzv-backend=ezpz", *shared, f"--rdzv-conf=run_dir={scratch / 'run'}"]
    program = [launcher, "--ignore-missing-fault-tol-cfg"] if contender == "ft_launcher" else [torchrun]
    return [*program, "--rdzv-backend=c10d", f"--log-dir={scratch / 'logs'}", "--redirects=3", *shared]


class Training:
    """One job of one contender, restarted again and again."""

    def __init__(self, contender: str, job: str, agents: int, scratch: Path, launcher: str) -> None:
        self.scratch, self.mark = scratch, f"{os.getpid()}-{scratch.name}"
        self.log = scratch / "steps.txt"
        self.log.touch()
        env = {**os.environ, "OMP_NUM_THREADS": "1", MARK: self.mark}
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "0" if contender == "torchrun-shared" else "1"
        port = free_port("127.0.0.2")
        with (scratch / "console.txt").open("wb") as console:
            self.agents = [
                subprocess.Popen(
                    [*command(contender, n, agents, port, scratch, launcher), str(JOBS / f"{job}.py"), str(self.log)],
                    env=env,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for n in range(agents)
            ]

    def first_steps(self, known: set[int]) -> dict[int, tuple[int, float]]:
        """For each rank of a life that is not known: its pid, and when it had finished its first step."""
        found: dict[int, tuple[int, float]] = {}
        for line in self.log.read_text().splitlines():
            parts = line.split()
            if len(parts) == 4 and int(parts[1]) not in known:
                rank, pid = int(parts[0]), int(parts[1])
                if rank not in found or found[rank][0] != pid:
                    found[rank] = pid, float(parts[3])  # a life that died while it started is followed by another
        return found

    def await_group(self, known: set[int], limit: float) -> dict[int, tuple[int, float]] | None:
        """Both ranks' first steps of the next life; ``None`` if there is none in time."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            found = self.first_steps(known)
            if len(found) == 2:
                return found
            if all(agent.poll() is not None for agent in self.agents):
                return None
            time.sleep(0.05)
        return None

    def spans(self) -> dict[str, float]:
        """Our own journal's account of the last restart: the longest of all agents for each span."""
        longest: dict[str, float] = {}
        events = [
            json.loads(line)
            for path in (self.scratch / "run" / "journal").glob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        last = max((event["round"] for event in events), default=0)
        for event in events:
            number = last if event.get("name") in {"spawn", "rendezvous"} else last - 1
            if event["event"] == "span" and event["round"] == number:
                longest[event["name"]] = max(longest.get(event["name"], 0.0), event["seconds"])
        return longest

    def end(self) -> None:
        """End everything this job has started."""
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            try:
                agent.wait(5)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    process.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue


def measure(row: Row, contender: str, job: str, agents: int, options: argparse.Namespace) -> None:
    """One job with ``--per-job`` kills."""
    scratch = Path(tempfile.mkdtemp(prefix="ezpz-restart-"))
    training = Training(contender, job, agents, scratch, options.ft_launcher)
    try:
        group = training.await_group(set(), 60)
        if group is None:
            raise SystemExit(f"{contender} did not start:\n{(scratch / 'console.txt').read_text()[-2000:]}")
        known: set[int] = set()
        for _ in range(options.per_job):
            known |= {pid for pid, _ in group.values()}
            time.sleep(SETTLED)
            killed = time.time()
            os.kill(group[random.randrange(2)][0], signal.SIGKILL)
            group = training.await_group(known, options.limit)
            if group is None:
                row.hung += 1
                return
            row.seconds.append(max(when for _, when in group.values()) - killed)
            for name, seconds in training.spans().items():
                row.spans.setdefault(name, []).append(seconds)
    finally:
        training.end()
        shutil.rmtree(scratch, ignore_errors=True)


def report(rows: dict[tuple[str, int, str], Row]) -> None:
    """A table; the ratio is to torchrun's median of the same job and number of agents."""
    print(f"{'job':5} agents {'contender':16} {'n':>3} hung  median    min    max  ratio  spans (median, ms)")
    for (job, agents, contender), row in rows.items():
        base = rows.get((job, agents, "torchrun"))
        if not row.seconds:
            print(f"{job:5} {agents:6} {contender:16} {0:3} {row.hung:4}")
            continue
        median = statistics.median(row.seconds)
        ratio = f"{median / statistics.median(base.seconds):6.3f}" if base is not None and base.seconds else "     –"
        spans = " ".join(f"{name} {statistics.median(values) * 1000:.0f}" for name, values in row.spans.items())
        print(
            f"{job:5} {agents:6} {contender:16} {len(row.seconds):3} {row.hung:4} {median:7.3f} {min(row.seconds):6.3f}"
            f" {max(row.seconds):6.3f} {ratio}  {spans}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=30, help="restarts per contender, job and number of agents")
    parser.add_argument("--per-job", type=int, default=5)
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 2], choices=[1, 2])
    parser.add_argument("--jobs", nargs="+", default=["bare", "ddp"], choices=["bare", "ddp"])
    parser.add_argument("--contenders", nargs="+", default=["ezpz", "torchrun", "torchrun-shared", "ft_launcher"])
    parser.add_argument("--ft-launcher", default=shutil.which("ft_launcher") or "")
    parser.add_argument("--limit", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "ft_launcher" in options.contenders and not options.ft_launcher:
        options.contenders.remove("ft_launcher")
        print("ft_launcher (nvidia-resiliency-ext) is not installed here: no row for it")
    rows: dict[tuple[str, int, str], Row] = {
        (job, agents, contender): Row()
        for job in options.jobs
        for agents in options.agents
        for contender in options.contenders
    }
    for _ in range(-(-options.kills // options.per_job)):
        for (job, agents, contender), row in rows.items():
            measure(row, contender, job, agents, options)
    report(rows)
    if options.json:
        table = [
            {"job": job, "agents": agents, "contender": contender, "seconds": row.seconds, "hung": row.hung}
            for (job, agents, contender), row in rows.items()
        ]
        options.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
