"""Rules of evidence over console logs that the corpus has no case of: one test for each way to be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ezpz_elastic import Verdict, classify_log

NIDS = ("nid001", "nid002", "nid003")
AURORA = (
    "x4610c4s3b0n0.hsn.cm.aurora.alcf.anl.gov",
    "x4610c4s5b0n0.hsn.cm.aurora.alcf.anl.gov",
    "x4512c1s7b0n0.hsn.cm.aurora.alcf.anl.gov",
)
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def gloo(rank: int, peer: str) -> str:
    return f"[rank{rank}]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [{peer}]:4{rank}\n"


@pytest.fixture
def judge(tmp_path: Path):  # type: ignore[no-untyped-def]
    def run(
        log: str,
        code: int | None = 1,
        hosts: tuple[str, ...] = NIDS,
        per_host: int | None = None,
        remaining: float | None = 10800.0,
        machine: str = "auto",
    ) -> Verdict:
        path = tmp_path / "log"
        path.write_text(log)
        return classify_log(path, code, machine, remaining, hosts, per_host)

    return run


def names(verdict: Verdict) -> list[str]:
    return [host.name for host in verdict.hosts]


@pytest.mark.parametrize(
    ("log", "code", "hosts", "per_host", "kind", "cause", "named"),
    [
        # the controller's word explains kills that were printed before it
        (
            "srun: error: nid001: tasks 0-3: Killed\nsrun: error: Node failure on nid003\n",
            1, NIDS, 4, "bad_node_known", "host_lost", ["nid003"],
        ),
        # a daemon that reports on its child is alive, though its own parent waits for it
        (
            "ping failed on x4610c4s3b0n0: No reply from x4610c4s5b0n0 after 87s\n"
            "ping failed on x4610c4s5b0n0: No reply from x4512c1s7b0n0 after 87s\n",
            143, AURORA, None, "bad_node_known", "host_lost", [AURORA[2]],
        ),
        # the messenger does not inherit the blame of a child that is no host of the attempt
        (
            "launch failed on x4610c4s3b0n0: Couldn't forward RPC launch(8d1f) to child x4999c1s7b0n0: "
            "Resource temporarily unavailable\n",
            1, AURORA, None, "bad_node_blind", "unknown", [],
        ),
        # prterun wraps its line before the signal
        (
            "prterun noticed that process rank 3 with PID 0 on node nid002 exited on\nsignal 9 (Killed).\n",
            137, NIDS, None, "bad_node_known", "host_lost", ["nid002"],
        ),
        # a label of a node's task is no rank
        (f"1: {ECC}\n", 1, NIDS, 4, "bad_node_blind", "device_fault", []),
        (f"1: [rank5]: {ECC}\n", 1, NIDS, 4, "bad_node_known", "device_fault", ["nid002"]),
        (f"nid002: {ECC}\n", 1, NIDS, 4, "bad_node_known", "device_fault", ["nid002"]),
        (f"[rank50]: {ECC}\n", 1, NIDS, 4, "bad_node_blind", "device_fault", []),
        # more ranks than hosts but a task for each host at most: a task is a host's launcher, and no rank
        (
            f"[rank1]: {ECC}\n[rank5]: NCCL communicator was aborted\n"
            "srun: error: nid002: task 1: Exited with exit code 1\n",
            1, NIDS, None, "bad_node_blind", "device_fault", [],
        ),
        (
            f"[rank1]: {ECC}\nsrun: error: nid002: task 1: Exited with exit code 1\n",
            1, NIDS, None, "bad_node_known", "device_fault", ["nid002"],
        ),
        # torch wraps the error of a rank: the wrapper is printed first and says nothing
        (
            "[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])\n"
            "[rank0]: OSError: [Errno 122] Disk quota exceeded\n",
            1, NIDS, 4, "retryable_unattributed", "quota", [],
        ),
        # seen late on one host, while another came as far as waiting for it
        (
            "[rank1]: ModuleNotFoundError: No module named 'x'\n"
            "[rank0]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients.\n",
            1, NIDS, 1, "retryable_unattributed", "storage", [],
        ),
        # an error that was handled is not the beginning of what came fifty steps later
        (
            "step=100\nOSError: [Errno 28] No space left on device: '/lus/x'\nstep=101\nstep=150\n"
            f"{AURORA[1]}: shepherd died from signal 9\n",
            143, AURORA, None, "bad_node_known", "host_lost", [AURORA[1]],
        ),
        # lines after a lost host were only buffered
        (
            f"step=100\n{AURORA[1]}: shepherd died from signal 9\nstep=101\nstep=150\n",
            143, AURORA, None, "bad_node_known", "host_lost", [AURORA[1]],
        ),
        # a wrapper's log of several attempts is judged by the last
        (
            f"[auto-retry] attempt 1 (x)\n{AURORA[0]}: shepherd died from signal 9\n[auto-retry] attempt 2 (x)\n"
            f"step=4\n{AURORA[2]}: shepherd died from signal 9\n",
            143, AURORA, None, "bad_node_known", "host_lost", [AURORA[2]],
        ),
        # survivors that accuse one another after the first loss are survivors
        (
            gloo(0, "10.0.0.2") + gloo(2, "10.0.0.2") + gloo(3, "10.0.0.1"),
            1, ADDRESSES, 1, "bad_node_known", "network", ["10.0.0.2"],
        ),
        (
            gloo(0, "10.0.0.2") + gloo(2, "10.0.0.2") + gloo(0, "10.0.0.4") + gloo(2, "10.0.0.4"),
            1, ADDRESSES, 1, "bad_node_blind", "network", [],
        ),
        (
            gloo(0, "10.0.0.2") + gloo(2, "10.0.0.2") + "[rank1]: MemoryError\n",
            1, ADDRESSES, 1, "retryable_unattributed", "oom_host", [],
        ),
        # NCCL's own prefix tells who accuses
        (
            "nid001:1:2 [0] NCCL WARN Net : Connection closed by remote peer nid002<43210>\n"
            "nid003:1:2 [0] NCCL WARN Net : Connection closed by remote peer nid002<43211>\n",
            1, NIDS, None, "bad_node_known", "network", ["nid002"],
        ),
    ],
)  # fmt: skip
def test_a_rule(  # type: ignore[no-untyped-def]
    judge, log: str, code: int, hosts: tuple[str, ...], per_host: int | None, kind: str, cause: str, named: list[str]
) -> None:
    verdict = judge(log, code, hosts, per_host)
    assert (verdict.kind.value, verdict.cause.value, names(verdict)) == (kind, cause, named)


def test_143_asks_the_deadline_first(judge) -> None:  # type: ignore[no-untyped-def]
    assert judge("step=1\n", 143, remaining=None).kind.value == "walltime"
    assert judge("step=1\n", 143, remaining=30.0).kind.value == "walltime"
    assert judge("step=1\n", 143, remaining=7200.0).kind.value == "bad_node_blind"


def test_an_exit_code_of_0_is_no_success_where_the_log_tells_of_a_failure(judge) -> None:  # type: ignore[no-untyped-def]
    assert judge("step=300\n[ezpz/launch] Execution finished with 1.\n", 0).kind.value == "retryable_unattributed"
    assert judge(f"step=3\n{AURORA[1]}: shepherd died from signal 9\n", 0, AURORA).kind.value == "bad_node_known"
    assert judge("step=300\n[ezpz/launch] Execution finished with 0.\n", 0).kind.value == "success"


def test_every_line_is_either_evidence_or_set_aside_with_why(judge) -> None:  # type: ignore[no-untyped-def]
    verdict = judge(
        f"{AURORA[1]}: shepherd died from signal 9\n{AURORA[0]}: rank 3 died from signal 15\n"
        "x4999c1s7b0n0.hsn.cm.aurora.alcf.anl.gov: shepherd died from signal 9\n",
        143,
        AURORA,
    )
    assert [line.line for line in verdict.evidence] == [1]
    assert sorted((line.line, bool(line.why)) for line in verdict.set_aside) == [(2, True), (3, True)]
    assert verdict.reason.startswith("host_lost")


def test_a_log_that_names_only_hosts_that_are_gone_says_so(judge) -> None:  # type: ignore[no-untyped-def]
    assert "stale" in judge("srun: error: Node failure on nid099\n").reason


def test_a_job_that_went_on_for_long_and_ended_well_is_a_success(judge) -> None:  # type: ignore[no-untyped-def]
    early = "ping failed on x4610c4s3b0n0: No reply from x4610c4s5b0n0 after 87s\n"
    assert judge(f"step=5\n{early}step=6\nstep=90\ntraining finished\n", 0, AURORA).kind.value == "success"
    assert names(judge(f"step=5\n{early}step=6\n", 0, AURORA)) == [AURORA[1]]


def test_a_host_that_came_back_is_not_named_for_what_ended_the_job_later(judge) -> None:  # type: ignore[no-untyped-def]
    early = "ping failed on x4610c4s3b0n0: No reply from x4610c4s5b0n0 after 87s\n"
    late = f"{AURORA[2]}: shepherd died from signal 9\n"
    assert names(judge(f"step=5\n{early}step=6\nstep=900\n{late}", 143, AURORA)) == [AURORA[2]]
    assert names(judge(f"step=5\n{early}step=6\nstep=900\n", 143, AURORA)) == [AURORA[1]]
