"""A host that dies costs time and no bit; one that is missing for a while costs a rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios import with_failure
from scenarios.conftest import Made
from scenarios.modes import MODES

SPARED = ("ddp_2x2",)
SHRUNK = ("ddp_4x1",)


def modes(default: tuple[str, ...]) -> list[object]:
    """Every mode; those that take too long for each run of the tests only when they are asked for."""
    return [pytest.param(name, marks=() if name in default else pytest.mark.soak) for name in MODES]


@pytest.mark.parametrize("name", modes(SPARED))
def test_a_spare_takes_the_slot_and_every_bit_is_that_of_a_run_without_a_fault(
    name: str, tmp_path: Path, baseline: Made
):
    mode = MODES[name]
    with_failure.run_spared(mode, tmp_path / "b", phase_a=baseline(mode))
    assert with_failure.compare_spared(mode, baseline(mode), tmp_path / "b") == []


@pytest.mark.parametrize("name", modes(SHRUNK))
def test_the_job_goes_on_with_a_host_less_and_grows_again_within_rounding(name: str, tmp_path: Path, baseline: Made):
    mode = MODES[name]
    with_failure.run_shrunk(mode, tmp_path / "b", phase_a=baseline(mode))
    assert with_failure.compare_shrunk(mode, baseline(mode), tmp_path / "b") == []
