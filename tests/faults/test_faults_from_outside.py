"""What an injector does to a job that agents watch: seen to land, and answered as the law says.

Each test says first that the harm was seen, then what was said of it, and then that training goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from faults.watched import VICTIM, assert_answer, knobs, start
from support.cluster import Cluster
from support.etcd import Etcd
from support.network import Network, running_network, why_not
from support.retry_loop import Loop

from ezpz_elastic.faults.modes import MODES, inflict
from ezpz_elastic.faults.receipts import Receipt, Receipts
from ezpz_elastic.faults.scene import Targets

COUNT = 'n=0; while [ ! -e enough ]; do echo "step=$n "; n=$((n+1)); sleep 0.05; done'


def inflicted(cluster: Cluster, mode: str, targets: Targets, round_number: int = 1) -> None:
    """Do it, and see that it was done."""
    about = Receipt(mode, 0, None, "injector", attempt=round_number)
    receipt = inflict(mode, targets, Receipts(cluster.directory / "receipts"), about)
    assert receipt is not None
    assert receipt.landed, "the harm was not seen"


def decided(cluster: Cluster, round_number: int) -> None:
    """Wait for the next round: all that is written about the end of this one is written by then."""
    cluster.await_true(lambda: len(cluster.rosters()) > round_number, f"the round after {round_number}")


def steps(cluster: Cluster, round_number: int) -> int:
    """Steps that rank 0 has told of in a round."""
    return cluster.text(f"rounds/{round_number}/0/stdout.log").count("step=")


def train(cluster: Cluster, hosts: tuple[int, ...], conf: str) -> None:
    """Start a job that does not end by itself; all hosts but two stand by."""
    start(cluster, hosts, conf, knobs(cluster, FI_TOTAL=1_000_000, FI_SECONDS=0.02))


def harm(cluster: Cluster, mode: str, number: int) -> str:
    """Harm processes of the host in slot 1 once a round has come to train: seen to land and answered. The host."""
    cluster.await_true(lambda: steps(cluster, number) > 10, f"training in round {number}")
    address = cluster.rosters()[number - 1][VICTIM]
    host = int(address.rpartition(".")[2])
    workers = {cluster.worker(host, number): f"the worker of {address}"}
    agent = {cluster.agents[host].pid: f"the agent of {address}"}
    pids = {"agent_loss": agent, "host_loss": agent | workers}.get(mode, workers)
    inflicted(cluster, mode, Targets(pids, host=address), number)
    decided(cluster, number)
    assert_answer(cluster, mode, number, address)
    return address


def end(cluster: Cluster, hosts: tuple[int, ...]) -> None:
    """Stop all agents at once."""
    for host in hosts:
        cluster.agents[host].send_signal(signal.SIGTERM)
    assert [cluster.wait(host) for host in hosts] == [128 + signal.SIGTERM] * len(hosts)
    cluster.assert_nothing_left()


def test_a_worker_a_host_and_an_agent_are_killed_one_after_the_other(cluster: Cluster):
    train(cluster, (2, 3, 4, 5), "hang_timeout=0")
    first, lost, left = [harm(cluster, mode, n) for n, mode in enumerate(("worker_kill", "host_loss", "agent_loss"), 1)]
    assert first == lost != left
    cluster.await_true(lambda: steps(cluster, 4) > 3, "training goes on")
    assert [roster[0] for roster in cluster.rosters()] == ["127.0.0.2"] * 4
    assert cluster.text("bad_nodes.txt") == f"{lost}  lost  attempt=2\n{left}  lost  attempt=3\n"
    end(cluster, (2, int(cluster.rosters()[-1][VICTIM].rpartition(".")[2])))


@pytest.mark.soak
def test_a_worker_is_stopped(cluster: Cluster):
    """By default tests/cluster/test_hang.py has the same, four ranks wide."""
    train(cluster, (2, 3), "hang_timeout=6")
    harm(cluster, "worker_stop", 1)
    cluster.await_true(lambda: steps(cluster, 2) > 3, "training goes on")
    end(cluster, (2, 3))


def test_the_loss_of_the_store_is_nobodys_fault_and_the_workers_run_on(tmp_path: Path):
    assert MODES["store_loss"].live is not None
    assert MODES["store_loss"].live.kind is None, "no round ends of it"
    etcd = Etcd(tmp_path)
    job = Cluster(tmp_path)
    job.endpoint = etcd.endpoint
    try:
        for host in (2, 3):
            job.start(host, ["--no-python", "sh", "-c", COUNT], conf="settle=0.5")
        job.await_step(3)
        store = etcd.processes[0]
        assert store is not None
        inflicted(job, "store_loss", Targets({store.pid: "the store"}))
        assert store.wait(60) == -signal.SIGKILL
        at = steps(job, 1)
        job.await_true(lambda: steps(job, 1) > at + 20, "training goes on without the store")
        etcd.start(0)
        (tmp_path / "enough").touch()
        assert [job.wait(host, 120) for host in (2, 3)] == [0, 0]
        assert job.outcome()["kind"] == "success"
        assert job.rosters() == [["127.0.0.2", "127.0.0.3"]]
        assert [event["action"] for event in job.events("decision")] == ["finish"]
        assert job.text("bad_nodes.txt") == ""
    finally:
        job.close()
        etcd.close()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    if why := why_not():
        pytest.skip(why)
    with running_network(tmp_path) as made:
        yield made


def test_a_host_that_is_cut_off_is_lost_and_the_spare_takes_its_slot(network: Network):
    address = network.address(3)
    cut = Targets(host=address, cut=lambda: network.cut(3), seen=lambda: not network.reaches(3, 1))
    inflicted(network, "network_cut", cut)
    decided(network, 1)
    assert_answer(network, "network_cut", 1, address)
    network.await_true(lambda: network.pids(4, 2), "the spare takes over")
    assert network.hosts() == [[2, 3], [2, 4]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "ezpz-faults", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=20)


def test_a_disk_that_is_full_costs_no_host_and_training_goes_on_when_there_is_room(cluster: Cluster, disk: Path):
    ballast = disk / "ballast"

    def fill() -> None:
        with ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"\0" * 65536)

    def filled() -> bool:
        fill()  # again: the trainer may have removed an old checkpoint since
        return os.statvfs(disk).f_bavail == 0

    env = knobs(cluster, FI_CKPT=disk / "ckpts", FI_TOTAL=1_000_000, FI_SECONDS=0.05)
    start(cluster, (2, 3), "hang_timeout=0", env)
    cluster.await_true(lambda: saved(cluster, 1), "a checkpoint")
    inflicted(cluster, "disk_fill", Targets(cut=fill, seen=filled))
    # Old checkpoints that are removed after it make room again: that is taken, too.
    cluster.await_true(lambda: cluster.events("decision") or fill(), "a decision")
    assert_answer(cluster, "disk_fill", 1, "")

    def refused() -> list[int]:
        told = [event for event in cluster.events("host_probed") if event["unhealthy"] == ["storage"]]
        return [event["round"] for event in told if "No space left on device" in event["probes"]["storage"]]

    # Both hosts may have found room before it was filled again: then another round has met the full disk.
    cluster.await_true(lambda: refused() or fill(), "a host has found the disk full")
    rounds = refused()[-1]
    assert len(cluster.rosters()) == rounds, "the next round does not wait for storage"
    ballast.unlink()
    cluster.await_true(lambda: saved(cluster, rounds + 1), "a checkpoint after it", 120)
    assert cluster.rosters() == [["127.0.0.2", "127.0.0.3"]] * (rounds + 1)
    assert "resumed from step" in cluster.text(f"rounds/{rounds + 1}/0/stdout.log")
    assert cluster.text("bad_nodes.txt") == ""
    end(cluster, (2, 3))


COMPLAINT = """
import os
import sys
print("step=1")
if os.environ["EZPZ_ATTEMPT"] == "1":
    sys.exit("OSError: [Errno 28] No space left on device: '{full}/ckpts/step-25.partial/__0_0.distcp'")
print("step=2")
"""


def test_the_loop_waits_for_a_full_disk_and_then_starts_the_next_attempt(disk: Path, tmp_path: Path):
    (disk / "ckpts").mkdir()
    ballast = disk / "ballast"
    with suppress(OSError):
        ballast.write_bytes(bytes(8 << 20))
    loop = Loop(tmp_path)
    try:
        process = loop.start(loop.script(COMPLAINT.format(full=disk)), stdout=subprocess.DEVNULL)
        loop.await_true(lambda: loop.events("host_probed"), "the loop has found the disk full")
        assert loop.rosters() == [[0, 1]], "the next attempt does not wait for storage"
        ballast.unlink()
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
        assert loop.rosters() == [[0, 1]] * 2
        assert "No space left on device" in str(loop.events("host_probed")[0]["probes"])
        assert loop.verdicts()[0] == ("retryable_unattributed", "storage")
        loop.assert_nothing_left()
    finally:
        loop.close()


def saved(cluster: Cluster, round_number: int) -> bool:
    return "saved checkpoint" in cluster.text(f"rounds/{round_number}/0/stdout.log")
