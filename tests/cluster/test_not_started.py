"""Workers that cannot be started are a failure to decide on; their agent stays and its host is not a lost one."""

from __future__ import annotations

import os
import signal

from support.cluster import JOBS, Cluster

PACE = str(JOBS / "pace.py")


def test_a_host_that_cannot_start_its_workers_says_why_and_keeps_its_slot(cluster: Cluster):
    for host in (2, 3):
        cluster.start(host, [PACE, "--later=60"])
    cluster.await_step(2)
    in_the_way = cluster.run_dir / "rounds" / "2" / "1"
    in_the_way.parent.mkdir()
    in_the_way.write_text("a file where rank 1's logs should go")
    os.kill(cluster.worker(2, 1), signal.SIGKILL)
    assert [cluster.wait(2), cluster.wait(3)] == [0, 0]
    assert cluster.rosters() == [["127.0.0.2", "127.0.0.3"]] * 3
    (told,) = cluster.events("agent_failed")
    assert (told["host"], told["round"], told["ranks"]) == ("127.0.0.3", 2, [1])
    assert "FileExistsError" in str(told["reason"])
    second = cluster.events("decision")[1]
    assert "FileExistsError" in str(second["reason"])
    assert (second["action"], second["lost"]) == ("restart", [])
    assert cluster.text("bad_nodes.txt") == ""
    cluster.assert_nothing_left()


def test_a_program_that_is_not_there_stops_the_job_in_one_line(cluster: Cluster):
    for host in (2, 3):
        cluster.start(host, ["--no-python", "./no-such-program"])
    assert [cluster.wait(2), cluster.wait(3)] == [1, 1]
    assert cluster.outcome()["kind"] == "user_error"
    for host in (2, 3):
        assert "Traceback" not in cluster.output(host)
        assert "FAILOVER STOP: user_error" in cluster.output(host)
    assert cluster.text("bad_nodes.txt") == ""
    cluster.assert_nothing_left()
