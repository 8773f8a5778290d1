"""What living agents report, and what may be said of it: no two hosts' clocks are ever compared."""

from __future__ import annotations

import errno
import os
import traceback
from pathlib import Path

import pytest

from ezpz_elastic.attempt import classify_log
from ezpz_elastic.checkpoint.errors import SaveFailed, failure_of
from ezpz_elastic.decide.classify import Context, classify
from ezpz_elastic.decide.evidence import (
    Accusation,
    AgentSignalled,
    Certainty,
    ErrorRecord,
    Evidence,
    HostProbe,
    IdleTimeout,
    LeaseLost,
    LogMatch,
    LostHow,
    Role,
    SchedulerFact,
    WorkerExit,
)
from ezpz_elastic.decide.verdict import Cause, Provenance, Verdict, VerdictKind
from ezpz_elastic.observe.tracebacks import last_error

HOSTS = ("n1", "n2", "n3")
LIVE = Context(hosts=HOSTS, roster=("n1", "n1", "n2", "n2", "n3", "n3"), live=True)
GLOO = ErrorRecord("RuntimeError", "[/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [n2]:4242")


def judge(*evidence: Evidence, context: Context = LIVE) -> Verdict:
    return classify(evidence, context)


def names(verdict: Verdict) -> list[str]:
    return [host.name for host in verdict.hosts]


def suspects(verdict: Verdict) -> list[str]:
    return [suspect.name for suspect in verdict.suspects]


def test_sigkill_with_a_living_agent_is_a_killed_worker_and_names_nobody() -> None:
    verdict = judge(WorkerExit("n2", 2, signal=9, step=41), WorkerExit("n1", 0, exit_code=1, error=GLOO, step=41))
    assert (verdict.kind, verdict.cause) == (VerdictKind.RETRYABLE_UNATTRIBUTED, Cause.WORKER_KILLED)
    assert names(verdict) == []
    assert suspects(verdict) == ["n2"]
    assert verdict.step == 41


def test_an_oom_counter_explains_the_kill() -> None:
    verdict = judge(WorkerExit("n2", 2, signal=9, oom_kills=1, peak_rss_bytes=2**34))
    assert (verdict.kind, verdict.cause) == (VerdictKind.RETRYABLE_UNATTRIBUTED, Cause.OOM_HOST)
    assert suspects(verdict) == ["n2"]
    assert "16.0 GiB" in verdict.reason


@pytest.mark.parametrize("how", list(LostHow))
def test_a_lost_lease_beats_what_the_survivors_say(how: LostHow) -> None:
    verdict = judge(
        WorkerExit("n1", 0, exit_code=1, error=GLOO),
        WorkerExit("n3", 4, exit_code=1, error=ErrorRecord("RuntimeError", "something nobody has a signature for")),
        LeaseLost("n2", how),
    )
    assert (verdict.kind, verdict.cause) == (VerdictKind.BAD_NODE_KNOWN, Cause.HOST_LOST)
    assert [(host.name, host.provenance) for host in verdict.hosts] == [("n2", Provenance.LOST)]


def test_two_lost_hosts_are_both_named_even_when_they_are_all() -> None:
    verdict = judge(
        LeaseLost("n1", LostHow.EXPIRED), LeaseLost("n2", LostHow.EXPIRED), LeaseLost("n3", LostHow.EXPIRED)
    )
    assert names(verdict) == ["n1", "n2", "n3"]


def test_a_lease_of_a_host_outside_the_attempt_says_nothing() -> None:
    verdict = judge(LeaseLost("spare-9", LostHow.EXPIRED), WorkerExit("n2", 2, signal=9))
    assert names(verdict) == []
    assert verdict.cause is Cause.WORKER_KILLED


def test_the_exception_whose_peers_only_lost_their_connection_is_the_primary_one() -> None:
    boom = ErrorRecord("ValueError", "batch 17 is empty", (("/home/u/train.py", 88, "step"),))
    verdict = judge(
        WorkerExit("n1", 0, exit_code=1, error=GLOO, step=17),
        WorkerExit("n3", 4, exit_code=1, error=boom, step=17),
        WorkerExit("n2", 2, exit_code=1, error=GLOO, step=17),
    )
    assert (verdict.kind, verdict.cause) == (VerdictKind.USER_ERROR, Cause.USER_EXCEPTION)
    assert verdict.fingerprint == "ValueError|batch # is empty|train.py:step"
    assert "ValueError" in verdict.reason


