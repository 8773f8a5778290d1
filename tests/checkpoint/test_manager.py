"""Saving and restoring in one process."""

from __future__ import annotations

import errno
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
import xxhash
from checkpoint.training import Training, flip_byte, same, shards

from ezpz_elastic.checkpoint import CheckpointManager, NoUsableCheckpoint, SaveFailed, Superseded
from ezpz_elastic.checkpoint import manager as manager_module
from ezpz_elastic.errors import UsageError
from ezpz_elastic.observe import progress

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def saved_run(directory: Path, steps: int = 3, keep_last: int = 3) -> tuple[CheckpointManager, dict[int, dict]]:
    """A run that saved every step, and what its tensors were at each."""
    training, manager, history = Training(), CheckpointManager(directory, keep_last=keep_last), {}
    for step in range(1, steps + 1):
        training.step()
        manager.save(step, training.state(), meta={"tokens": step * 100})
        history[step] = training.tensors()
    manager.close()
    return manager, history


def test_a_fresh_directory_restores_nothing_and_changes_nothing(tmp_path: Path) -> None:
    training = Training()
    before = training.tensors()
    assert CheckpointManager(tmp_path / "none").restore(training.state()) is None
    assert same(before, training.tensors())
    assert not (tmp_path / "none").exists()


def test_everything_comes_back_into_a_run_that_has_made_no_step(tmp_path: Path) -> None:
    _, history = saved_run(tmp_path)
    fresh = Training(seed=1)
    fresh.plain = {}
    state = fresh.state() | {"note": None, "loss": None}
    random = torch.get_rng_state()
    assert CheckpointManager(tmp_path).restore(state) == 3
    assert same(history[3], fresh.tensors())
    assert fresh.scheduler.last_epoch == 3
    assert fresh.scheduler.milestones == {3: 1, 5: 1}
    assert state["data"] == {"position": 12, "seen": {}, 7: ("a", 2.5)}
    assert (state["note"], state["loss"]) == ("text", 1.25)
    assert state["rng"].shape == random.shape


def test_a_restored_run_continues_exactly_like_the_one_that_was_not_interrupted(tmp_path: Path) -> None:
    training, manager = Training(), CheckpointManager(tmp_path)
    training.step()
    manager.save(1, training.state())
    training.step()
    resumed = Training(seed=5)
    state = resumed.state()
    manager.restore(state)
    torch.set_rng_state(state["rng"])
    resumed.step()
    assert same(training.tensors(), resumed.tensors())


def test_keep_last_and_keep_every_decide_what_stays(tmp_path: Path) -> None:
    training = Training()
    manager = CheckpointManager(tmp_path, keep_last=2, keep_every=4)
    for step in range(1, 8):
        manager.save(step, training.state())
    manager.close()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-4", "step-6", "step-7"]
    assert manager.latest() == tmp_path / "step-7"


@pytest.mark.parametrize(
    ("allowed", "asked", "read_only", "left"),
    [
        (1, "prune_checkpoints", False, [6]),
        (2, "clean_shm,prune_checkpoints", False, [5, 6]),
        (None, "prune_checkpoints", False, [2, 4, 5, 6]),
        (1, "", False, [2, 4, 5, 6]),
        (1, "prune_checkpoints", True, [2, 4, 5, 6]),
    ],
)
def test_old_steps_go_where_a_quota_is_used_up_and_that_is_allowed(
    tmp_path: Path, allowed: int | None, asked: str, read_only: bool, left: list[int]
) -> None:
    training = Training()
    manager = CheckpointManager(tmp_path, keep_last=2, keep_every=2)
    for step in range(1, 7):
        manager.save(step, training.state())
    manager.close()
    environ = {"EZPZ_CHORES": asked}
    following = CheckpointManager(tmp_path, prune_on_quota=allowed, read_only=read_only, environ=environ)
    assert following.restore(training.state()) == 6
    following.close()
    assert sorted(int(path.name[5:]) for path in tmp_path.glob("step-*")) == left


def test_a_life_that_is_over_makes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(tmp_path)
    current = [True]
    environ = {"EZPZ_CHORES": "prune_checkpoints"}
    manager = CheckpointManager(tmp_path, prune_on_quota=1, fence=lambda: current[0], environ=environ)

    loaded = manager_module.load_step

    def overtaken(*arguments: object) -> None:
        loaded(*arguments)
        current[0] = False

    monkeypatch.setattr(manager_module, "load_step", overtaken)
    assert manager.restore(Training(seed=1).state()) == 3
    manager.close()
    assert len(list(tmp_path.glob("step-*"))) == 3


