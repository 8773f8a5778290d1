"""How long a whole lost host costs: from the SIGKILL of its agent and workers to the first step on the spare.

    python benchmarks/host_loss.py [--losses 5] [--job bare|ddp] [--lease-ttl 5]

Two active hosts and a spare on loopback addresses of this machine, one rank each; the second host is killed at once,
agent first, when the group has trained for a while and the spare has done its imports. The time of the decision is the
coordinator's own journal entry. What is between the decision and the first step is told by the journals' spans.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from restart import JOBS, MARK, SETTLED, free_port


def start(host: int, port: int, job: str, scratch: Path, ttl: float) -> subprocess.Popen[bytes]:
    """An agent at 127.0.0.<host>."""
    command = [str(Path(sys.executable).with_name("torchrun")), "--rdzv-backend=ezpz", "--nnodes=2:2"]
    command += [f"--rdzv-endpoint=127.0.0.2:{port}", "--rdzv-id=bench", f"--local-addr=127.0.0.{host}"]
    command += [
        f"--rdzv-conf=run_dir={scratch / 'run'},lease_ttl={ttl}",
        str(JOBS / f"{job}.py"),
        str(scratch / "steps"),
    ]
    with (scratch / f"host-{host}.txt").open("wb") as console:
        env = {**os.environ, "OMP_NUM_THREADS": "1", MARK: scratch.name}
        return subprocess.Popen(command, env=env, stdout=console, stderr=subprocess.STDOUT, start_new_session=True)


def steps(scratch: Path) -> list[list[str]]:
    path = scratch / "steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [parts for line in lines if len(parts := line.split()) == 4]


def await_true(what: object, limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while not what():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise SystemExit("it did not come to that in time")
        time.sleep(0.02)


def has_settled(agent: int) -> bool:
    """Whether an agent's servers import nothing any more: a spare that has stood by for a few seconds."""
    servers = [child for child in psutil.Process(agent).children() if "server.py" in " ".join(child.cmdline())]
    before = [server.cpu_times().user for server in servers]
    time.sleep(0.5)
    return bool(servers) and before == [server.cpu_times().user for server in servers]


def lose(job: str, ttl: float) -> tuple[float, float]:
    """One loss: seconds to the decision, and to the first step of both ranks."""
    scratch, port = Path(tempfile.mkdtemp(prefix="ezpz-loss-")), free_port("127.0.0.2")
    agents = {host: start(host, port, job, scratch, ttl) for host in (2, 3)}
    try:
        await_true(lambda: {line[0] for line in steps(scratch)} == {"0", "1"})
        agents[4] = start(4, port, job, scratch, ttl)
        await_true((scratch / "run/journal/127.0.0.4.jsonl").exists)
        time.sleep(SETTLED)
        for agent in agents.values():
            await_true(lambda agent=agent: has_settled(agent.pid))  # it has imported what the first life needed
        known = {line[1] for line in steps(scratch)}
        victims = [psutil.Process(agents[3].pid), *psutil.Process(agents[3].pid).children(recursive=True)]
        killed = time.time()
        for process in victims:
            process.kill()
        new = lambda: {l[0]: float(l[3]) for l in reversed(steps(scratch)) if l[1] not in known and l[2] == "0"}  # noqa: E731, E741
        await_true(lambda: len(new()) == 2)
        journal = (scratch / "run/journal/127.0.0.2.jsonl").read_text().splitlines()
        decided = next(e["ts"] for e in map(json.loads, journal) if e["event"] == "decision")
        return decided - killed, max(new().values()) - killed
    finally:
        for agent in agents.values():
            agent.send_signal(signal.SIGTERM)
            agent.wait(20)
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--losses", type=int, default=5)
    parser.add_argument("--job", choices=["bare", "ddp"], default="ddp")
    parser.add_argument("--lease-ttl", type=float, default=5.0, help="seconds; 5 is the agent's default")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then, too
    found = [lose(options.job, options.lease_ttl) for _ in range(options.losses)]
    for name, values in zip(("decision", "first step"), zip(*found, strict=True), strict=True):
        ordered = sorted(values)
        print(f"{name:10} median {statistics.median(ordered):.3f} s, {ordered[0]:.3f} … {ordered[-1]:.3f} s")


if __name__ == "__main__":
    main()