def test_the_fingerprint_is_equal_for_the_same_error_at_another_batch() -> None:
    def at(number: int) -> str:
        record = ErrorRecord(
            "ValueError",
            f"batch {number} at 0x7f{number:x}",
            (("/u/train.py", number, "step"), ("/venv/lib/python3.11/site-packages/torch/x.py", 1, "f")),
        )
        return judge(WorkerExit("n1", 0, exit_code=1, error=record)).fingerprint

    assert at(17) == at(4711) != ""


def test_a_full_file_system_in_a_checkpoint_frame_is_storage_and_suspects_nobody() -> None:
    record = ErrorRecord(
        "OSError",
        "[Errno 28] No space left on device",
        (("/u/train.py", 3, "main"), ("/v/torch/distributed/checkpoint/filesystem.py", 520, "create_stream")),
    )
    verdict = judge(WorkerExit("n2", 2, exit_code=1, error=record), WorkerExit("n1", 0, exit_code=1, error=GLOO))
    assert (verdict.kind, verdict.cause) == (VerdictKind.RETRYABLE_UNATTRIBUTED, Cause.STORAGE)
    assert names(verdict) == suspects(verdict) == []


def test_the_same_text_in_a_dataloader_frame_is_shared_memory() -> None:
    record = ErrorRecord(
        "OSError", "[Errno 28] No space left on device", (("/v/torch/utils/data/dataloader.py", 1, "_try_get_data"),)
    )
    assert judge(WorkerExit("n2", 2, exit_code=1, error=record)).cause is Cause.SHM_FULL


@pytest.mark.parametrize(
    ("type_", "message", "cause", "kind"),
    [
        ("ModuleNotFoundError", "No module named 'x'", Cause.USER_EXCEPTION, VerdictKind.USER_ERROR),
        ("MemoryError", "", Cause.OOM_HOST, VerdictKind.RETRYABLE_UNATTRIBUTED),
        ("OSError", "[Errno 122] Disk quota exceeded", Cause.QUOTA, VerdictKind.RETRYABLE_UNATTRIBUTED),
        ("OSError", "[Errno 98] Address already in use", Cause.PORT_IN_USE, VerdictKind.RETRYABLE_UNATTRIBUTED),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried", Cause.OOM_DEVICE, VerdictKind.BAD_NODE_KNOWN),
        (
            "RuntimeError",
            "PytorchStreamReader failed reading zip archive",
            Cause.CHECKPOINT_CORRUPT,
            VerdictKind.RETRYABLE_UNATTRIBUTED,
        ),
    ],
)
def test_an_exception_says_its_cause(type_: str, message: str, cause: Cause, kind: VerdictKind) -> None:
    verdict = judge(WorkerExit("n2", 2, exit_code=1, error=ErrorRecord(type_, message)))
    assert (verdict.cause, verdict.kind) == (cause, kind)


def test_a_broken_gpu_names_the_host_of_the_rank_that_said_so() -> None:
    record = ErrorRecord("RuntimeError", "CUDA error: uncorrectable ECC error encountered")
    verdict = judge(WorkerExit("n2", 3, exit_code=1, error=record), WorkerExit("n1", 0, exit_code=1, error=GLOO))
    assert [(host.name, host.provenance) for host in verdict.hosts] == [("n2", Provenance.INFERRED)]
    assert verdict.certain


def test_a_lost_device_on_one_host_is_named_but_doubtful_and_on_two_hosts_names_nobody() -> None:
    record = ErrorRecord("RuntimeError", "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)")
    one = judge(WorkerExit("n2", 3, exit_code=1, error=record))
    two = judge(WorkerExit("n2", 3, exit_code=1, error=record), WorkerExit("n1", 0, exit_code=1, error=record))
    assert (names(one), one.certain) == (["n2"], False)
    assert (names(two), two.kind) == ([], VerdictKind.BAD_NODE_BLIND)


def test_argparse_is_the_users_own_error() -> None:
    tail = ("usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --learning-rate 1")
    verdict = judge(*(WorkerExit("n1", rank, exit_code=2, stderr_tail=tail) for rank in range(2)))
    assert (verdict.kind, verdict.cause) == (VerdictKind.USER_ERROR, Cause.LAUNCH_ERROR)


