"""A rank that stops making steps: it is found, looked at before anything is stopped, and named."""

from __future__ import annotations

import signal

import psutil
from support.cluster import JOBS, Cluster
from support.frozen import halt

PACE = str(JOBS / "pace.py")


def verdict(cluster: Cluster) -> dict[str, object]:
    cluster.await_true(lambda: cluster.events("decision"), "a decision")
    return cluster.events("verdict")[0]


def finish(cluster: Cluster) -> None:
    for host in (2, 3):
        cluster.agents[host].send_signal(signal.SIGTERM)
    assert [cluster.wait(2, 25), cluster.wait(3, 25)] == [128 + signal.SIGTERM] * 2
    cluster.assert_nothing_left()


def assert_named(cluster: Cluster, rank: int) -> None:
    found = verdict(cluster)
    assert found["cause"] == "hang"
    assert "127.0.0.3" in str(found["hosts"]) + str(found["suspects"])
    assert "127.0.0.2" not in str(found["hosts"]) + str(found["suspects"])
    assert f"behind all others: rank {rank} on 127.0.0.3" in str(found)
    assert cluster.events("decision")[0]["action"] == "restart"
    assert cluster.text("bad_nodes.txt") == "", "a doubtful cause restarts in place the first time"
    cluster.await_step(30, 2)
    looked = {event["rank"]: event for event in cluster.events("stacks") if event["round"] == 1}
    assert sorted(looked) == [0, 1, 2, 3]
    spans = [e for e in cluster.events("span") if (e["name"], e["round"]) == ("stop", 1)]
    stopped = min(float(str(e["ts"])) for e in spans)
    assert all(float(str(event["ts"])) < stopped for event in looked.values()), "looked at before it was stopped"
    for other in range(4):
        assert "kernel:" in cluster.text(f"rounds/1/{other}/stacks.txt")


def test_a_stopped_process_among_four_ranks_is_a_hang_with_that_rank_named(cluster):
    for host in (2, 3):
        cluster.start(host, [PACE], nproc=2, conf="hang_timeout=6")
    cluster.await_step(10)
    victim = cluster.worker(3, 1, 1)
    halt(victim)
    assert_named(cluster, 3)
    assert "state T" in cluster.text("rounds/1/3/stacks.txt")
    cluster.await_true(lambda: not psutil.pid_exists(victim), "the stopped process ends without the grace period", 25)
    finish(cluster)


def test_a_rank_outside_the_collective_in_which_all_others_wait_is_named(cluster):
    for host in (2, 3):
        cluster.start(host, [PACE, "--sleep=2"], nproc=2, conf="hang_timeout=6")
    assert_named(cluster, 2)
    assert "pace.py" in cluster.text("rounds/1/2/stacks.txt")
    assert "all_reduce" in cluster.text("rounds/1/0/stacks.txt")
    finish(cluster)


def test_a_first_step_that_does_not_come_has_a_limit_of_its_own(cluster):
    (cluster.directory / "wait.py").write_text("import time\ntime.sleep(100)\n")
    cluster.start(2, ["wait.py"], nnodes="1:1", conf="startup_timeout=2", max_restarts=0)
    assert cluster.wait(2, 30) != 0
    assert cluster.events("verdict")[0]["cause"] == "hang"
    assert cluster.outcome()["cause"] == "hang"
    assert "wait.py" in cluster.text("rounds/1/0/stacks.txt")
    cluster.assert_nothing_left()
