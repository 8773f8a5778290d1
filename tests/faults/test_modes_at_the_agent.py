"""Every fault that a worker does to itself, where agents look on: seen to be done, and answered as the law says.

Real ``torchrun`` agents on loopback hosts, ranks that reduce a gradient and save with ``CheckpointManager``. A job
lives through many faults, one per round; what makes no steps has a job of its own, because only there is a step timed.
"""

from __future__ import annotations

import re
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.watched import EVERY, TRAINER, VICTIM, assert_answer, knobs, pid_of, receipts, start
from support.cluster import Cluster

from ezpz_elastic.faults.modes import INSIDE

APART = 8
RETIRING = ("shepherd", "rank_sig9")
"""Each costs a host; they come last, when the spares have been there for long."""

SEED = ("gloo_peer", "ur_oom", "rank_exit", "innocent_cascade", "clean_walltime", "sigkill", "silent_fail", "enospc")
SEED += ("enospc_named", *RETIRING)
"""The design page's table, without ``hang``."""

ENDING = ("raise_inside", "full_ost", "truncated_shard", *SEED)
ALIKE = ("segv", "exit", "raise_before", "raise_after", "crash_before_allreduce", "crash_in_save")
"""Answered as one of the others is."""

SILENT = ("hang", "gil_sleep")
STOPPED = ("sigstop",)
"""tests/cluster/test_hang.py stops a worker from outside."""

ALONE = ("oom", "slow")
SIGNALS = {"sigkill": signal.SIGKILL, "segv": signal.SIGSEGV}
HARMED = {"crash_in_save", "full_ost", "truncated_shard"}
"""What was being written, or was harmed, is not whole."""

HANG_TIMEOUT = 6
"""Seconds: a step takes milliseconds, and on a machine that is busy otherwise hundreds of them."""

SLOW = 0.2
"""Seconds that a slow rank lingers in every step."""

Lived = tuple[Cluster, tuple[str, ...]]


def live_through(directory: Path, modes: tuple[str, ...], hang_timeout: int, lasts: float) -> Cluster:
    """A job that has ended after a fault in each of its rounds; a slow rank alone ends no round."""
    cluster = Cluster(directory)
    steps = [6 + APART * number for number in range(len(modes))]
    env = knobs(cluster, FI_TOTAL=steps[-1] + APART, FI_MODE=",".join(modes), FI_LASTS=lasts)
    env["FI_FAIL_AT"] = ",".join(map(str, steps))
    hosts = (2, 3, 4, 5) if "shepherd" in modes else (2, 3)
    try:
        start(cluster, hosts, f"last_call=5,hang_timeout={hang_timeout}", env)
        codes = [cluster.wait(host, 600) for host in hosts]
        assert codes == [0] * len(hosts), cluster.output(2)[-3000:]
        assert cluster.outcome()["kind"] == "success"
        assert cluster.outcome()["rounds"] == len(modes) + (modes[-1] != "slow")
        assert [receipt.mode for receipt in sorted(receipts(cluster), key=lambda item: item.attempt)] == list(modes)
        cluster.assert_nothing_left()
    finally:
        cluster.close()
    return cluster


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    modes = (*ENDING, "slow")
    return live_through(tmp_path_factory.mktemp("ended"), modes, 0, SLOW), modes


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return live_through(tmp_path_factory.mktemp("alike"), ALIKE, 0, SLOW), ALIKE


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return live_through(tmp_path_factory.mktemp("silent"), SILENT, HANG_TIMEOUT, 600), SILENT


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return live_through(tmp_path_factory.mktemp("stopped"), STOPPED, HANG_TIMEOUT, 600), STOPPED


def assert_answered(lived: Lived, mode: str) -> None:
    """The receipt is the victim's, its end is what the fault makes it, the answer is right, and the job went on."""
    cluster, modes = lived
    number = modes.index(mode) + 1
    (receipt,) = [item for item in receipts(cluster) if item.mode == mode]
    (pid,) = receipt.pids
    host = cluster.rosters()[number - 1][VICTIM]
    assert receipt.attempt == number
    assert pid_of(cluster, VICTIM, number) == (pid, host), "the receipt is of the rank on the victim's host"
    if mode in SILENT + STOPPED:
        looked = [e["rank"] for e in cluster.events("stacks") if e["round"] == number]
        assert sorted(looked) == [0, 1], "both ranks were looked at"  # type: ignore[type-var]
    else:
        (end,) = [e for e in cluster.events("worker_exited") if (e["round"], e["rank"]) == (number, VICTIM)]
        assert end["signal"] == SIGNALS.get(mode)
        assert mode in SIGNALS or end["exit_code"] not in {0, None}
    assert_answer(cluster, mode, number, host)
    resumed = re.search(r"resumed from step (\d+)", cluster.text(f"rounds/{number + 1}/0/stdout.log"))
    assert resumed is not None, "the next round never said where it resumed"
    whole = (receipt.step or 0) // EVERY * EVERY - (EVERY if mode in HARMED else 0)
    assert int(resumed[1]) == whole, "the newest checkpoint that is whole"


