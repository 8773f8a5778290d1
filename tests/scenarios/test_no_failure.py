"""Without a fault the agent changes nothing."""

from __future__ import annotations

import pytest

from scenarios import no_failure, with_failure
from scenarios.conftest import Made
from scenarios.modes import MODES

DEFAULT = "fsdp2_tp_2x2"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == DEFAULT else pytest.mark.soak) for name in MODES]
)
def test_every_bit_is_what_plain_torchrun_gives_and_there_was_one_round(name: str, baseline: Made, untroubled: Made):
    mode = MODES[name]
    assert no_failure.compare_runs(mode, baseline(mode), untroubled(mode)) == []


def test_where_a_fault_was_due_a_run_without_one_is_a_complaint(baseline: Made, untroubled: Made):
    mode = MODES[DEFAULT]
    for compared in (with_failure.compare_spared, with_failure.compare_shrunk):
        complaints = compared(mode, baseline(mode), untroubled(mode))
        assert any("another story" in line for line in complaints)
        assert any("the receipts are [] instead of" in line for line in complaints)
