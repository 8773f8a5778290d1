"""Recovery must not cost what training is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios import realistic

SEED = 0


@pytest.fixture(scope="module")
def fault_free(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a fault under plain torchrun."""
    directory = tmp_path_factory.mktemp("realistic") / "baseline"
    realistic.run_baseline(directory, SEED)
    return directory


def test_a_small_gpt_learns_to_add(fault_free: Path):
    assert realistic.score(fault_free) >= realistic.THRESHOLD


def test_it_learns_as_much_under_faults(fault_free: Path, tmp_path: Path):
    realistic.run_target(tmp_path / "target", SEED)
    assert realistic.compare_run(fault_free, tmp_path / "target") == []


def test_a_run_that_learnt_too_little_or_met_no_fault_is_a_complaint(fault_free: Path, tmp_path: Path):
    (tmp_path / "score.txt").write_text("0.5\n")
    (tmp_path / "injections.json").write_text("[]")
    complaints = realistic.compare_run(fault_free, tmp_path)
    assert any("gets 0.5 of the problems right" in line for line in complaints)
    assert any("0 faults fell on the training" in line for line in complaints)
    (tmp_path / "score.txt").write_text("nan\n")
    assert any("gets nan of the problems right" in line for line in realistic.compare_run(fault_free, tmp_path))
    (tmp_path / "score.txt").unlink()
    assert realistic.compare_run(fault_free, tmp_path)
