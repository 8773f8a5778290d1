"""``ezpz-elastic checkpoint``."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from checkpoint import holders
from checkpoint.ranks import context
from checkpoint.training import Training, flip_byte, same, shards

from ezpz_elastic.checkpoint import CheckpointManager, care
from ezpz_elastic.cli import main


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three whole steps."""
    training, manager = Training(), CheckpointManager(tmp_path / "ckpts", keep_last=3)
    for step in (1, 2, 3):
        training.step()
        manager.save(step, training.state())
    manager.close()
    return tmp_path / "ckpts"


def run(*words: object) -> int:
    """The command line's exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", *map(str, words)])
    return int(ended.value.code or 0)


def test_ls_lists_steps_newest_first_and_why_one_is_broken(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards(directory / "step-2")[0].unlink()
    assert run("ls", directory) == 0
    out = capsys.readouterr().out
    assert out.index("step-3") < out.index("step-2") < out.index("step-1")
    assert f"step-2: {directory}/step-2/__0_0.distcp: missing" in out
    assert out.count("sizes match") == 2


def test_verify_finds_one_flipped_bit_that_ls_cannot_see(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", directory) == 0
    assert capsys.readouterr().out.count("verified") == 3
    flip_byte(shards(directory / "step-1")[0], 20_000)
    assert run("ls", directory) == 0
    assert run("verify", directory) == 1
    assert "were written with" in capsys.readouterr().out


def test_prune_keeps_what_it_is_told_to(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prune", directory, "--keep-last", 1, "--dry-run") == 0
    assert "step-1: would go\nstep-2: would go" in capsys.readouterr().out
    assert (directory / "step-1").exists()
    assert run("prune", directory, "--keep-last", 1, "--keep-every", 2) == 0
    assert sorted(path.name for path in directory.glob("step-*")) == ["step-2", "step-3"]
    assert run("prune", directory, "--keep-last", 5) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_prune_refuses_while_a_job_writes(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, theirs = context.Pipe()
    process = context.Process(target=holders.hold, args=(theirs, str(directory), {"TORCHELASTIC_RUN_ID": "alpha"}))
    process.start()
    theirs.close()  # else its death would not end the wait for its word
    assert mine.recv() == "held"
    assert run("prune", directory, "--keep-last", 1) == 2
    told = capsys.readouterr().err
    assert "is being written by another job (run alpha" in told
    assert "hint: wait until that job has ended" in told
    assert told.count("\n") == 1
    assert (directory / "step-1").exists()
    mine.send("end")
    process.join()


def test_repair_puts_right_what_needs_no_guess(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "step-3/.complete").unlink()
    flip_byte(shards(directory / "step-2")[0], 20_000)
    (directory / "step-4.partial-17").mkdir()
    (directory / "step-1").rename(directory / "step-1.corrupt")
    assert run("repair", directory) == 0
    out = capsys.readouterr().out
    assert "step-4.partial-17: cleared away" in out
    assert "step-3: was all there but for .complete" in out
    assert "step-2: quarantined as step-2.corrupt" in out
    assert "step-1.corrupt: verifies again, back as step-1" in out
    assert sorted(path.name for path in directory.glob("step-*")) == ["step-1", "step-2.corrupt", "step-3"]
    assert run("verify", directory) == 0
    fresh = Training(seed=1)
    assert CheckpointManager(directory).restore(fresh.state()) == 3
    assert not same(fresh.tensors(), Training(seed=1).tensors())


def test_a_step_set_aside_for_its_missing_marker_is_restored_after_repair(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "step-3/.complete").unlink()
    with closing(CheckpointManager(directory)) as manager:
        assert manager.restore(Training(seed=1).state()) == 2
    assert (directory / "step-3.corrupt").exists()
    assert run("repair", directory) == 0
    out = capsys.readouterr().out
    assert "step-3.corrupt: was all there but for .complete, which is written now, back as step-3" in out
    assert run("verify", directory) == 0
    assert CheckpointManager(directory).restore(Training(seed=1).state()) == 3


def test_a_step_whose_manifest_has_another_number_stays_where_it_is(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "step-3").rename(directory / "step-7")
    assert run("repair", directory) == 0
    assert "is named step 7 and holds step 3" in capsys.readouterr().out
    assert run("repair", directory) == 0
    assert "nothing to repair" in capsys.readouterr().out
    (directory / "step-7.corrupt/.complete").unlink()  # nor does a missing marker make it right
    (directory / "step-7.corrupt").rename(directory / "step-7")
    assert run("repair", directory) == 0
    assert sorted(path.name for path in directory.glob("step-*")) == ["step-1", "step-2", "step-7.corrupt"]


class Meanwhile:
    """Lets ``happen`` happen once, when something called ``name`` is about to be looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, happen: Callable[[], object]) -> None:
        self.happened = False
        real = Path.stat

        def stat(path: Path, **kwargs: Any) -> os.stat_result:
            if path.name == name and not self.happened:
                self.happened = True
                happen()
            return real(path, **kwargs)

        monkeypatch.setattr(Path, "stat", stat)


