"""A restart is bit for bit what would have been without it, and a checkpoint that lacks anything is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios import deterministic, journal
from scenarios.conftest import Made
from scenarios.modes import MODES
from scenarios.options import DROPS

DEFAULT = ("fsdp2_2x2",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.soak) for name in MODES]
)
def test_every_bit_is_the_same_after_a_cold_start_and_after_a_checkpoint_of_a_recovered_job(
    name: str, tmp_path: Path, baseline: Made
):
    mode = MODES[name]
    deterministic.run_phases(mode, tmp_path)
    assert deterministic.compare_phases(mode, baseline(mode), tmp_path) == []


def test_a_checkpoint_that_lacks_a_part_is_found_out_whichever_part_it_is(tmp_path: Path, baseline: Made):
    mode = MODES["ddp_2x1"]
    deterministic.run_controls(mode, tmp_path)
    found = journal.judged(tmp_path / "run")
    assert len(found) == mode.ranks, "whoever lost its place in the data saw other samples"
    assert all(": samples: step 3 saw [0, " in line or ": samples: step 3 saw [8, " in line for line in found)
    told = deterministic.compare_controls(mode, baseline(mode), tmp_path)
    assert told.pop("") == [], "the round that dropped nothing"
    assert told.keys() == set(DROPS)
    for part, sign in deterministic.CONTROLS.items():
        missed = [line for line in told[part] if f": {sign}" in line]
        assert missed, f"{part} was dropped and nobody misses {sign}: {told[part]}"
