"""A training job whose ranks come to harm while agents look on, and what has to be said of it."""

from __future__ import annotations

from support.cluster import Cluster

from ezpz_elastic.faults.modes import MODES, Answer
from ezpz_elastic.faults.receipts import Receipt, Receipts

TRAINER = ["-m", "ezpz_elastic.faults.trainer"]
EVERY = 4
"""Steps between two checkpoints."""

VICTIM = 1
"""Rank and slot: never the first, where a guess by position would be right by luck."""


def knobs(cluster: Cluster, **more: object) -> dict[str, str]:
    """The trainer's environment: ranks that reduce a gradient and save with ``CheckpointManager``."""
    values = {
        "FI_CKPT": cluster.directory / "ckpts",
        "FI_CKPT_EVERY": EVERY,
        "FI_RECEIPTS": cluster.directory / "receipts",
        "FI_TOGETHER": 1,
        "FI_RANK": VICTIM,
        "FI_SLOT": VICTIM,
        "EZPZ_HOSTFILE": cluster.run_dir / "active.hostfile",
        **more,
    }
    return {key: str(value) for key, value in values.items()}


def start(cluster: Cluster, hosts: tuple[int, ...], conf: str, env: dict[str, str]) -> None:
    """Agents on hosts; with spares the first is in slot 0, and who of the others takes the other slot is open."""
    for host in hosts:
        cluster.start(host, TRAINER, conf=f"settle=5,grace=2,{conf}", env=env)
        if host == hosts[0] and len(hosts) > 2:
            joined(cluster, hosts[:1])
    joined(cluster, hosts)


def joined(cluster: Cluster, hosts: tuple[int, ...]) -> None:
    """Wait until these hosts have said so."""
    wanted = {f"127.0.0.{host}" for host in hosts}
    cluster.await_true(lambda: wanted <= {e["host"] for e in cluster.events("member_joined")}, f"{wanted} join", 120)


def receipts(cluster: Cluster) -> tuple[Receipt, ...]:
    """Of all faults that were done."""
    return Receipts(cluster.directory / "receipts").read()


def pid_of(cluster: Cluster, rank: int, round_number: int) -> tuple[int, str]:
    """Pid and host of a rank in a round."""
    (started,) = [e for e in cluster.events("worker_started") if (e["round"], e["rank"]) == (round_number, rank)]
    return int(str(started["pid"])), str(started["host"])


def assert_answer(cluster: Cluster, mode: str, round_number: int, host: str) -> None:
    """The verdict says what was done, and where; nobody but the victim's host is retired, and that only if it must."""
    answer = MODES[mode].live
    assert isinstance(answer, Answer)
    (verdict,) = [event for event in cluster.events("verdict") if event["round"] == round_number]
    told = str(verdict["kind"]), str(verdict["cause"])
    assert answer.agrees(*told), f"round {round_number}, {mode}: {told}: {verdict}"
    named = [(item["name"], item["provenance"]) for item in verdict["hosts"]]  # type: ignore[attr-defined]
    assert named == ([(host, answer.provenance)] if answer.provenance is not None else []), f"{mode}: {verdict}"
    retired = [(e["retired"], e["provenance"]) for e in cluster.events("host_retired") if e["round"] == round_number]
    assert retired == ([(host, answer.provenance)] if answer.retires else []), f"{mode}: {retired}"