def test_a_quota_costs_no_step_before_another_one_is_restored(tmp_path: Path) -> None:
    _, history = saved_run(tmp_path)
    shards(tmp_path / "step-3")[0].unlink()
    training = Training(seed=1)
    manager = CheckpointManager(tmp_path, prune_on_quota=1, environ={"EZPZ_CHORES": "prune_checkpoints"})
    assert manager.restore(training.state()) == 2
    manager.close()
    assert same(history[2], training.tensors())
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-2", "step-3.corrupt"]


def test_the_manifest_names_every_file_with_size_and_sum(tmp_path: Path) -> None:
    saved_run(tmp_path)
    manifest = json.loads((tmp_path / "step-3/manifest.json").read_text())
    on_disk = {path.name for path in (tmp_path / "step-3").iterdir()} - {"manifest.json", ".complete"}
    assert {entry["name"] for entry in manifest["files"]} == on_disk
    for entry in manifest["files"]:
        body = (tmp_path / "step-3" / entry["name"]).read_bytes()
        assert entry["size"] == len(body)
        if entry["name"].endswith(".distcp"):
            length = int.from_bytes(body[-16:-8], "little")
            summed, body = body[: -24 - length], body[-24 - length : -24]
            table = msgspec.msgpack.decode(body)
            assert [item[0] for item in table] == [0, *itertools.accumulate(item[1] for item in table)][:-1]
            assert table[-1][0] + table[-1][1] == len(summed)
            for offset, size, digest in table:
                assert xxhash.xxh3_64_intdigest(summed[offset : offset + size]) == digest
        assert entry["xxh3"] == xxhash.xxh3_64_hexdigest(body)
    assert (manifest["step"], manifest["world_size"], manifest["meta"]) == (3, 1, {"tokens": 300})


def delete_metadata(step: Path) -> None:
    (step / ".metadata").unlink()


def delete_shard(step: Path) -> None:
    shards(step)[0].unlink()


def truncate_shard(step: Path) -> None:
    with shards(step)[0].open("r+b") as file:
        file.truncate(shards(step)[0].stat().st_size - 100)


