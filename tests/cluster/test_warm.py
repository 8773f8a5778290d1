"""Warm workers in real agents: beside plain torchrun, switched off, and over several lives."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.cluster import JOBS, Cluster

WORDS = ["mirror.py", "--lr", "1", "facts"]


@pytest.mark.parametrize("words", [WORDS, ["-m", "mirror", "facts"]], ids=["script", "module"])
def test_a_job_sees_the_same_under_torchrun_and_under_a_warm_agent(cluster, words):
    shutil.copy(JOBS / "mirror.py", cluster.directory)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    plain = [torchrun, "--standalone", "--nproc-per-node=2", "--local-addr=127.0.0.9", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        plain, cwd=cluster.directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True
    )
    there = [(cluster.directory / f"facts-{rank}.json").read_text() for rank in range(2)]
    for rank in range(2):
        (cluster.directory / f"facts-{rank}.json").unlink()
    # Its first life is learned from, which takes one more finder on the worker's meta path until its first step.
    cluster.start(2, words, nnodes="1:1", nproc=2, cold=True)
    assert cluster.wait(2) == 0
    here = [(cluster.directory / f"facts-{rank}.json").read_text() for rank in range(2)]
    assert here[1] == there[1]
    assert json.loads(here[0]) == json.loads(there[0]) | {"meta_path": json.loads(here[0])["meta_path"]}
    assert json.loads(here[0])["meta_path"][1:] == json.loads(there[0])["meta_path"]
    assert "finalized" in cluster.text("rounds/1/0/stdout.log")


def parents(cluster: Cluster, round_number: int = 1) -> set[int]:
    return {psutil.Process(pid).ppid() for pid in cluster.workers(2, round_number)}


@pytest.mark.parametrize(
    ("conf", "script"),
    [("warm=off", ["sleep.py"]), ("", ["--no-python", "sleep", "100"])],
    ids=["warm=off", "--no-python"],
)
def test_where_it_is_off_the_agent_itself_starts_the_workers(cluster, conf, script):
    (cluster.directory / "sleep.py").write_text("import time\ntime.sleep(100)\n")
    agent = cluster.start(2, script, nnodes="1:1", nproc=2, conf=conf)
    cluster.await_true(lambda: len(cluster.workers(2, 1)) == 2, "two workers")
    assert parents(cluster) == {agent.pid}
    agent.send_signal(signal.SIGTERM)
    cluster.wait(2, 25)
    cluster.assert_nothing_left()


def servers(agent: int, workers: set[int]) -> list[bool]:
    """Of each of an agent's servers, which run the job and are no workers, whether it has imported xxhash."""
    found = []
    for process in psutil.Process(agent).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # the agent has just started it, and it has ended
            if process.cmdline()[4:] == ["job.py"] and process.pid not in workers:
                found.append(any("xxhash" in part.path for part in process.memory_maps()))
    return found


def test_a_restarted_life_has_its_libraries_and_the_first_server_is_gone(cluster):
    (cluster.directory / "job.py").write_text(
        "import sys, time\nprint('xxhash' in sys.modules, 'near' in sys.modules, flush=True)\n"
        "from ezpz_elastic import progress\nimport near, xxhash\nprogress(1)\nprint('step=1 ', flush=True)\n"
        "time.sleep(100)\n"
    )
    (cluster.directory / "near.py").write_text("")
    agent = cluster.start(2, ["job.py"], nnodes="1:1", conf="warm_import=wave", max_restarts=10)
    cluster.await_step(1)
    first = parents(cluster)
    assert first != {agent.pid}
    learned = lambda: sorted(servers(agent.pid, set(cluster.workers(2, 1)))) == [False, True]  # noqa: E731
    cluster.await_true(learned, "a second server that has what the first life needed")
    last = 1
    while last == 1 or (last < 8 and not cluster.text(f"rounds/{last}/0/stdout.log").startswith("True")):
        os.kill(cluster.worker(2, last), signal.SIGKILL)  # more than once if its agent has not heard of it yet
        last += 1
        cluster.await_step(1, last)
    assert cluster.text(f"rounds/{last}/0/stdout.log").startswith("True False")
    assert parents(cluster, last).isdisjoint(first)
    assert not any(psutil.pid_exists(pid) for pid in first)
    killed = cluster.events("worker_exited")
    assert {event["signal"] for event in killed} == {signal.SIGKILL}
    assert all(event["peak_rss_bytes"] > 10 << 20 for event in killed)
    agent.send_signal(signal.SIGTERM)
    cluster.wait(2, 25)
    cluster.assert_nothing_left()
