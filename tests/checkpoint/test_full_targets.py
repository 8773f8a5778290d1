"""A file system that is nearly empty and yet full: what the seed's fourth finding was about, with a real ENOSPC."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from checkpoint import jobs
from checkpoint.conftest import Targets
from checkpoint.ranks import run_ranks
from checkpoint.training import Training, same, shards
from torch.distributed.checkpoint.api import CheckpointException

from ezpz_elastic.checkpoint import CheckpointManager, SaveFailed

WIDTH = 256  # a step takes about 0.8 MiB


def entries(step: Path) -> dict[str, tuple[int, ...]]:
    """Shard name -> the targets its manifest says it lies on."""
    files = json.loads((step / "manifest.json").read_text())["files"]
    return {entry["name"]: tuple(entry.get("osts", ())) for entry in files if entry["name"].endswith(".distcp")}


def trained() -> Training:
    training = Training(width=WIDTH)
    training.step()
    return training


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_where_plain_dcp_meets_a_full_target_ours_saves_without_a_restart(targets: Targets) -> None:
    targets.fill(0)
    targets.fill(1)
    with pytest.raises(CheckpointException, match="No space left on device"):
        dcp.save({"model": trained().model}, checkpoint_id=targets.root / "plain", no_dist=True)
    answers = run_ranks(2, jobs.full_targets, str(targets.root), targets.environ)
    for answer in answers:
        assert (answer["errors"], answer["restored"], answer["same"]) == ([], 2, True)
    step = targets.root / "ckpts/step-2"
    assert {targets.target_of(path) for path in shards(step)} == {2, 3}
    assert entries(step) == {path.name: (targets.target_of(path),) for path in shards(step)}
    for name in (".metadata", "manifest.json", ".complete"):
        assert targets.target_of(step / name) == 2


def test_a_target_that_fills_under_a_shard_sends_that_shard_elsewhere(
    targets: Targets, caplog: pytest.LogCaptureFixture
) -> None:
    targets.fill(1)
    targets.setup(claims={"1": 1 << 30})  # the client's numbers are old: it looks the emptiest
    training = trained()
    manager = CheckpointManager(targets.root / "ckpts")
    manager.save(1, training.state())
    assert "failed on OST (1,)" in caplog.text
    assert "No space left on device" in caplog.text
    ((name, osts),) = entries(targets.root / "ckpts/step-1").items()
    assert osts != (1,)
    assert osts == (targets.target_of(targets.root / "ckpts/step-1" / name),)
    caplog.clear()
    manager.save(2, training.state())  # it has just failed, so the next save does not try it
    assert "failed on OST" not in caplog.text
    fresh = Training(seed=1, width=WIDTH)
    assert manager.restore(fresh.state()) == 2
    assert same(fresh.tensors(), training.tensors())


def test_if_every_target_fills_every_rank_hears_which_rank_file_and_targets(targets: Targets) -> None:
    for index in range(4):
        targets.fill(index, leave=64 << 10)
    targets.setup(claims={str(index): 1 << 30 for index in range(4)})
    answers = run_ranks(2, jobs.full_targets, str(targets.root), targets.environ)
    assert answers[0]["errors"] == answers[1]["errors"]
    text = answers[0]["errors"][0]
    assert "[Errno 28] No space left on device" in text
    for rank in (0, 1):
        place = rf"{re.escape(str(targets.root))}/ckpts/step-1\.partial-\d+/__{rank}_0\.distcp"
        assert re.search(rf"rank {rank} writing {place} \(tried OST ", text)
    tried = text.split("(tried OST ")[1].split(")")[0].split(", ")
    assert sorted(tried) == ["0", "1", "2", "3"]
    assert "torch/distributed/checkpoint/filesystem.py" in text


def test_nothing_fits_is_told_with_a_table_before_the_first_byte(targets: Targets) -> None:
    training = trained()
    manager = CheckpointManager(targets.root / "ckpts")
    manager.save(1, training.state())
    for index in (0, 1, 2):
        targets.fill(index)
    targets.setup(inactive=[3])
    targets.calls.unlink()
    with pytest.raises(SaveFailed) as error:
        manager.save(2, training.state())
    text = str(error.value)
    assert "[Errno 28] No space left on device (needed" in text
    assert "OST 0 free 0 B" in text
    assert "OST 3 inactive" in text
    assert "no quota; keeping one step only would free 0 B" in text
    assert "setstripe" not in targets.calls.read_text()
    assert [path.name for path in (targets.root / "ckpts").glob("step-*")] == ["step-1"]


def test_a_quota_that_does_not_suffice_is_told_before_the_first_byte(targets: Targets) -> None:
    targets.setup(quota={"group": [900, 1000]})
    with pytest.raises(SaveFailed, match=r"\[Errno 122\] Disk quota exceeded \(needed .*group quota left 100.0 KiB"):
        CheckpointManager(targets.root / "ckpts").save(1, trained().state())


def test_a_shard_on_an_inactive_target_is_never_planned(targets: Targets) -> None:
    targets.setup(inactive=[1, 3])
    targets.fill(0)
    CheckpointManager(targets.root / "ckpts").save(1, trained().state())
    assert set(entries(targets.root / "ckpts/step-1").values()) == {(2,)}


def test_small_files_move_on_as_shards_do(targets: Targets) -> None:
    for index in (0, 1):
        targets.fill(index)
    targets.setup(claims={"0": 1 << 20, "1": 1 << 20})  # they look as if a small file would fit
    training = trained()
    manager = CheckpointManager(targets.root / "ckpts")
    manager.save(1, training.state())
    for name in (".metadata", "manifest.json", ".complete"):
        assert targets.target_of(targets.root / "ckpts/step-1" / name) == 2
    assert manager.restore(Training(width=WIDTH).state()) == 1


@pytest.mark.parametrize("refused", ["df", "setstripe", "quota", "project"])
def test_a_failing_lfs_never_fails_a_save(targets: Targets, caplog: pytest.LogCaptureFixture, refused: str) -> None:
    training = trained()
    manager = CheckpointManager(targets.root / "ckpts")
    manager.save(1, training.state())
    targets.setup(refuse=[refused])
    with caplog.at_level(logging.WARNING):
        manager.save(2, training.state())
    fresh = Training(seed=1, width=WIDTH)
    assert manager.restore(fresh.state()) == 2
    assert same(fresh.tensors(), training.tensors())
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 2


def test_striping_off_leaves_placement_to_the_file_system(targets: Targets) -> None:
    CheckpointManager(targets.root / "ckpts", striping="off").save(1, trained().state())
    assert not targets.calls.exists()
    assert {targets.target_of(path) for path in shards(targets.root / "ckpts/step-1")} == {0}
