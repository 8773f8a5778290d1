"""The demo's self-check: it accepts the performance that had to be and none in which one thing differs."""

from __future__ import annotations

import errno

import msgspec
import pytest

from ezpz_elastic.demo.checks import Ending, complaints, redone, witnessed
from ezpz_elastic.demo.plot import ACTIVE, SPARE, STEPS
from ezpz_elastic.demo.receipts import Fault, Receipt
from ezpz_elastic.demo.story import Named, Round

LOST = Named(ACTIVE[1], "lost")
TOGETHER = (ACTIVE[0], SPARE)


def good_rounds() -> list[Round]:
    """The performance as the journals tell it when all is well."""
    restart = "restart"
    return [
        Round(
            1,
            ACTIVE,
            workers={ACTIVE[0]: (11,), ACTIVE[1]: (12,)},
            saved=(20, 40),
            reached=48,
            kind="retryable_unattributed",
            cause="worker_killed",
            suspects=(ACTIVE[0],),
            action=restart,
            losses=(5.6,),
        ),
        Round(
            2,
            ACTIVE,
            workers={ACTIVE[0]: (21,), ACTIVE[1]: (22,)},
            resumed_from=40,
            saved=(60, 80),
            reached=88,
            kind="bad_node_known",
            cause="host_lost",
            named=(LOST,),
            retired=(LOST,),
            action=restart,
        ),
        Round(
            3,
            TOGETHER,
            workers={ACTIVE[0]: (31,), SPARE: (32,)},
            resumed_from=80,
            saved=(100,),
            reached=120,
            kind="retryable_unattributed",
            cause="storage",
            action=restart,
        ),
        Round(
            4,
            TOGETHER,
            workers={ACTIVE[0]: (41,), SPARE: (42,)},
            resumed_from=100,
            saved=(120, 140, STEPS),
            reached=STEPS,
            kind="success",
            cause="unknown",
            action="finish",
            exit_code=0,
            losses=(2.4,),
        ),
    ]


def good_receipts() -> list[Receipt]:
    """The faults as their witnesses saw them."""
    return [
        Receipt(Fault.WORKER_KILLED, 1, True, "the demo", step=48, pids=(11,), complete=40),
        Receipt(Fault.HOST_LOST, 2, True, "the demo", step=87, pids=(22, 7), complete=80),
        Receipt(Fault.DISK_FULL, 3, True, "rank 0", step=120, errno=errno.ENOSPC),
        Receipt(Fault.DISK_FULL, 3, True, "rank 1", step=120, errno=errno.ENOSPC),
    ]


GOOD_ENDING = Ending(
    outcome={"kind": "success", "exit_code": 0},
    bad_nodes=(f"{ACTIVE[1]}  lost  attempt=2",),
    exit_codes={ACTIVE[0]: 0, ACTIVE[1]: -9, SPARE: 0},
)


def found(lives: list[Round], receipts: list[Receipt], ending: Ending = GOOD_ENDING) -> str:
    return "; ".join(complaints(lives, receipts, ending, errno.ENOSPC))


def test_the_performance_that_had_to_be_is_accepted() -> None:
    assert found(good_rounds(), good_receipts()) == ""


@pytest.mark.parametrize("fault", list(Fault))
def test_a_fault_without_a_receipt_fails_however_well_the_job_went(fault: Fault) -> None:
    receipts = [receipt for receipt in good_receipts() if receipt.fault is not fault]
    assert f"{fault.value}: the fault did not land" in found(good_rounds(), receipts)


@pytest.mark.parametrize("fault", list(Fault))
def test_a_receipt_that_says_it_did_not_land_fails(fault: Fault) -> None:
    receipts = [msgspec.structs.replace(item, landed=item.fault is not fault) for item in good_receipts()]
    assert f"{fault.value}: the fault did not land" in found(good_rounds(), receipts)


@pytest.mark.parametrize("fault", [Fault.WORKER_KILLED, Fault.HOST_LOST])
def test_a_receipt_for_other_processes_than_the_victims_workers_fails(fault: Fault) -> None:
    receipts = [msgspec.structs.replace(item, pids=(999,)) if item.fault is fault else item for item in good_receipts()]
    assert "are not among those seen dead" in found(good_rounds(), receipts)


@pytest.mark.parametrize("fault", list(Fault))
def test_a_fault_that_fell_into_another_round_fails(fault: Fault) -> None:
    receipts = [msgspec.structs.replace(item, round=4) if item.fault is fault else item for item in good_receipts()]
    assert "instead of round" in found(good_rounds(), receipts)


