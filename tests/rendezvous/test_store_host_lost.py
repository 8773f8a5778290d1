"""The host that serves the embedded store is lost: the job ends, and the others say so in a line of their own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.cluster import Cluster
from support.frozen import halt


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_the_others_end_with_one_line_and_without_torchs_stack_traces(cluster):
    ours = [str(Path(sys.executable).parent / "ezpz-elastic"), "run"]
    worker = 'echo "level=$TORCH_CPP_LOG_LEVEL"; sleep 2; exit 0'
    for host in (2, 3):
        cluster.start(host, ["--no-python", "sh", "-c", worker if host == 3 else "sleep 600"], command=ours)
    cluster.await_true(lambda: cluster.workers(2, 1) and cluster.workers(3, 1), "both hosts' workers")
    cluster.kill_host(2, 1)
    assert cluster.wait(3) == 1
    told = cluster.output(3)
    assert "FAILOVER STOP" in told
    assert "store" in told.partition("FAILOVER STOP")[2].splitlines()[0]
    assert "frame #" not in told
    assert "recvValue" not in told
    rank = cluster.rosters()[0].index("127.0.0.3")
    assert cluster.text(f"rounds/1/{rank}/stdout.log") == "level=\n", "the workers' environment is as it was"
    cluster.assert_nothing_left()


def test_an_agent_that_is_told_to_go_while_the_one_that_serves_the_store_is_frozen_goes(cluster):
    """Nothing answers and nothing refuses, as when that host has lost its power."""
    for host in (2, 3):
        cluster.start(host, ["--no-python", "sleep", "600"])
    cluster.await_true(lambda: cluster.workers(2, 1) and cluster.workers(3, 1), "both hosts' workers")
    serving = psutil.Process(cluster.agents[2].pid)
    halt(serving.pid)
    try:
        cluster.agents[3].send_signal(signal.SIGTERM)
        assert cluster.wait(3) == 128 + signal.SIGTERM
        assert serving.status() == psutil.STATUS_STOPPED, "the fault did not happen"
    finally:
        serving.resume()
    serving.terminate()
    assert cluster.wait(2) == 128 + signal.SIGTERM
    cluster.assert_nothing_left()
