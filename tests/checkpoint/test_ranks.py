"""Several ranks, one directory: one answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint import jobs
from checkpoint.ranks import run_ranks
from checkpoint.training import Training, flip_byte, shards


def test_a_shard_that_only_one_rank_reads_and_finds_damaged_moves_every_rank_to_the_step_before(
    tmp_path: Path,
) -> None:
    run_ranks(2, jobs.save_two, str(tmp_path))
    flip_byte(shards(tmp_path / "step-2")[1], 50_000)
    assert run_ranks(2, jobs.restore, str(tmp_path)) == [(1, 1, True), (1, 1, True)]
    reason = (tmp_path / "step-2.corrupt/reason.txt").read_text()
    assert "__1_0.distcp" in reason
    assert "found by rank 1" in reason


def test_a_step_is_restored_on_another_number_of_ranks(tmp_path: Path) -> None:
    run_ranks(2, jobs.save_two, str(tmp_path))
    assert run_ranks(3, jobs.restore, str(tmp_path)) == [(2, 2, True)] * 3
    assert run_ranks(1, jobs.restore, str(tmp_path)) == [(2, 2, True)]


def test_one_ranks_full_disk_is_the_same_error_on_every_rank(
    tmp_path: Path, small_disk: Callable[[str, int], Path]
) -> None:
    full = small_disk("full", 64 * 1024)
    answers = run_ranks(2, jobs.save_until_full, str(tmp_path / "ckpts"), str(full))
    texts = {text for text, _ in answers}
    assert len(texts) == 1, texts
    (text,) = texts
    assert "[Errno 28] No space left on device" in text
    assert "rank 1 writing" in text
    assert "rank 0" not in text
    assert "torch/distributed/checkpoint/filesystem.py" in text
    assert [names for _, names in answers] == [["step-1"], ["step-1"]]


@pytest.mark.parametrize("beside", [False, True], ids=["in front", "beside"])
def test_every_rank_hears_of_a_failure_that_cannot_even_be_tidied_up(tmp_path: Path, beside: bool) -> None:
    answers = run_ranks(2, jobs.become_read_only, str(tmp_path), beside)
    assert all(answer["refused"] for answer in answers)
    assert answers[0]["text"] == answers[1]["text"]
    assert "rank 1 writing" in answers[0]["text"]
    assert "[Errno 30] Read-only file system" in answers[0]["text"]
    assert "rank 0" not in answers[0]["text"]
    assert run_ranks(2, jobs.restore, str(tmp_path)) == [(1, 1, True), (1, 1, True)]
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-1"]


def test_replicated_state_is_written_once_and_comes_back_on_every_rank(tmp_path: Path) -> None:
    assert run_ranks(2, jobs.replicated, str(tmp_path)) == [True, True]
    training = Training(width=256)
    training.step()
    state = sum(tensor.numel() * tensor.element_size() for tensor in training.tensors().values())
    assert len(shards(tmp_path / "step-5")) == 2
    assert sum(path.stat().st_size for path in shards(tmp_path / "step-5")) < 1.2 * state


@pytest.mark.parametrize("point", [1])
def test_a_rank_killed_in_a_save_leaves_the_step_before(tmp_path: Path, point: int) -> None:
    heard, dead = run_ranks(2, jobs.die_in_a_save, str(tmp_path), point, killed=frozenset({1}))
    assert dead is None
    assert heard != "saved"
    assert list(tmp_path.glob("step-2.partial-*"))
    assert run_ranks(2, jobs.restore, str(tmp_path)) == [(1, 1, True), (1, 1, True)]
    assert not list(tmp_path.glob("step-2.*"))


def test_what_differs_from_rank_to_rank_comes_back_to_its_rank_and_in_turn_to_new_ones(tmp_path: Path) -> None:
    run_ranks(2, jobs.save_own, str(tmp_path))

    def own(rank: int) -> tuple[object, list[float]]:
        return {rank: rank * 10, "seen": {}}, [float(rank)] * 4

    assert run_ranks(2, jobs.restore_own, str(tmp_path)) == [own(0), own(1)]
    assert run_ranks(3, jobs.restore_own, str(tmp_path)) == [own(0), own(1), own(0)]


def test_a_directory_that_only_rank_0_sees_is_the_callers_mistake_and_no_damage(tmp_path: Path) -> None:
    run_ranks(2, jobs.save_two, str(tmp_path))
    told = run_ranks(2, jobs.restore_unseen, str(tmp_path))
    assert told[0] == told[1]
    assert "rank 1 on" in told[0]
    assert "does not see" in told[0]
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-1", "step-2"]
