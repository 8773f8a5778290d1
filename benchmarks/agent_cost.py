"""What an agent itself costs while its workers train, and whether it grows: CPU, memory, files, threads.

    python benchmarks/agent_cost.py [--workers 8] [--seconds 30] [--restarts 0] [--updates 0] [--pace 0.02] [--check]

The workers make a step every ``--pace`` seconds and tell it by ``progress``. CPU is what the kernel has counted for the
agent's process and its guard over ``--seconds``; memory is what the agent has written and nobody shares with it
(of the libraries' files it holds as much as torch does, however many processes look at them), beside that of a process
that has only imported torch.

Growth: ``--restarts N`` kills a worker N times first, ``--updates N`` waits until every worker has told N steps in one
life; memory, descriptors and threads are printed ten times on the way. With ``--check`` the exit code is 1 if there are
more descriptors or threads at the end than in the first half, or more than ``GROWTH`` MiB more memory in the second.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

WORKER = """
import sys, time
from ezpz_elastic import progress
from ezpz_elastic.observe.progress import durable
for step in range(10**9):
    progress(step)
    if step == 3:
        durable(step)
    if step in (3, int(sys.argv[2])):
        print(f"step={step} told", flush=True)
    time.sleep(float(sys.argv[1]))
"""
ONLY_TORCH = "import torch.distributed.run, sys; print('ready', flush=True); sys.stdin.read()"
GROWTH = 4.0
"""MiB over the whole run: more than the records of the rounds, which the store keeps, take."""


class State(NamedTuple):
    """What an agent holds."""

    written: float  # MiB
    descriptors: int
    threads: int

    def __str__(self) -> str:
        return f"{self.written:6.1f} MiB of its own, {self.descriptors} descriptors, {self.threads} threads"


def written(process: psutil.Process) -> float:
    """MiB that this process has written."""
    return float(sum(part.private_dirty for part in process.memory_maps())) / 2**20


def only_torch() -> float:
    """The same of a process that has imported what torchrun imports, and nothing else."""
    with subprocess.Popen([sys.executable, "-c", ONLY_TORCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = written(psutil.Process(child.pid))
        child.kill()
    return found


class Job:
    """One agent with its workers."""

    def __init__(self, scratch: Path, workers: int, pace: float, updates: int) -> None:
        self.run_dir, self._workers, self.round = scratch / "run", workers, 1
        (scratch / "worker.py").write_text(WORKER)
        command = [str(Path(sys.executable).with_name("torchrun")), "--rdzv-backend=ezpz", "--nnodes=1"]
        command += ["--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=cost", "--local-addr=127.0.0.1"]
        command += [f"--nproc-per-node={workers}", "--max-restarts=100000", f"--rdzv-conf=run_dir={self.run_dir}"]
        command += [str(scratch / "worker.py"), str(pace), str(updates)]
        with (scratch / "console.txt").open("wb") as console:
            self.agent = psutil.Popen(
                command, stdout=console, stderr=console, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )

    def await_step(self, step: int) -> None:
        """Wait until every worker of the current round has told a step."""
        logs = [self.run_dir / "rounds" / str(self.round) / str(rank) / "stdout.log" for rank in range(self._workers)]
        while not all(log.exists() and f"step={step} told" in log.read_text() for log in logs):
            if self.agent.poll() is not None:
                raise SystemExit(f"the agent has ended with {self.agent.poll()} in round {self.round}")
            time.sleep(0.01)

    def kill_one(self) -> None:
        """Kill a worker and wait for the next life's first steps."""
        wanted = f'"round":{self.round},"event":"worker_started"'
        lines = (self.run_dir / "journal/127.0.0.1.jsonl").read_text().splitlines()
        pids = [int(line.partition('"pid":')[2].rstrip("}")) for line in lines if wanted in line]
        os.kill(random.choice(pids), signal.SIGKILL)
        shutil.rmtree(self.run_dir / "rounds" / str(self.round - 1), ignore_errors=True)
        self.round += 1
        self.await_step(3)

    def state(self) -> State:
        """Memory, files and threads."""
        return State(written(self.agent), self.agent.num_fds(), self.agent.num_threads())

    def end(self) -> None:
        self.agent.send_signal(signal.SIGTERM)
        self.agent.wait(30)


def restart(job: Job, restarts: int) -> list[State]:
    """Kill workers one after the other; the states after each tenth of the way."""
    found = []
    began = time.monotonic()
    for number in range(1, restarts + 1):
        job.kill_one()
        if number % max(1, restarts // 10) == 0:
            time.sleep(1.5)  # what a round has opened for a moment is closed
            found.append(job.state())
            print(f"{number:5} restarts:  {found[-1]}, {time.monotonic() - began:.0f} s", flush=True)
    return found


def grown(found: list[State]) -> bool:
    """Whether an agent holds more and more; an allocator keeps some MiB now and then: the least of each half counts."""
    early, late = found[: max(1, len(found) // 2)], found[len(found) // 2 :]
    more = min(state.written for state in late) - min(state.written for state in early) > GROWTH
    last = found[-1]
    return more or any(last.descriptors > one.descriptors or last.threads > one.threads for one in early)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.02)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then, too
    scratch = Path(tempfile.mkdtemp(prefix="ezpz-cost-"))
    job = Job(scratch, options.workers, options.pace, options.updates)
    try:
        job.await_step(3)
        time.sleep(10)  # the second server starts and is done
        print(f"at first:        {job.state()}", flush=True)
        found = restart(job, options.restarts)
        if options.updates:
            before = job.state()
            job.await_step(options.updates)
            found = [*(found or [before]), job.state()]
            print(f"{options.updates:5} updates:   {found[-1]}, told by each of {options.workers} workers", flush=True)
        guards = [child for child in job.agent.children() if "guard.py" in " ".join(child.cmdline())]
        before_cpu = [process.cpu_times() for process in (job.agent, *guards)]
        time.sleep(options.seconds)
        after_cpu = [process.cpu_times() for process in (job.agent, *guards)]
        spent = sum(b.user + b.system - a.user - a.system for a, b in zip(before_cpu, after_cpu, strict=True))
        if options.seconds:
            print(f"CPU:             {spent / options.seconds:.2%} of a core over {options.seconds:.0f} s")
        print(f"at last:         {job.state()}")
        print(f"torch alone:     {only_torch():.1f} MiB of its own")
    finally:
        job.end()
        shutil.rmtree(scratch, ignore_errors=True)
    if options.check and found and grown(found):
        raise SystemExit(f"the agent has grown from {found[0]} to {found[-1]}")


if __name__ == "__main__":
    main()