def test_a_save_that_failed_of_something_else_than_a_full_disk_fails() -> None:
    receipts = [
        msgspec.structs.replace(item, errno=errno.EIO) if item.fault is Fault.DISK_FULL else item
        for item in good_receipts()
    ]
    assert f"errno {errno.EIO} instead of {errno.ENOSPC}" in found(good_rounds(), receipts)


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (1, {"cause": "host_lost", "kind": "bad_node_known"}, "the verdict is bad_node_known (host_lost)"),
        (1, {"named": (Named(ACTIVE[0], "inferred"),)}, "the verdict names"),
        (1, {"suspects": (ACTIVE[1],)}, "the verdict suspects"),
        (1, {"retired": (Named(ACTIVE[0], "blind"),)}, "retired instead of nobody"),
        (1, {"action": "stop"}, "the decision is stop"),
        (2, {"named": (Named(ACTIVE[0], "lost"),)}, "the verdict names 127.0.0.2 (lost)"),
        (2, {"named": (Named(ACTIVE[1], "blind"),)}, "the verdict names 127.0.0.3 (blind)"),
        (2, {"kind": "bad_node_blind", "cause": "unknown", "named": ()}, "the verdict is bad_node_blind"),
        (2, {"retired": ()}, "nobody retired"),
        (2, {"hosts": (ACTIVE[1], ACTIVE[0])}, "round 2 ran on"),
        (2, {"resumed_from": 20}, "resumed from step 20 and the last complete one is 40"),
        (2, {"resumed_from": None}, "resumed from step None"),
        (2, {"reached": 101}, "21 steps were done again"),
        (2, {"reached": None}, "nobody says how far round 2 came"),
        (3, {"hosts": (SPARE, ACTIVE[0])}, "round 3 ran on 127.0.0.4, 127.0.0.2"),
        (3, {"hosts": (ACTIVE[0], ACTIVE[1])}, "round 3 ran on"),
        (3, {"cause": "user_exception", "kind": "user_error"}, "the verdict is user_error"),
        (3, {"retired": (Named(SPARE, "blind"),)}, "retired instead of nobody"),
        (4, {"resumed_from": 120}, "resumed from step 120 and the last complete one is 100"),
        (4, {"action": "stop", "kind": "exhausted"}, "the last decision is stop"),
        (4, {"saved": (120,)}, "no checkpoint of the last step"),
        (4, {"losses": (5.7,)}, "the validation loss did not fall"),
        (4, {"losses": ()}, "the validation loss did not fall"),
    ],
)
def test_one_wrong_thing_in_the_journals_fails(number: int, change: dict[str, object], said: str) -> None:
    lives = good_rounds()
    lives[number - 1] = msgspec.structs.replace(lives[number - 1], **change)
    assert said in found(lives, good_receipts())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"outcome": None}, "outcome.json says None"),
        ({"outcome": {"kind": "exhausted", "exit_code": 1}}, "outcome.json says"),
        ({"bad_nodes": ()}, "bad_nodes.txt has []"),
        ({"bad_nodes": (f"{ACTIVE[1]}  blind  attempt=2",)}, "bad_nodes.txt has"),
        ({"exit_codes": {ACTIVE[0]: 1, ACTIVE[1]: -9, SPARE: 0}}, "the agent of 127.0.0.2 ended with 1"),
        ({"exit_codes": {ACTIVE[0]: 0, ACTIVE[1]: 0, SPARE: 0}}, "the agent of 127.0.0.3 ended with 0"),
        ({"left": (4711,)}, "processes are left: [4711]"),
    ],
)
def test_one_wrong_thing_at_the_end_fails(change: dict[str, object], said: str) -> None:
    ending = msgspec.structs.replace(GOOD_ENDING, **change)
    assert said in found(good_rounds(), good_receipts(), ending)


def test_a_round_too_few_or_too_many_fails() -> None:
    assert "3 rounds instead of 4" in found(good_rounds()[:3], good_receipts())
    assert "5 rounds instead of 4" in found([*good_rounds(), Round(5, TOGETHER)], good_receipts())
    assert "0 rounds instead of 4" in found([], [])


def test_a_checkpoint_that_only_the_witness_saw_complete_is_the_one_to_resume_from() -> None:
    """A worker can be killed between the rename that commits a step and the line that tells of it."""
    lives, receipts = good_rounds(), good_receipts()
    receipts[0] = msgspec.structs.replace(receipts[0], complete=60)
    assert "resumed from step 40 and the last complete one is 60" in found(lives, receipts)
    lives[0] = msgspec.structs.replace(lives[0], reached=60)
    lives[1] = msgspec.structs.replace(lives[1], resumed_from=60)
    assert found(lives, receipts) == ""


def test_a_round_that_ended_before_any_report_is_as_long_as_its_witness_saw() -> None:
    lives = good_rounds()
    lives[1] = msgspec.structs.replace(lives[1], reached=None)
    seen = witnessed(lives, good_receipts())
    assert seen[1].reached == 87
    assert redone(seen[1], seen[2]) == 7
    assert seen[0].reached == 48
