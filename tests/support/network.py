"""Hosts in network namespaces of their own, which can be cut off from each other. Needs root and Linux.

Each network has a bridge and namespaces with random names in an address range of its own, and is taken down again
whatever happens.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cluster import Cluster
from support.etcd import binary

__all__ = ["LEASE", "Network", "ip", "running_network", "why_not"]

LEASE = 4.0
CONF = "lease_ttl={lease:g},settle=0.5,grace=2,join_timeout=120"
COUNT = 'n=0; while true; do echo "step=$n "; n=$((n+1)); sleep 0.1; done'


def ip(*words: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True, timeout=60)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def why_not() -> str:
    """Why this machine has no network namespaces for us; empty if it has."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None:
        return "needs the command ip (iproute2)"
    probe = f"ezp{uuid.uuid4().hex[:8]}"
    try:
        ip("netns", "add", probe)
        ip("link", "add", probe, "type", "bridge")
    except RuntimeError as error:
        return f"no network namespaces here: {error}"
    finally:
        ip("link", "del", probe, check=False)
        ip("netns", "del", probe, check=False)
    return ""


class Network(Cluster):
    """A bridge; behind it a namespace for the store (number 1) and one for each host (2, 3, …).

    Args:
        directory: where its data and logs go.
        hosts: how many namespaces.
        lease: seconds after which an agent that does not renew its lease is lost.
    """

    def __init__(self, directory: Path, hosts: int = 4, lease: float = LEASE) -> None:
        super().__init__(directory)
        self.lease = lease
        self.tag = f"ez{uuid.uuid4().hex[:6]}"
        chosen = random.SystemRandom()
        self.subnet = f"10.{chosen.randrange(64, 255)}.{chosen.randrange(255)}"
        self.numbers = range(1, hosts + 1)
        self.store: subprocess.Popen[bytes] | None = None
        ip("link", "add", self.tag, "type", "bridge")
        ip("link", "set", self.tag, "up")
        for number in self.numbers:
            name = self.name(number)
            ip("netns", "add", name)
            ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", name, "master", self.tag, "up")
            ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")

    def name(self, number: int) -> str:
        return f"{self.tag}n{number}"

    def address(self, number: int) -> str:
        return f"{self.subnet}.{number}"

    def serve(self) -> None:
        """etcd in the first namespace."""
        me = self.address(1)
        command = ["ip", "netns", "exec", self.name(1), binary(), f"--data-dir={self.directory / 'etcd'}"]
        command += [f"--listen-client-urls=http://{me}:2379", f"--advertise-client-urls=http://{me}:2379"]
        command += [f"--listen-peer-urls=http://{me}:2380", f"--initial-advertise-peer-urls=http://{me}:2380"]
        command += [f"--initial-cluster=default=http://{me}:2380", "--log-level=error", "--unsafe-no-fsync"]
        with (self.directory / "etcd.log").open("wb") as log:
            self.store = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.endpoint = f"etcd://{me}:2379"

    def agent(self, number: int) -> None:
        """An agent in its namespace, whose workers count."""
        torchrun = str(Path(sys.executable).parent / "torchrun")
        command = ["ip", "netns", "exec", self.name(number), torchrun, "--rdzv-backend=ezpz"]
        address = [f"--local-addr={self.address(number)}"]
        self.start(
            number,
            ["--no-python", "sh", "-c", COUNT],
            command=command,
            options=address,
            conf=CONF.format(lease=self.lease),
        )

    def cut(self, number: int) -> None:
        """Neither arrives anything nor leaves anything."""
        ip("link", "set", self.name(number), "nomaster")

    def heal(self, number: int) -> None:
        """As before."""
        ip("link", "set", self.name(number), "master", self.tag)
        for other in self.numbers:
            ip("-n", self.name(number), "neigh", "del", self.address(other), "dev", "eth0", check=False)

    def cut_one_way(self, number: int) -> None:
        """What the host sends is lost without a word; what is sent to it arrives."""
        for other in self.numbers:
            if other != number:
                nowhere = ["lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"]
                ip("-n", self.name(number), "neigh", "replace", self.address(other), *nowhere)

    def reaches(self, source: int, target: int) -> bool:
        """Whether a packet gets there and its answer back."""
        command = ["ip", "netns", "exec", self.name(source), sys.executable, "-c"]
        code = f"import socket; socket.create_connection(('{self.address(target)}', 2379), 1)"
        return subprocess.run([*command, code], check=False, capture_output=True, timeout=60).returncode == 0

    def pids(self, number: int, round_number: int) -> list[int]:
        """Pids of a host's workers in a round."""
        started = [e for e in self.events("worker_started") if e["round"] == round_number]
        return [int(str(e["pid"])) for e in started if e["host"] == self.address(number)]

    def hosts(self) -> list[list[int]]:
        """Rosters as numbers of hosts."""
        return [[int(host.rpartition(".")[2]) for host in roster] for roster in self.rosters()]

    def close(self) -> None:
        super().close()
        if self.store is not None:
            self.store.kill()
            self.store.wait()
        for number in self.numbers:
            ip("netns", "del", self.name(number), check=False)
            ip("link", "del", self.name(number), check=False)
        ip("link", "del", self.tag, check=False)
        assert self.tag not in ip("netns", "list") + ip("link", "show")


@contextmanager
def running_network(directory: Path, lease: float = LEASE) -> Iterator[Network]:
    """A store, two hosts at work in round 1 (numbers 2 and 3) and a spare (4) that stands by."""
    made = Network(directory, lease=lease)
    try:
        made.serve()
        made.await_true(lambda: made.reaches(2, 1), "etcd answers")
        for number in (2, 3):
            made.agent(number)
        made.await_true(lambda: made.pids(2, 1) and made.pids(3, 1), "round 1", 90)
        made.agent(4)
        made.await_true(lambda: made.text(f"journal/{made.address(4)}.jsonl"), "the spare stands by", 90)
        yield made
    finally:
        made.close()
