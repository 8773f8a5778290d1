"""The end of the allocation, on real agents: told, saved, stopped, said."""

from __future__ import annotations

import time

from support.cluster import Cluster


def test_workers_save_when_the_allocation_ends_and_the_job_says_walltime(cluster: Cluster):
    (cluster.directory / "job.py").write_text(
        "import os, signal, time\nfrom ezpz_elastic import progress\n"
        "from ezpz_elastic.observe.progress import durable\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('nudged', flush=True))\n"
        "for step in range(10**6):\n"
        "    progress(step)\n    print(f'step={step} ', flush=True)\n    time.sleep(0.05)\n"
        "    if progress.should_save() and not os.path.exists(f'saved-{os.environ[\"RANK\"]}'):\n"
        "        open(f'saved-{os.environ[\"RANK\"]}', 'w').close()\n        durable(step)\n"
    )
    deadline = time.time() + 44  # half a minute to begin: on a busy machine two agents and their workers need a quarter
    for host in (2, 3):
        cluster.start(host, ["job.py"], conf=f"deadline={deadline},margin=14,nudge=on")
    codes = [cluster.wait(2), cluster.wait(3)]
    assert time.time() < deadline
    assert all(code != 0 for code in codes)
    assert cluster.outcome()["kind"] == "walltime"
    assert cluster.outcome()["rounds"] == 1
    assert (cluster.directory / "saved-0").exists()
    assert (cluster.directory / "saved-1").exists()
    assert "nudged" in cluster.text("rounds/1/0/stdout.log")
    assert "FAILOVER STOP: walltime" in cluster.output(2)
    cluster.assert_nothing_left()