def test_a_bare_exit_is_retried_with_a_suspect() -> None:
    verdict = judge(WorkerExit("n3", 5, exit_code=1), WorkerExit("n1", 0, exit_code=1, error=GLOO))
    assert (verdict.kind, verdict.cause) == (VerdictKind.RETRYABLE_UNATTRIBUTED, Cause.WORKER_EXIT)
    assert suspects(verdict) == ["n3"]


@pytest.mark.parametrize("signal", [6, 7, 11])
def test_a_crash_by_signal_is_retried_with_a_suspect(signal: int) -> None:
    verdict = judge(WorkerExit("n3", 5, signal=signal))
    assert (verdict.kind, verdict.cause) == (VerdictKind.RETRYABLE_UNATTRIBUTED, Cause.WORKER_EXIT)
    assert suspects(verdict) == ["n3"]


def test_what_the_agent_did_itself_is_evidence_of_nothing() -> None:
    verdict = judge(WorkerExit("n1", 0, signal=9, by_agent=True), WorkerExit("n2", 2, exit_code=0))
    assert verdict.kind is VerdictKind.SUCCESS
    assert any("its own agent" in line.why for line in verdict.set_aside)


def test_a_signalled_agent_is_an_interruption_unless_the_deadline_is_here() -> None:
    signalled = AgentSignalled("n1", 15)
    assert judge(signalled, LeaseLost("n1", LostHow.REFUSED)).kind is VerdictKind.INTERRUPTED
    assert judge(signalled, SchedulerFact(remaining=20.0)).kind is VerdictKind.WALLTIME
    assert judge(signalled, SchedulerFact(remaining=7200.0)).kind is VerdictKind.INTERRUPTED
    assert judge(signalled, SchedulerFact(state="preempted")).kind is VerdictKind.PREEMPTED


def test_the_schedulers_word_on_a_host_counts_only_when_it_is_down() -> None:
    down = judge(SchedulerFact(host="n2", state="down*"), WorkerExit("n1", 0, exit_code=1, error=GLOO))
    drain = judge(SchedulerFact(host="n2", state="drain"), WorkerExit("n1", 0, exit_code=1))
    assert [(host.name, host.provenance) for host in down.hosts] == [("n2", Provenance.LOST)]
    assert names(drain) == []


def test_one_rank_behind_all_others_is_named_for_a_hang_and_several_are_not() -> None:
    one = judge(IdleTimeout(600.0, behind=((3, "n2"),)))
    many = judge(IdleTimeout(600.0, behind=((3, "n2"), (4, "n3"))))
    silence = judge(IdleTimeout(600.0))
    assert (one.kind, one.cause, names(one)) == (VerdictKind.BAD_NODE_KNOWN, Cause.HANG, ["n2"])
    assert (many.kind, silence.kind) == (VerdictKind.BAD_NODE_BLIND, VerdictKind.BAD_NODE_BLIND)


class TestAccusations:
    def test_two_accusers_on_two_hosts_name_the_silent_peer(self) -> None:
        verdict = judge(Accusation("n1", "n2"), Accusation("n3", "n2"))
        assert [(host.name, host.provenance) for host in verdict.hosts] == [("n2", Provenance.ACCUSED)]

    def test_two_ranks_of_one_host_are_one_accuser(self) -> None:
        verdict = judge(Accusation("n1", "n2", rank=0), Accusation("n1", "n2", rank=1))
        assert (verdict.kind, verdict.cause) == (VerdictKind.BAD_NODE_BLIND, Cause.NETWORK)
        assert suspects(verdict) == ["n2"]

    def test_one_accuser_is_enough_if_the_accused_does_not_answer_a_probe(self) -> None:
        assert names(judge(Accusation("n1", "n2", probe=False))) == ["n2"]
        assert names(judge(Accusation("n1", "n2", probe=True), Accusation("n3", "n2", probe=True))) == []

    def test_an_accused_that_told_its_own_story_is_not_convicted(self) -> None:
        verdict = judge(Accusation("n1", "n2"), Accusation("n3", "n2"), WorkerExit("n2", 2, exit_code=1))
        assert (names(verdict), verdict.cause) == ([], Cause.WORKER_EXIT)

    def test_an_accused_that_accuses_is_alive(self) -> None:
        verdict = judge(Accusation("n1", "n2"), Accusation("n3", "n2"), Accusation("n2", "n1"))
        assert names(verdict) == []

    def test_an_address_is_resolved_by_the_table_given(self) -> None:
        context = Context(hosts=HOSTS, roster=HOSTS, live=True, addresses={"10.0.0.2": "n2"})
        verdict = judge(Accusation("n1", "10.0.0.2"), Accusation("n3", "10.0.0.2"), context=context)
        assert names(verdict) == ["n2"]


