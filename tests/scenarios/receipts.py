"""A host killed for real, and the receipt that says so."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
from support.cluster import Cluster

from ezpz_elastic.faults.modes import Receipt, inflict
from ezpz_elastic.faults.receipts import Receipts
from ezpz_elastic.faults.scene import Targets
from scenarios.runs import DEADLINE, FIRST_HOST, host_name

__all__ = ["kill_host", "missing"]

_KIND = "host_loss"


def kill_host(cluster: Cluster, index: int, directory: Path, round_number: int, step: int) -> None:
    """SIGKILL a host's agent and its workers, see every one of them dead, and leave a receipt.

    Raises:
        AssertionError: a process survived, or there was none to kill.
    """
    agent, host = cluster.agents[FIRST_HOST + index], host_name(index)
    workers = dict.fromkeys(cluster.workers(FIRST_HOST + index, round_number), "worker")
    assert workers, "the host has no workers to lose"
    about = Receipt(_KIND, 0, None, "injector", attempt=round_number, step=step, host=host)
    receipt = inflict(_KIND, Targets({agent.pid: "agent", **workers}, host), Receipts(directory), about)
    assert receipt is not None, "the fault is spent"
    assert receipt.landed, receipt
    assert agent.wait(DEADLINE) == -signal.SIGKILL


def missing(directory: Path, index: int, round_number: int, step: int) -> list[str]:
    """Complaints if it is not exactly that host that somebody saw die, in that round and at that step."""
    try:
        told = Receipts(directory).read()
    except msgspec.DecodeError as error:
        return [f"a receipt cannot be read: {error}"]
    seen = [(item.mode, item.landed, item.host, item.attempt, item.step) for item in told]
    wanted = [(_KIND, True, host_name(index), round_number, step)]
    return [] if seen == wanted else [f"the receipts are {seen} instead of {wanted}"]
