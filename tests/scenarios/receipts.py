"""A host killed for real, and the receipt that says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import psutil
from support.cluster import Cluster

from scenarios.runs import DEADLINE, FIRST_HOST, host_name

__all__ = ["Receipt", "kill_host", "missing"]


class Receipt(msgspec.Struct, frozen=True):
    """A host that was seen to die.

    Args:
        host: which.
        round: the round it fell into.
        step: the step its workers were at.
        agent: pid of its agent.
        workers: pids of its workers.
        agent_code: what the agent ended with.
    """

    host: str
    round: int
    step: int
    agent: int
    workers: tuple[int, ...]
    agent_code: int


def kill_host(cluster: Cluster, index: int, receipt: Path, round_number: int, step: int) -> None:
    """SIGKILL everything of a host, see every process of it dead, and leave a receipt.

    Raises:
        AssertionError: a process survived, or there was none to kill.
    """
    agent = cluster.agents[FIRST_HOST + index]
    workers = [psutil.Process(pid) for pid in cluster.workers(FIRST_HOST + index, round_number)]
    assert workers, "the host has no workers to lose"
    # Its children too: on a host that is gone no warm process is left behind.
    everything = {agent.pid, *(p.pid for p in workers), *(p.pid for p in psutil.Process(agent.pid).children(True))}
    for pid in everything:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # one of them took it along
    code = agent.wait(DEADLINE)
    _, alive = psutil.wait_procs(workers, DEADLINE)
    assert not alive, f"still alive: {alive}"
    pids = tuple(process.pid for process in workers)
    receipt.write_bytes(msgspec.json.encode(Receipt(host_name(index), round_number, step, agent.pid, pids, code)))


def missing(receipt: Path, index: int) -> list[str]:
    """Complaints if nobody saw that host die."""
    try:
        told = msgspec.json.decode(receipt.read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError) as error:
        return [f"no receipt of the fault: {error}"]
    landed = told.host == host_name(index) and told.workers and told.agent_code == -signal.SIGKILL
    return [] if landed else [f"the fault did not land: {told}"]
