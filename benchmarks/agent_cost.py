"""What an agent itself costs while its workers train, and whether it grows: CPU, memory, files, threads.

    python benchmarks/agent_cost.py [--workers 8] [--seconds 30] [--restarts 0]

The workers make a step every 20 ms and tell it by ``progress``. CPU is what the kernel has counted for the agent's
process and its guard over ``--seconds``; memory is the agent's private memory (what nobody shares with it) beside that
of a process that has only imported torch. With ``--restarts N`` the job's rank 0 is killed N times first, and the
memory before and after is compared.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

WORKER = """
import time
from ezpz_elastic import progress
for step in range(10**9):
    progress(step)
    time.sleep(0.02)
"""
ONLY_TORCH = "import torch.distributed.run, sys; print('ready', flush=True); sys.stdin.read()"


def private(process: psutil.Process) -> float:
    """MiB that only this process holds."""
    return float(process.memory_full_info().uss) / 2**20


def only_torch() -> float:
    """The same of a process that has imported what torchrun imports, and nothing else."""
    with subprocess.Popen([sys.executable, "-c", ONLY_TORCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = private(psutil.Process(child.pid))
        child.kill()
    return found


def workers(journal: Path, round_number: int, count: int) -> list[int]:
    """Pids of a round's workers, once all have started."""
    wanted = f'"round":{round_number},"event":"worker_started"'
    while True:
        lines = [line for line in journal.read_text().splitlines() if wanted in line] if journal.exists() else []
        if len(lines) == count:
            return [int(line.partition('"pid":')[2].rstrip("}")) for line in lines]
        time.sleep(0.02)


def state(agent: psutil.Process) -> str:
    """Memory, files and threads in words."""
    return f"{private(agent):.1f} MiB private, {agent.num_fds()} descriptors, {agent.num_threads()} threads"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--restarts", type=int, default=0)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="ezpz-cost-"))
    (scratch / "worker.py").write_text(WORKER)
    command = [str(Path(sys.executable).with_name("torchrun")), "--rdzv-backend=ezpz", "--rdzv-endpoint=127.0.0.1:0"]
    command += ["--rdzv-id=cost", "--local-addr=127.0.0.1", "--nnodes=1", f"--nproc-per-node={options.workers}"]
    command += ["--max-restarts=100000", f"--rdzv-conf=run_dir={scratch / 'run'}", str(scratch / "worker.py")]
    with (scratch / "console.txt").open("wb") as console:
        agent = psutil.Popen(command, stdout=console, stderr=console, env={**os.environ, "OMP_NUM_THREADS": "1"})
    journal = scratch / "run/journal/127.0.0.1.jsonl"
    try:
        pids = workers(journal, 1, options.workers)
        time.sleep(10)  # the second server starts and is done
        print(f"at first:       {state(agent)}")
        for number in range(options.restarts):
            os.kill(pids[0], signal.SIGKILL)
            pids = workers(journal, number + 2, options.workers)
            if number + 1 in {10, options.restarts}:
                time.sleep(2)
                print(f"{number + 1:4} restarts:  {state(agent)}")
        guards = [child for child in agent.children() if "guard.py" in " ".join(child.cmdline())]
        before = [process.cpu_times() for process in (agent, *guards)]
        time.sleep(options.seconds)
        after = [process.cpu_times() for process in (agent, *guards)]
        spent = sum(b.user + b.system - a.user - a.system for a, b in zip(before, after, strict=True))
        print(f"CPU:            {spent / options.seconds:.2%} of a core over {options.seconds:.0f} s")
        print(f"at last:        {state(agent)}")
        print(f"torch alone:    {only_torch():.1f} MiB private")
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(30)


if __name__ == "__main__":
    main()
