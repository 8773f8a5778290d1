"""However a job ends, nothing of it is left, and everybody who takes part leaves."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from support.cluster import JOBS, Cluster

FAMILY = str(JOBS / "family.py")


def family(cluster: Cluster, *options: str, conf: str = "") -> None:
    for host in (2, 3):
        cluster.start(host, [FAMILY, *options], conf=conf)
    cluster.await_true(lambda: "family complete" in cluster.text("rounds/1/1/stdout.log"), "the family")
    cluster.await_true(lambda: "family complete" in cluster.text("rounds/1/0/stdout.log"), "the family")
    # Two agents with a guard each; two workers with a session child, two loaders and a resource tracker each.
    assert len(cluster.alive()) >= 2 * 2 + 2 * 5, cluster.alive()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_agents_ends_the_whole_tree(cluster, signum):
    family(cluster)
    for agent in cluster.agents.values():
        agent.send_signal(signum)
    assert [cluster.wait(2, 25), cluster.wait(3, 25)] == [128 + signum] * 2
    assert cluster.outcome()["kind"] == "interrupted"
    cluster.assert_nothing_left()


def test_a_signal_to_one_active_agent_ends_the_job_everywhere(cluster):
    family(cluster)
    cluster.agents[3].send_signal(signal.SIGTERM)
    assert cluster.wait(3, 25) == 128 + signal.SIGTERM
    assert cluster.wait(2, 25) == 128 + signal.SIGTERM
    assert "FAILOVER STOP: interrupted" in cluster.output(2)
    cluster.assert_nothing_left()


def test_an_agent_that_is_told_to_go_while_it_starts_its_workers_is_not_taken_for_lost(cluster):
    (cluster.directory / "job.py").write_text("import time\ntime.sleep(600)\n")
    # An interpreter that never comes up: the agent waits for its warm server, so no worker runs and no watch reports.
    slow = cluster.directory / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(
        "import sys, time\nif any('warm' in word for word in sys.argv) or sys.argv == ['']: time.sleep(600)\n"
    )
    cluster.start(2, ["job.py"])
    cluster.start(3, ["job.py"], env={"PYTHONPATH": os.pathsep.join([str(slow), os.environ.get("PYTHONPATH", "")])})
    cluster.await_true(cluster.rosters, "the round")
    cluster.worker(2, 1)
    cluster.agents[3].send_signal(signal.SIGINT)
    assert [cluster.wait(host, 60) for host in (2, 3)] == [128 + signal.SIGINT] * 2
    assert cluster.workers(3, 1) == [], "it had started its workers before"
    assert cluster.outcome()["kind"] == "interrupted"
    assert cluster.text("bad_nodes.txt") == ""
    cluster.assert_nothing_left()


def test_an_agent_that_is_told_to_go_in_the_midst_of_starting_its_workers_goes_as_it_was_told(cluster):
    # The first of eight tells it, in the hundredth of a second in which the agent starts the others.
    job = ["--no-python", "sh", "-c", "test $LOCAL_RANK != 0 || kill -TERM $PPID; exec sleep 100"]
    cluster.start(2, job, nnodes="1:1", nproc=8)
    assert cluster.wait(2) == 128 + signal.SIGTERM
    assert (cluster.outcome()["kind"], cluster.outcome()["rounds"]) == ("interrupted", 1)
    assert cluster.events("agent_failed") == []
    cluster.assert_nothing_left()


def test_workers_that_ignore_signals_are_killed_when_the_grace_period_is_over(cluster):
    family(cluster, "--stubborn", conf="grace=1")
    for agent in cluster.agents.values():
        agent.send_signal(signal.SIGTERM)
    cluster.wait(2, 25)
    cluster.wait(3, 25)
    cluster.assert_nothing_left()


def test_a_signal_to_a_spare_ends_that_spare_alone(cluster):
    family(cluster)
    spare = cluster.start(4, [FAMILY])
    cluster.await_true(lambda: cluster.text("journal/127.0.0.4.jsonl"), "the spare stands by")
    os.kill(spare.pid, signal.SIGTERM)
    assert cluster.wait(4, 25) == 128 + signal.SIGTERM
    assert cluster.events("decision") == []
    assert cluster.agents[2].poll() is None
    for host in (2, 3):
        cluster.agents[host].send_signal(signal.SIGTERM)
    cluster.wait(2)
    cluster.wait(3)
    cluster.assert_nothing_left()


def test_an_agent_that_is_killed_takes_its_workers_along(cluster):
    family(cluster)
    workers = cluster.workers(3, 1)
    assert workers
    cluster.agents[3].send_signal(signal.SIGKILL)
    cluster.await_true(lambda: not any(psutil.pid_exists(pid) for pid in workers), "the orphans end", 25)
    assert cluster.wait(2, 30) == 1
    assert cluster.outcome()["kind"] == "exhausted"
    cluster.assert_nothing_left()


def test_a_job_that_succeeds_leaves_nothing_and_its_spare_exits_with_zero(cluster):
    job = ["--no-python", "sleep", "2"]
    for host in (2, 3, 4):
        cluster.start(host, job)
    assert [cluster.wait(host) for host in (2, 3, 4)] == [0, 0, 0]
    assert cluster.outcome()["kind"] == "success"
    cluster.assert_nothing_left()
