"""Faults on a running job of real processes: who keeps its slot, from where training goes on, what is written down."""

from __future__ import annotations

import os
import re
import signal

from support.cluster import JOBS, Cluster

TRAIN = str(JOBS / "train.py")


def train(cluster: Cluster, *options: str) -> list[str]:
    return [TRAIN, "--checkpoints", str(cluster.directory / "ckpts"), *options]


def again(cluster: Cluster, rank: int = 0) -> int:
    """The step from which a worker's second life went on."""
    found = re.search(r"resumed (\d+)", cluster.text(f"rounds/2/{rank}/stdout.log"))
    assert found is not None, "the worker never said where it resumed"
    return int(found[1])


def test_a_lost_host_is_retired_and_the_spare_goes_on_in_its_slot_from_the_last_checkpoint(cluster):
    interval = 5
    job = train(cluster, "--steps=100", f"--interval={interval}", "--seconds-per-step=0.05")
    for host in (2, 3):
        cluster.start(host, job)
    cluster.await_step(0)
    cluster.start(4, job)
    cluster.await_true(lambda: cluster.text("journal/127.0.0.4.jsonl"), "the spare stands by")
    cluster.await_step(12)
    cluster.await_true(lambda: cluster.events("progress"), "the agent has seen a checkpoint")
    cluster.kill_host(3, 1)
    assert cluster.wait(2) == 0
    assert cluster.wait(4) == 0
    assert cluster.rosters() == [["127.0.0.2", "127.0.0.3"], ["127.0.0.2", "127.0.0.4"]]
    assert cluster.text("bad_nodes.txt") == "127.0.0.3  lost  attempt=1\n"
    assert cluster.text("active.hostfile") == "127.0.0.2\n127.0.0.4\n"
    reached = max(int(found) for found in re.findall(r"step=(\d+) ", cluster.text("rounds/1/0/stdout.log")))
    assert 0 <= reached - again(cluster) <= interval
    assert again(cluster, rank=1) == again(cluster)
    assert "step=99 " in cluster.text("rounds/2/0/stdout.log")
    decision = cluster.events("decision")[0]
    assert (decision["kind"], decision["cause"], decision["lost"]) == ("bad_node_known", "host_lost", ["127.0.0.3"])
    assert cluster.outcome()["kind"] == "success"
    assert cluster.outcome()["hosts_retired"] == ["127.0.0.3"]
    saved = [event["durable_step"] for event in cluster.events("progress") if event["round"] == 1]
    assert saved
    assert saved == sorted(saved)
    assert {step % interval for step in saved} == {interval - 1}
    cluster.assert_nothing_left()


def test_a_killed_worker_restarts_on_the_same_hosts_and_nobody_is_retired(cluster):
    job = train(cluster, "--steps=30", "--seconds-per-step=0.05")
    for host in (2, 3):
        cluster.start(host, job)
    cluster.await_step(7)
    os.kill(cluster.worker(3, 1), signal.SIGKILL)
    assert cluster.wait(2) == 0
    assert cluster.wait(3) == 0
    assert cluster.rosters() == [["127.0.0.2", "127.0.0.3"]] * 2
    assert cluster.text("bad_nodes.txt") == ""
    verdict = cluster.events("verdict")[0]
    assert (verdict["kind"], verdict["cause"]) == ("retryable_unattributed", "worker_killed")
    assert verdict["hosts"] == []
    killed = [event for event in cluster.events("worker_exited") if event["signal"] == signal.SIGKILL]
    assert [event["rank"] for event in killed] == [1]
    reached = max(int(found) for found in re.findall(r"step=(\d+) ", cluster.text("rounds/1/0/stdout.log")))
    assert 0 <= reached - again(cluster) <= 5, "from the newest checkpoint"
    assert again(cluster) % 5 == 4
    told = {event["name"] for event in cluster.events("span") if event["round"] == 1}
    assert {"detect", "settle", "decide", "stop"} <= told
    cluster.assert_nothing_left()


def test_twenty_restarts_in_a_row_need_twenty_rounds_and_one_more(cluster):
    deaths = 20
    job = train(cluster, "--steps=200", "--interval=3", "--die=random", f"--deaths={deaths}")
    for host in (2, 3):
        cluster.start(host, job, max_restarts=deaths)
    assert cluster.wait(2, timeout=240) == 0
    assert cluster.wait(3) == 0
    killed = [event for event in cluster.events("worker_exited") if event["signal"] == signal.SIGKILL]
    assert [event["round"] for event in killed] == list(range(1, deaths + 1))
    assert cluster.outcome()["rounds"] == deaths + 1
    assert cluster.rosters() == [["127.0.0.2", "127.0.0.3"]] * (deaths + 1)
    assert cluster.text("bad_nodes.txt") == ""
    cluster.assert_nothing_left()
