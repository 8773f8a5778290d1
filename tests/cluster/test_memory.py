"""A worker that is killed for want of memory, by a real kernel where this user may make a memory cgroup."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import JOBS, Cluster

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")
LIMIT = 1500 << 20
"""Bytes: room for an agent, its server and two workers, which hold nothing of weight."""


@pytest.fixture
def limited() -> Iterator[Path]:
    v1 = (V1 / "memory.limit_in_bytes").exists()
    group = (V1 if v1 else V2) / f"ezpz-test-{uuid.uuid4().hex[:8]}"
    limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if v1 else ("memory.max", "memory.swap.max")
    try:
        group.mkdir()
        (group / limits[0]).write_text(str(LIMIT))
        if (group / limits[1]).exists():
            (group / limits[1]).write_text(str(LIMIT if v1 else 0))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here ({error}); tests/agent/test_oom.py has the counters faked")
    yield group
    group.rmdir()


def test_a_worker_that_the_kernel_kills_is_oom_host_with_the_number_of_bytes(cluster: Cluster, limited: Path):
    enter = ["sh", "-c", f'echo $$ > {limited}/cgroup.procs; exec "$@"', "sh"]
    torchrun = Cluster.torchrun()
    cluster.start(2, [str(JOBS / "eater.py")], nnodes="1:1", nproc=2, command=[*enter, torchrun, "--rdzv-backend=ezpz"])
    assert cluster.wait(2) == 0
    killed = cluster.events("worker_exited")[0]
    assert (killed["signal"], killed["rank"]) == (9, 0)
    assert int(str(killed["oom_kills"])) >= 1
    assert 500 << 20 < int(str(killed["peak_rss_bytes"])) <= LIMIT
    verdict = cluster.events("verdict")[0]
    assert (verdict["kind"], verdict["cause"]) == ("retryable_unattributed", "oom_host")
    assert "GiB resident" in str(verdict)
    assert cluster.text("bad_nodes.txt") == ""
    assert cluster.outcome()["rounds"] == 2
    cluster.assert_nothing_left()
