"""Storage that has failed is written to until it takes that; what hangs there hangs alone."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ezpz_elastic.observe import writable
from ezpz_elastic.observe.writable import await_writable, place_of


def test_a_directory_that_takes_a_write_is_left_as_it_was(tmp_path: Path):
    told: list[str] = []
    assert await_writable(tmp_path, threading.Event(), told.append)
    assert told == []
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_is_refused_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writable, "PAUSES", (0.0,))
    away, told = tmp_path / "away", []

    def comes_back(why: str) -> None:
        told.append(why)
        away.mkdir(exist_ok=True)

    assert await_writable(away, threading.Event(), comes_back)
    assert len(told) == 1
    assert "No such file or directory" in told[0]


def test_a_write_that_hangs_ends_with_the_wait_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    over, begun = threading.Event(), tmp_path / "begun"
    os.mkfifo(begun)
    hanging = tmp_path / "hanging.py"
    hanging.write_text(f"open({str(begun)!r}, 'w').close()\nimport signal\nsignal.pause()\n")
    monkeypatch.setattr(writable, "__file__", str(hanging))
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(await_writable(tmp_path, over, answers.append)))
    waiting.start()
    begun.open().close()  # the writer runs
    assert answers == []
    over.set()
    waiting.join(30)
    assert answers == [False]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("", "otherwise"),
        ("ckpt/step-25.partial/__0_0.distcp", "ckpt"),
        ("ckpt/step-4/.metadata", "ckpt/step-4"),
        ("away/project/run/ckpt/step-25/x", "otherwise"),
    ],
)
def test_the_directory_asked_is_the_nearest_one_that_is_left(tmp_path: Path, path: str, place: str):
    (tmp_path / "ckpt/step-4").mkdir(parents=True)
    assert place_of(path and str(tmp_path / path), tmp_path / "otherwise") == tmp_path / place
