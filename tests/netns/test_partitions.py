"""Hosts in network namespaces of their own: one is cut off, heals, or is cut off one way only."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.etcd import binary
from support.frozen import server_process
from support.marked import lives
from support.network import Network, ip, running_network, why_not

WHY_NOT = why_not()

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "has namespaces")


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with running_network(tmp_path) as made:
        yield made


def alive(pids: list[int]) -> bool:
    return any(map(lives, pids))


@pytest.mark.parametrize("way", ["both ways", "one way"])
def test_a_host_that_is_cut_off_is_replaced_and_stops_its_workers_when_it_sees_the_store_again(network, way):
    """I9 until it heals, I10 from then on."""
    old = network.pids(3, 1)
    if way == "one way":
        network.cut_one_way(3)
    else:
        network.cut(3)
    assert not network.reaches(3, 1), "the fault did not happen"
    network.await_true(lambda: network.pids(4, 2), "the spare takes over")
    assert network.hosts() == [[2, 3], [2, 4]]
    if way == "both ways":
        # What is sent to a host that is cut off one way may still arrive, the decision too.
        assert alive(old), "a host that cannot see the store touches no worker"
    assert network.agents[3].poll() is None
    network.heal(3)
    network.await_true(lambda: not alive(old), "the stale workers are stopped")
    assert network.wait(3) == 0
    assert "leaves" in network.output(3)
    assert network.hosts() == [[2, 3], [2, 4]], "nobody else was disturbed"
    assert network.text("bad_nodes.txt") == f"{network.address(3)}  lost  attempt=1\n"


@pytest.fixture
def patient_network(tmp_path: Path) -> Iterator[Network]:
    """With a lease that outlasts a short cut although the machine is busy."""
    with running_network(tmp_path, lease=6.0) as made:
        yield made


def test_a_cut_shorter_than_the_lease_is_nobodys_business(patient_network):
    network = patient_network
    old = network.pids(2, 1) + network.pids(3, 1)
    network.cut(3)
    assert not network.reaches(3, 1), "the fault did not happen"  # takes the one second that the cut lasts
    network.heal(3)
    network.await_true(lambda: network.reaches(3, 1), "healed")
    time.sleep(1.5 * network.lease)  # long enough for a loss to be noticed, if there were one
    assert network.events("decision") == []
    assert all(alive([pid]) for pid in old)
    for number in (2, 3):
        network.agents[number].send_signal(signal.SIGTERM)
    assert [network.wait(2), network.wait(3)] == [143, 143]


_HEART = """
import sys
from rendezvous.links import Heart
from rendezvous.stores.tcpstore import TcpStore
store = TcpStore(sys.argv[1], int(sys.argv[2]), "run")
renew = store.renew
def told(lease, ttl):
    try:
        renew(lease, ttl)
    except Exception as error:
        print("cut off:", error, flush=True)
        raise
    print("beat", flush=True)
store.renew = told
Heart(store, "a", 5.0).start()
sys.stdin.read()
"""


def test_a_heart_on_the_embedded_store_does_not_wait_for_tcps_long_pauses(tmp_path):
    """It notices the cut while that lasts, and not by an answer, so its next beat comes as soon as the network does."""
    network = Network(tmp_path, hosts=2)
    inside = {number: ["ip", "netns", "exec", network.name(number)] for number in (1, 2)}
    try:
        with server_process(network.address(1), inside[1]) as server:
            command = [*inside[2], sys.executable, "-c", _HEART, server.host, str(server.port)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as heart:
                assert heart.stdout is not None
                lines: queue.Queue[str] = queue.Queue()
                reader = threading.Thread(target=lambda: [lines.put(line) for line in heart.stdout])
                reader.start()
                try:
                    await_line(lines, "beat")
                    network.cut(2)
                    noticed = await_line(lines, "cut off")
                    assert "Socket Timeout" not in noticed, "it has waited for an answer, as long as for a busy server"
                    while not lines.empty():
                        lines.get()
                    network.heal(2)
                    await_line(lines, "beat")
                finally:
                    heart.kill()
                    reader.join()
    finally:
        network.close()


def await_line(lines: queue.Queue[str], beginning: str) -> str:
    deadline = time.monotonic() + 60
    while not (line := lines.get(timeout=max(0.0, deadline - time.monotonic()))).startswith(beginning):
        continue
    return line


def test_the_coordinators_host_is_cut_off_and_another_one_decides(network):
    query = ["ip", "netns", "exec", network.name(1), binary("etcdctl"), f"--endpoints={network.address(1)}:2379"]
    query += ["--command-timeout=15s", "get", "/ezpz/job/coordinator/1", "--print-value-only"]
    found = subprocess.run(query, check=True, capture_output=True, timeout=60, env={"ETCDCTL_API": "3", **os.environ})
    leader = int(json.loads(found.stdout)["host"].rpartition(".")[2])
    assert leader in (2, 3)
    old = network.pids(leader, 1)
    slot = network.hosts()[0].index(leader)
    network.cut(leader)
    network.await_true(lambda: network.pids(4, 2), "the spare takes over")
    assert network.hosts()[1][slot] == 4, "in the same slot"
    assert alive(old)
    network.heal(leader)
    network.await_true(lambda: not alive(old), "the stale workers are stopped")
    assert network.wait(leader) == 0


def test_nothing_of_a_network_is_left_behind(tmp_path):
    made = Network(tmp_path, hosts=2)
    assert made.name(2) in ip("netns", "list")
    made.close()
