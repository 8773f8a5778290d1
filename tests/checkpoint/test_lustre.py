"""``lfs`` that hangs, breaks or is not there."""

from __future__ import annotations

import errno
import logging
import sys
from pathlib import Path

import pytest

from ezpz_elastic.checkpoint import lustre
from ezpz_elastic.checkpoint.lustre import Lfs, LfsError
from ezpz_elastic.checkpoint.placer import placer_for
from ezpz_elastic.checkpoint.striping import Placement
from ezpz_elastic.errors import UsageError


def program(path: Path, body: str) -> Lfs:
    """An ``lfs`` that is a few lines of Python."""
    file = path / "lfs"
    file.write_text(f"#!{sys.executable} -SE\nimport sys\n{body}\n")
    file.chmod(0o755)
    return Lfs(str(file), deadline=0.5)


def test_a_call_that_does_not_answer_ends_at_its_deadline(tmp_path: Path) -> None:
    with pytest.raises(LfsError, match=r"lfs df: not within 0\.5 s") as error:
        program(tmp_path, "sys.stdin = None; import threading; threading.Event().wait()").df(tmp_path)
    assert error.value.errno == errno.ETIMEDOUT


def test_one_that_cannot_be_started_is_no_lustre(tmp_path: Path) -> None:
    with pytest.raises(LfsError, match=r"lfs df: it does not start") as error:
        Lfs(str(tmp_path / "lfs")).df(tmp_path)
    assert error.value.errno == errno.ENOENT


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("error on ioctl 0x4008669a for '/lus/x' (3): No space left on device", errno.ENOSPC),
        ("setstripe: Cannot send after transport endpoint shutdown", errno.ESHUTDOWN),
        ("setstripe: error: /lus/x: stripe already set, Invalid argument", errno.EINVAL),
        ("setstripe: something new (-5)", 5),
    ],
)
def test_a_refusal_keeps_the_errno_it_was_given_for(tmp_path: Path, said: str, code: int) -> None:
    lfs = program(tmp_path, f"print({said!r}, file=sys.stderr); sys.exit(1)")
    with pytest.raises(LfsError) as error:
        lfs.setstripe(tmp_path / "x", Placement((0,)))
    assert error.value.errno == code


def test_setstripe_names_its_targets_as_a_list(tmp_path: Path) -> None:
    lfs = program(tmp_path, f"open({str(tmp_path / 'said')!r}, 'w').write(' '.join(sys.argv[1:]))")
    lfs.setstripe(tmp_path / "x", Placement((4, 7), 1 << 24), "capacity")
    assert (tmp_path / "said").read_text() == f"setstripe -c 2 -o 4,7 -S 16777216 -p capacity {tmp_path / 'x'}"


def test_no_lfs_and_no_lustre_is_nothing_to_speak_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lustre.find(tmp_path) is None
    assert not lustre.on_lustre(tmp_path)
    assert not caplog.records


@pytest.mark.parametrize("there", [False, True], ids=["missing", "hanging"])
def test_lustre_without_a_working_lfs_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, there: bool
) -> None:
    if there:
        program(tmp_path, "import threading; threading.Event().wait()")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(lustre, "on_lustre", lambda path: True)
    assert lustre.find(tmp_path / "ckpts", deadline=0.3) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize("striping", ["wide", 0, -1, True, 1.5])
def test_striping_is_auto_off_or_a_count(tmp_path: Path, striping: object) -> None:
    with pytest.raises(UsageError, match="striping is"):
        placer_for(tmp_path, striping)  # type: ignore[arg-type]