@pytest.mark.parametrize("sums", [False, True], ids=["ls", "verify"])
def test_what_a_running_job_takes_away_meanwhile_is_not_listed_and_not_called_broken(
    directory: Path, monkeypatch: pytest.MonkeyPatch, sums: bool
) -> None:
    (shard,) = shards(directory / "step-1")
    meanwhile = Meanwhile(monkeypatch, shard.name, lambda: shutil.rmtree(directory / "step-3"))
    rows = care.survey(directory, sums=sums)
    assert meanwhile.happened
    assert [row.name for row in rows] == ["step-2", "step-1"]
    assert {row.state for row in rows} == {"verified" if sums else "sizes match"}


def test_a_step_that_a_running_job_saves_again_meanwhile_is_looked_at_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_again() -> None:
        training = Training(width=32)
        with closing(CheckpointManager(directory, keep_last=3)) as manager:
            manager.save(3, training.state())

    (shard,) = shards(directory / "step-3")
    meanwhile = Meanwhile(monkeypatch, shard.name, save_again)
    rows = care.survey(directory)
    assert meanwhile.happened
    assert [(row.name, row.state, row.why) for row in rows if row.name == "step-3"] == [("step-3", "sizes match", "")]


@pytest.mark.parametrize("gone", ["step-9.deleting-5", "step-9.deleting-5/.metadata.tmp"])
def test_a_leftover_of_which_something_vanishes_meanwhile_does_not_end_the_listing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    leftover = directory / "step-9.deleting-5"
    leftover.mkdir()
    for name in (".metadata.tmp", "__0_0.distcp"):
        (leftover / name).write_bytes(bytes(10))
    victim = directory / gone
    take = functools.partial(shutil.rmtree, victim) if victim.is_dir() else victim.unlink
    meanwhile = Meanwhile(monkeypatch, ".metadata.tmp", take)
    rows = care.survey(directory)
    assert meanwhile.happened
    told = [(row.name, row.bytes) for row in rows if row.state == "leftover"]
    assert told == ([] if victim == leftover else [("step-9.deleting-5", 10)])


def test_repair_says_when_nothing_is_usable(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2, 3):
        (directory / f"step-{step}/.metadata").unlink()
    assert run("repair", directory) == 1
    assert "no step is usable" in capsys.readouterr().out


def test_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("interval", "--mtbf", "1h", "--save", "24s") == 0
    assert "save every 6.7 min of work (Daly); 6.9 min by Young's formula" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "/no/such/place"),
        ("prune", ".", "--keep-last", "0"),
        ("interval", "--mtbf", "x", "--save", "1"),
        ("mend",),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    assert capsys.readouterr().err.count("\n") == 1
