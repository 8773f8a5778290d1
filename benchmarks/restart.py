"""How long a killed worker costs: from its SIGKILL to the first step of the whole restarted group.

    python benchmarks/restart.py [--kills 30] [--per-job 5] [--agents 1 2] [--jobs bare ddp] [--json FILE]
        [--contenders ezpz torchrun torchrun-shared] [--ft-launcher PATH] [--lm-resiliency PYTHON]

Two ranks train on this machine, on one agent or on two. A rank is killed, the time until every rank of the restarted
group has finished a step is taken from the ranks' own clocks (one machine, one clock), and again, ``--per-job`` times
in one job; jobs of all contenders alternate within the run, so that a noisy machine is noisy for all. A restart that
takes longer than ``--limit`` seconds is a hung one: it is counted, and its job is ended. Compare only within one run.

Contenders: ``ezpz``; ``torchrun`` (a fresh store for every restart: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1);
``torchrun-shared`` (torchrun's default); ``ft_launcher`` of nvidia-resiliency-ext, if it is in PATH or named;
``lm-resiliency``, if this interpreter has it or one is named that does. The last two may be in virtual environments
of their own. What is not there gets a line that says so.

lm-resiliency 0.2.0 cannot be registered by torch 2.13 itself: torch calls a ``torchrun.handlers`` entry point without
arguments and expects the creator, and the package's entry point is the creator. It is registered by hand here, which
changes nothing else. Its rendezvous lets a group begin again only by a plan of its recovery manager, which a training
script has to attach; scripts as these, which attach nothing, wait for one (``lm_resiliency_join_timeout_ms``, 5
minutes) and then fail, so every kill of them is a hung run.
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
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil

JOBS = Path(__file__).parent / "jobs"
REGISTERED = (
    "from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry;"
    "from lm_resiliency.integrations.torchrun import get_rendezvous_handler_creator;"
    "registry.register('lm_resiliency', get_rendezvous_handler_creator());"
    "from torch.distributed.run import main; main()"
)
MARK = "EZPZ_BENCHMARK"
CONTENDERS = ["ezpz", "torchrun", "torchrun-shared", "ft_launcher", "lm-resiliency"]
SETTLED = 4.0
"""Seconds a group trains before a rank of it is killed."""


@dataclass
class Row:
    """What one contender did on one job with one number of agents."""

    seconds: list[float] = field(default_factory=list)
    hung: int = 0
    kills: int = 0
    spans: dict[str, list[float]] = field(default_factory=dict)


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def command(
    contender: str, agent: int, agents: int, port: int, scratch: Path, options: argparse.Namespace
) -> list[str]:
    """The agent's command line, up to the script."""
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    shared = [f"--nnodes={agents}", f"--nproc-per-node={2 // agents}", "--max-restarts=1000", "--rdzv-id=bench"]
    shared += [f"--local-addr=127.0.0.{2 + agent}", f"--rdzv-endpoint=127.0.0.2:{port}"]
    if contender == "ezpz":
        return [torchrun, "--rdzv-backend=ezpz", *shared, f"--rdzv-conf=run_dir={scratch / 'run'}"]
    logs = [f"--log-dir={scratch / 'logs'}", "--redirects=3"]
    if contender == "lm-resiliency":
        conf = f"store_type=tcp,is_host={str(agent == 0).lower()},lm_resiliency_restart_context_path="
        conf += f"{scratch / f'context-{agent}' / 'context.json'}"
        backend = ["--rdzv-backend=lm_resiliency", f"--rdzv-conf={conf}", "--monitor-interval=0.1"]
        return [options.lm_resiliency, "-c", REGISTERED, *backend, *logs, *shared]
    program = [options.ft_launcher, "--ignore-missing-fault-tol-cfg"] if contender == "ft_launcher" else [torchrun]
    return [*program, "--rdzv-backend=c10d", *logs, *shared]


class Training:
    """One job of one contender, restarted again and again."""

    def __init__(self, contender: str, job: str, agents: int, scratch: Path, options: argparse.Namespace) -> None:
        self.scratch, self.mark = scratch, f"{os.getpid()}-{scratch.name}"
        self.log = scratch / "steps.txt"
        self.log.touch()
        env = {**os.environ, "OMP_NUM_THREADS": "1", MARK: self.mark}
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "0" if contender == "torchrun-shared" else "1"
        port = free_port("127.0.0.2")
        envs = [env | self._machine(agent) if contender == "lm-resiliency" else env for agent in range(agents)]
        with (scratch / "console.txt").open("wb") as console:
            self.agents = [
                subprocess.Popen(
                    [*command(contender, n, agents, port, scratch, options), str(JOBS / f"{job}.py"), str(self.log)],
                    env=envs[n],
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for n in range(agents)
            ]

    def _machine(self, agent: int) -> dict[str, str]:
        """An identity for each agent: this one tells machines apart by the system's, and two agents share it here."""
        (self.scratch / f"context-{agent}").mkdir(mode=0o700)
        identity = self.scratch / f"machine-{agent}"
        identity.write_text(f"{uuid.uuid4().hex}\n")
        return {"LM_RESILIENCY_MACHINE_ID_PATH": str(identity)}

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
    training = Training(contender, job, agents, scratch, options)
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
            row.kills += 1
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


def is_there(contender: str, options: argparse.Namespace) -> bool:
    """Whether a contender is installed; if not, that is said."""
    program, package = {
        "ft_launcher": ([options.ft_launcher, "--help"], "nvidia-resiliency-ext"),
        "lm-resiliency": ([options.lm_resiliency, "-c", "import lm_resiliency.integrations.torchrun"], "lm-resiliency"),
    }.get(contender, ([sys.executable, "-c", ""], "torch"))
    try:
        there = subprocess.run(program, capture_output=True, check=False).returncode == 0
    except OSError:
        there = False
    if not there:
        print(f"{contender} (package {package}) is not installed here: no row for it", flush=True)
    return there


def report(rows: dict[tuple[str, int, str], Row]) -> None:
    """A table; the ratio is to torchrun's median of the same job and number of agents."""
    print(f"{'job':5} agents {'contender':16} kills hung  median    min    max  ratio  spans (median, ms)")
    for (job, agents, contender), row in rows.items():
        base = rows.get((job, agents, "torchrun"))
        if not row.seconds:
            print(f"{job:5} {agents:6} {contender:16} {row.kills:5} {row.hung:4}")
            continue
        median = statistics.median(row.seconds)
        ratio = f"{median / statistics.median(base.seconds):6.3f}" if base is not None and base.seconds else "     –"
        spans = " ".join(f"{name} {statistics.median(values) * 1000:.0f}" for name, values in row.spans.items())
        print(
            f"{job:5} {agents:6} {contender:16} {row.kills:5} {row.hung:4} {median:7.3f} {min(row.seconds):6.3f}"
            f" {max(row.seconds):6.3f} {ratio}  {spans}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=30, help="restarts per contender, job and number of agents")
    parser.add_argument("--per-job", type=int, default=5)
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 2], choices=[1, 2])
    parser.add_argument("--jobs", nargs="+", default=["bare", "ddp"], choices=["bare", "ddp"])
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--ft-launcher", default=shutil.which("ft_launcher") or "", help="the program")
    parser.add_argument("--lm-resiliency", default=sys.executable, help="an interpreter that has it")
    parser.add_argument("--limit", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then, too
    options.contenders = [name for name in options.contenders if is_there(name, options)]
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
