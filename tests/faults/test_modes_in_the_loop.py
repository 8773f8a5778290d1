"""Every fault that a process does to itself, through the real retry loop: seen to be done, answered as the law says.

One job lives through all faults that a job survives, one per attempt and each after a further checkpoint; those that
end a job have one each.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ezpz_elastic.faults.experiment import Experiment, Result
from ezpz_elastic.faults.modes import INSIDE, MODES, Where
from ezpz_elastic.faults.record import AttemptRecord

ELSEWHERE = {"oom"}  # only under a memory limit of its own: tests/cluster/test_memory.py has that, with agents
ENDING = [name for name in INSIDE if (answer := MODES[name].offline) is not None and answer.stops]
SURVIVED = [name for name in INSIDE if name not in {*ENDING, *ELSEWHERE, "slow"}]
EVERY, APART = 4, 10

# What ends each of them, as its parent sees it; a watchdog's 124 is the loop's own doing.
SILENT = {"hang", "sigstop", "gil_sleep"}
SIGNALS = {"sigkill": signal.SIGKILL, "segv": signal.SIGSEGV}


def experiment(modes: list[str], **more: object) -> Experiment:
    """Faults at steps 6, 16, 26, …, with a checkpoint in between."""
    steps = {number: 6 + APART * (number - 1) for number in range(1, len(modes) + 1)}
    # An interpreter says nothing while it starts, and a busy machine may take its time over it.
    options = ("--idle-timeout=4", "--grace=1", "--max-retries=1")
    knobs = {"FI_LASTS": "600"}
    return Experiment(
        total_steps=APART * len(modes) + 4,
        ckpt_every=EVERY,
        fail_at=steps,
        modes=tuple(modes),
        spares=4,
        retry=options,
        environment=knobs,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The job that lives through them all."""
    return experiment(SURVIVED).perform(tmp_path_factory.mktemp("survivor"))


def test_the_job_lives_through_all_of_them_and_is_done(survivor: Result):
    assert survivor.exit_code == 0, survivor.console
    assert survivor.missing(experiment(SURVIVED)) == []
    assert [item.fault for item in survivor.attempts] == [*SURVIVED, ""]
    assert survivor.attempts[-1].kind == "success"


def check(record: AttemptRecord, mode: str) -> None:
    answer = MODES[mode].offline
    assert answer is not None
    assert record.landed, "no witness"
    if mode in SIGNALS:
        assert record.signal == SIGNALS[mode]
    elif mode in SILENT:
        assert record.exit_code == 124
    else:
        assert record.exit_code not in {None, 0}
    assert answer.agrees(record.kind, record.cause), f"{record.kind} ({record.cause})"
    if answer.retires:
        assert record.named in record.hosts
        assert [(out.host, out.provenance) for out in record.retired] == [(record.named, answer.provenance)]
    else:
        assert record.retired == (), "a healthy host was taken out"


@pytest.mark.parametrize("mode", SURVIVED)
def test_it_is_answered_as_the_law_says_and_the_job_goes_on_from_its_last_checkpoint(survivor: Result, mode: str):
    number = SURVIVED.index(mode)
    record, after = survivor.attempts[number : number + 2]
    check(record, mode)
    good = (record.reached or 0) // EVERY * EVERY
    if mode in {"crash_in_save", "full_ost", "truncated_shard"}:
        good -= EVERY  # what was being written, or was harmed, is not whole
    assert after.resumed_from == good


@pytest.mark.parametrize("mode", ENDING)
def test_it_ends_the_job_and_says_so(tmp_path: Path, mode: str):
    result = experiment([mode]).perform(tmp_path / "run")
    (record,) = result.attempts
    check(record, mode)
    assert result.exit_code == record.exit_code == 143
    assert f"FAILOVER STOP: {record.kind} (" in result.console


def test_a_slow_rank_is_no_failure_and_nobody_is_blamed(tmp_path: Path):
    slow = Experiment(total_steps=12, ckpt_every=4, fail_at={1: 6}, modes=("slow",), environment={"FI_LASTS": "0.1"})
    result = slow.perform(tmp_path / "run")
    (record,) = result.attempts
    assert (record.fault, record.kind, record.exit_code, record.retired) == ("slow", "success", 0, ())
    assert record.seconds > 6 * 0.1, "it was slow for all steps that were left"


def test_the_table_of_the_design_page_is_all_there():
    table = {"shepherd", "rank_sig9", "gloo_peer", "ur_oom", "rank_exit", "innocent_cascade", "clean_walltime", "hang"}
    table |= {"sigkill", "silent_fail", "enospc", "enospc_named"}
    assert table <= set(INSIDE)
    assert {*SURVIVED, *ENDING, *ELSEWHERE, "slow"} == set(INSIDE), "one of the modes is tried nowhere"
    assert all(MODES[name].where is not Where.OUTSIDE for name in INSIDE)