def flip_in_the_middle(step: Path) -> None:
    flip_byte(shards(step)[0], shards(step)[0].stat().st_size // 2)


def flip_in_the_table_of_sums(step: Path) -> None:
    flip_byte(shards(step)[0], shards(step)[0].stat().st_size - 40)


def flip_in_metadata(step: Path) -> None:
    flip_byte(step / ".metadata", 100)


def empty_manifest(step: Path) -> None:
    (step / "manifest.json").write_bytes(b"")


def delete_manifest(step: Path) -> None:
    (step / "manifest.json").unlink()


def other_manifest(step: Path) -> None:
    text = (step / "manifest.json").read_text()
    (step / "manifest.json").write_text(text.replace('"world_size": 1', '"world_size": 9'))


def delete_marker(step: Path) -> None:
    (step / ".complete").unlink()


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (delete_metadata, ".metadata: missing"),
    (delete_shard, "__0_0.distcp: missing"),
    (truncate_shard, "was written with"),
    (flip_in_the_middle, "were written with"),
    (flip_in_the_table_of_sums, "table of sums has xxh3"),
    (flip_in_metadata, "was written with"),
    (empty_manifest, "manifest.json: empty"),
    (delete_manifest, "manifest.json: missing"),
    (other_manifest, ".complete says"),
    (delete_marker, "no .complete"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGE, ids=[damage.__name__ for damage, _ in DAMAGE])
def test_a_damaged_step_is_set_aside_with_its_reason_and_the_one_before_is_used(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    manager, history = saved_run(tmp_path)
    damage(tmp_path / "step-3")
    fresh = Training(seed=2)
    assert manager.restore(fresh.state()) == 2
    assert same(history[2], fresh.tensors())
    assert reason in (tmp_path / "step-3.corrupt/reason.txt").read_text()
    assert not (tmp_path / "step-3").exists()


@pytest.mark.parametrize("again", [False, True])
def test_if_no_step_verifies_the_error_lists_them_all_and_nothing_is_deleted(tmp_path: Path, again: bool) -> None:
    manager, _ = saved_run(tmp_path)
    files = sum(1 for path in tmp_path.rglob("*.distcp"))
    for step in (1, 2, 3):
        flip_in_the_middle(tmp_path / f"step-{step}")
    with pytest.raises(NoUsableCheckpoint) as error:
        manager.restore(Training().state())
    if again:  # the restart must not take an empty-looking directory for a fresh start
        with pytest.raises(NoUsableCheckpoint) as error:
            CheckpointManager(tmp_path).restore(Training().state())
    text = str(error.value)
    assert all(f"step-{step}.corrupt" in text for step in (1, 2, 3))
    assert sum(1 for path in tmp_path.rglob("*.distcp")) == files


def test_plain_dcp_reads_our_directory(tmp_path: Path) -> None:
    _, history = saved_run(tmp_path)
    other = Training(seed=3)
    other.step()
    state = {"model": other.model, "optim": other.optimizer, "loss": 0.0}
    dcp.load(state, checkpoint_id=tmp_path / "step-3")
    assert same(history[3], other.tensors())
    assert state["loss"] == 1.25


def test_we_read_a_plain_dcp_directory_and_say_that_it_is_unverified(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    training.step()
    dcp.save({"model": training.model, "optim": training.optimizer, "n": 5}, checkpoint_id=tmp_path / "step-8")
    fresh = Training(seed=4)
    state = {"model": fresh.model, "optim": fresh.optimizer, "n": 0}
    assert CheckpointManager(tmp_path).restore(state) == 8
    assert same(training.tensors(), fresh.tensors())
    assert state["n"] == 5
    assert "without verification" in caplog.text


def test_a_model_that_does_not_fit_is_the_callers_mistake_and_not_a_damaged_step(tmp_path: Path) -> None:
    manager, _ = saved_run(tmp_path)
    other = Training(width=32)
    before = other.tensors()
    with pytest.raises(UsageError, match=r"model\.0\.weight is \(32, 32\) here and \(64, 64\) there"):
        manager.restore(other.state())
    assert same(before, other.tensors())
    assert (tmp_path / "step-3").exists()


def test_a_name_that_was_never_saved_is_the_callers_mistake(tmp_path: Path) -> None:
    manager, _ = saved_run(tmp_path)
    with pytest.raises(UsageError, match="nothing saved under 'extra'"):
        manager.restore(Training().state() | {"extra": 3})


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda path: CheckpointManager(path, keep_last=0), "keep_last is 0"),
        (lambda path: CheckpointManager(path, prune_on_quota=0), "prune_on_quota is 0"),
        (lambda path: CheckpointManager(path).save(-1, {"n": 1}), "step is -1"),
        (lambda path: CheckpointManager(path).save(1, {"n": 1}, meta={"x": object()}), "meta cannot be written"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(tmp_path: Path, call: Callable[[Path], object], complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        call(tmp_path)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("look_first", "seen"),
    [(False, "torch/distributed/checkpoint/filesystem.py"), (True, "ezpz_elastic/checkpoint/preflight.py")],
)
def test_a_full_disk_raises_with_the_frame_and_leaves_the_step_before(
    small_disk: Callable[[str, int], Path], look_first: bool, seen: str
) -> None:
    disk = small_disk("disk", 1 << 20)
    training, manager = Training(width=128), CheckpointManager(disk / "ckpts", preflight=look_first)
    training.step()
    manager.save(1, training.state())
    before = training.tensors()
    (disk / "filler").write_bytes(bytes(700_000))
    with pytest.raises(SaveFailed) as error:
        manager.save(2, training.state())
    text = str(error.value)
    assert "[Errno 28] No space left on device" in text
    assert seen in text
    assert error.value.errno == errno.ENOSPC
    assert sorted(path.name for path in (disk / "ckpts").glob("step-*")) == ["step-1"]
    resumed = Training(width=128, seed=9)
    assert manager.restore(resumed.state()) == 1
    assert same(before, resumed.tensors())
    (disk / "filler").unlink()
    manager.save(2, training.state())
    assert manager.latest() == disk / "ckpts/step-2"


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    training, manager = Training(), CheckpointManager(tmp_path)
    manager.save(1, training.state())
    training.step()
    manager.save(1, training.state())
    manager.close()
    fresh = Training(seed=1)
    assert manager.restore(fresh.state()) == 1
    assert same(training.tensors(), fresh.tensors())
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-1"]


def test_a_save_of_a_superseded_round_does_not_commit(tmp_path: Path) -> None:
    current = True
    training = Training()
    manager = CheckpointManager(tmp_path, fence=lambda: current)
    manager.save(1, training.state())
    current = False
    with pytest.raises(Superseded):
        manager.save(2, training.state())
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-1"]


def test_facts_reach_the_file_the_agent_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EZPZ_EVENTS_FILE", str(tmp_path / "events"))
    manager, _ = saved_run(tmp_path / "ckpts")
    flip_in_the_middle(tmp_path / "ckpts/step-3")
    manager.restore(Training().state())
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [(event["event"], event.get("step", event.get("name"))) for event in events] == [
        ("checkpoint_saved", 1),
        ("checkpoint_saved", 2),
        ("checkpoint_saved", 3),
        ("checkpoint_quarantined", 3),
        ("checkpoint_restored", 2),
        ("span", "load"),
    ]


def test_meta_comes_back(tmp_path: Path) -> None:
    manager, _ = saved_run(tmp_path)
    assert manager.meta() == {"tokens": 300}
    assert manager.meta(2) == {"tokens": 200}
    with pytest.raises(UsageError, match="no step 9"):
        manager.meta(9)


@pytest.mark.parametrize("damage", [truncate_shard, delete_shard, flip_in_metadata], ids=lambda damage: damage.__name__)
def test_a_damaged_plain_dcp_directory_falls_back_too(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    _, history = saved_run(tmp_path)
    training = Training()
    dcp.save({"model": training.model}, checkpoint_id=tmp_path / "step-8")
    if damage is flip_in_metadata:
        (tmp_path / "step-8/.metadata").write_bytes(b"\x80\x04no pickle")
    else:
        damage(tmp_path / "step-8")
    fresh = Training(seed=4)
    assert CheckpointManager(tmp_path).restore({"model": fresh.model}) == 3
    assert torch.equal(fresh.model[0].weight, history[3]["model.0.weight"])
    assert (tmp_path / "step-8.corrupt/reason.txt").exists()


def test_a_plain_value_that_cannot_be_decoded_is_damage_too(tmp_path: Path) -> None:
    _, history = saved_run(tmp_path)
    training = Training()
    dcp.save({"loss": 0.5, "model": training.model}, checkpoint_id=tmp_path / "step-8")
    (shard,) = shards(tmp_path / "step-8")
    body = shard.read_bytes()
    flip_byte(shard, body.rindex(b"PK\x03\x04", 0, body.index(b"archive/data.pkl")))
    fresh = Training(seed=4)
    assert CheckpointManager(tmp_path).restore({"model": fresh.model, "loss": None}) == 3
    assert torch.equal(fresh.model[0].weight, history[3]["model.0.weight"])
    assert "loss cannot be decoded" in (tmp_path / "step-8.corrupt/reason.txt").read_text()


def test_a_reader_beside_a_writing_job_disturbs_nothing(tmp_path: Path) -> None:
    writer = CheckpointManager(tmp_path)
    training = Training()
    for step in (1, 2):
        training.step()
        writer.save(step, training.state())
    flip_in_the_middle(tmp_path / "step-2")
    before = sorted(path.name for path in tmp_path.iterdir())
    reader = CheckpointManager(tmp_path, read_only=True)
    assert reader.restore(Training(seed=1).state()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with pytest.raises(UsageError, match="read-only"):
        reader.save(3, training.state())
    flip_in_the_middle(tmp_path / "step-1")
    with pytest.raises(NoUsableCheckpoint, match=r"step-2: .*step-1: "):
        reader.restore(Training(seed=1).state())


def test_a_value_that_cannot_be_pickled_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(1, {"n": 1})
    with pytest.raises(SaveFailed, match="cannot pickle"):
        manager.save(2, {"n": (value for value in ())})
    manager.save_async(3, {"n": (value for value in ())})
    with pytest.raises(SaveFailed, match="cannot pickle"):
        manager.wait()
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-1"]


def test_a_program_without_this_package_reads_and_converts_our_directory(tmp_path: Path) -> None:
    saved_run(tmp_path)
    code = (
        "import sys; sys.modules['ezpz_elastic'] = None\n"
        "import torch\n"
        "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save\n"
        f"dcp_to_torch_save({str(tmp_path / 'step-3')!r}, {str(tmp_path / 'out.pt')!r})\n"
        f"found = torch.load({str(tmp_path / 'out.pt')!r}, weights_only=False)\n"
        "print(found['loss'], found['data']['position'], tuple(found['model']['0.weight'].shape))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout.strip() == "1.25 12 (64, 64)", done.stderr


def test_who_saves_or_restores_tells_its_agent_that_it_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = tmp_path / "progress"
    progress.create(counters)
    monkeypatch.setenv(progress.PROGRESS_FILE, str(counters))
    monkeypatch.setattr(progress, "_looked", False)
    monkeypatch.setattr(progress, "_view", None)
    seen: list[bool] = []

    class Looking:
        def state_dict(self) -> dict[str, int]:
            seen.append(progress.read(counters).busy)
            return {"x": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            seen.append(progress.read(counters).busy)

    manager = CheckpointManager(tmp_path / "ckpt")
    manager.save(1, {"it": Looking()})
    manager.save_async(2, {"it": Looking()}).result()
    assert manager.restore({"it": Looking()}) == 2
    manager.close()
    assert len(seen) >= 3
    assert all(seen)
    assert not progress.read(counters).busy