@pytest.mark.parametrize("mode", ENDING)
def test_what_ends_a_worker_is_answered_as_the_law_says(ended: Lived, mode: str):
    assert_answered(ended, mode)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ALIKE)
def test_what_ends_a_worker_in_further_ways_is_answered_as_the_law_says(alike: Lived, mode: str):
    assert_answered(alike, mode)


@pytest.mark.parametrize("mode", SILENT)
def test_a_silent_worker_is_named_and_restarts_in_place(silent: Lived, mode: str):
    assert_answered(silent, mode)


@pytest.mark.soak
@pytest.mark.parametrize("mode", STOPPED)
def test_a_stopped_worker_is_named_and_restarts_in_place(stopped: Lived, mode: str):
    assert_answered(stopped, mode)


def test_a_slow_rank_holds_the_others_up_and_nobody_is_blamed(ended: Lived):
    cluster, modes = ended
    (receipt,) = [item for item in receipts(cluster) if item.mode == "slow"]
    assert (receipt.attempt, modes[-1]) == (len(modes), "slow")
    began = (cluster.directory / "receipts" / f"attempt{len(modes)}-slow-1.json").stat().st_mtime
    (finished,) = cluster.events("finished")
    assert float(str(finished["ts"])) - began > SLOW * APART, "it was slow for all steps that were left"
    (verdict,) = [event for event in cluster.events("verdict") if event["round"] == len(modes)]
    assert (verdict["kind"], verdict["hosts"], verdict["suspects"]) == ("success", [], [])
    told = [modes[int(str(event["round"])) - 1] for event in cluster.events("host_retired")]
    assert told == list(RETIRING), "only those that were named"


@pytest.fixture
def limited() -> Iterator[Path]:
    """A memory cgroup that holds an agent and its workers, and no more."""
    limit = 1500 << 20
    v1 = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    group = Path("/sys/fs/cgroup", *(["memory"] if v1 else []), f"ezpz-faults-{uuid.uuid4().hex[:8]}")
    names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if v1 else ("memory.max", "memory.swap.max")
    try:
        group.mkdir()
        (group / names[0]).write_text(str(limit))
        if (group / names[1]).exists():
            (group / names[1]).write_text(str(limit if v1 else 0))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here ({error}); tests/agent/test_oom.py has the counters faked")
    yield group
    group.rmdir()


def test_a_worker_that_takes_all_memory_is_ended_by_the_kernel_and_nobody_is_retired(cluster: Cluster, limited: Path):
    env = knobs(cluster, FI_TOTAL=8, FI_FAIL_AT=5, FI_MODE="oom", FI_TOGETHER=0, FI_RANK=0)
    env["FI_CKPT"] = str(cluster.directory / "checkpoint.json")
    enter = ["sh", "-c", f'echo $$ > {limited}/cgroup.procs; exec "$@"', "sh"]
    command = [*enter, Cluster.torchrun(), "--rdzv-backend=ezpz"]
    cluster.start(2, TRAINER, nnodes="1:1", command=command, conf="warm=off", env=env)
    assert cluster.wait(2, 600) == 0
    (receipt,) = receipts(cluster)
    (killed,) = [event for event in cluster.events("worker_exited") if event["signal"] == signal.SIGKILL]
    assert (receipt.mode, receipt.pids) == ("oom", (pid_of(cluster, 0, 1)[0],))
    assert (killed["round"], killed["rank"]) == (1, 0)
    assert int(str(killed["oom_kills"])) >= 1, "it was the kernel"
    assert_answer(cluster, "oom", 1, "127.0.0.2")
    cluster.assert_nothing_left()


def test_every_mode_is_tried_somewhere_and_the_table_of_the_design_page_by_default():
    assert sorted((*ENDING, *ALIKE, *SILENT, *STOPPED, *ALONE)) == sorted(INSIDE)
    assert {"hang", *SEED} <= {*ENDING, *SILENT}