def test_a_failed_probe_names_its_host_unless_it_is_of_the_storage() -> None:
    exits = WorkerExit("n1", 0, exit_code=1)
    gpu = judge(exits, HostProbe("n3", "gpu", healthy=False, detail="2 of 6 devices answer"))
    disk = judge(exits, HostProbe("n3", "storage", healthy=False, detail="fsync took 40 s"))
    assert [(host.name, host.provenance) for host in gpu.hosts] == [("n3", Provenance.PROBED)]
    assert (names(disk), disk.cause) == ([], Cause.STORAGE)


def test_lines_of_a_ranks_own_log_count_like_its_exit_record() -> None:
    line = LogMatch(
        signature="cuda.ecc", emitter="cuda", cause=Cause.DEVICE_FAULT, role=Role.PRIMARY,
        certainty=Certainty.CERTAIN, text="CUDA error: uncorrectable ECC error encountered", file="3/stderr.log",
        line=9, rank=3,
    )  # fmt: skip
    verdict = judge(WorkerExit("n2", 3, exit_code=1), line, WorkerExit("n1", 0, exit_code=1, error=GLOO))
    assert [(host.name, host.provenance) for host in verdict.hosts] == [("n2", Provenance.INFERRED)]
    assert verdict.evidence[0].line == 9


def test_no_evidence_of_a_live_attempt_is_success() -> None:
    assert judge(*(WorkerExit(host, i, exit_code=0) for i, host in enumerate(HOSTS))).kind is VerdictKind.SUCCESS


def test_an_error_that_its_rank_outlived_is_not_what_ended_it() -> None:
    def full_disk(after: int, step: int | None, last: int | None) -> LogMatch:
        return LogMatch(
            signature="storage.enospc", emitter="storage", cause=Cause.STORAGE, role=Role.PRIMARY,
            certainty=Certainty.LIKELY, text="OSError: [Errno 28] No space left on device", file="3/stderr.log",
            line=9, rank=3, step=step, last_step=last, after=after,
        )  # fmt: skip

    crash = WorkerExit("n2", 3, signal=11, step=500)
    assert judge(crash, full_disk(5, None, None)).cause is Cause.STORAGE
    assert judge(crash, full_disk(5000, None, None)).cause is Cause.WORKER_EXIT
    assert judge(crash, full_disk(5, 100, 500)).cause is Cause.WORKER_EXIT


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), VerdictKind.RETRYABLE_UNATTRIBUTED, Cause.STORAGE),
        (OSError(errno.EIO, os.strerror(errno.EIO)), VerdictKind.RETRYABLE_UNATTRIBUTED, Cause.STORAGE),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), VerdictKind.RETRYABLE_UNATTRIBUTED, Cause.QUOTA),
        (ValueError("a tensor of no known kind"), VerdictKind.USER_ERROR, Cause.USER_EXCEPTION),
    ],
    ids=["full", "broken", "quota", "program"],
)
def test_a_rank_that_only_heard_of_a_failed_save_says_what_it_failed_of(tmp_path: Path, error, kind, cause) -> None:
    """It may end before the rank that failed does, whose agent then reports too late."""
    stderr = tmp_path / "stderr.log"
    try:
        raise SaveFailed("checkpoint of step 5 not saved", (failure_of(0, error),), "while writing /lus/run/step-5")
    except SaveFailed:
        stderr.write_text("".join(f"[rank2]: {line}\n" for line in traceback.format_exc().splitlines()))
    told = last_error(stderr)
    assert told is not None
    assert told.type == "SaveFailed"
    for verdict in (judge(WorkerExit("n2", 2, exit_code=1, error=told)), classify_log(stderr, exit_code=1)):
        assert (verdict.kind, verdict.cause) == (kind, cause)
        assert names(verdict) == []
