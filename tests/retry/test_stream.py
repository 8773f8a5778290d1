"""Consoles that are slow, stuck or gone, and a disk that takes no log."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from ezpz_elastic.retry import stream
from ezpz_elastic.retry.steps import StepEye, newest_checkpoint
from ezpz_elastic.retry.stream import AttemptLog, ConsoleSink


def test_a_slow_console_gets_every_byte():
    read, write = os.pipe()
    sink = ConsoleSink(write)
    taken = bytearray()

    def drain() -> None:
        while len(taken) < 16 << 20:
            taken.extend(os.read(read, 65536))

    reader = threading.Thread(target=drain)
    reader.start()
    pieces = [bytes([number % 256]) * (1 << 20) for number in range(16)]
    for piece in pieces:
        sink.write(piece)
    sink.flush()
    reader.join(60)
    assert bytes(taken) == b"".join(pieces)


def test_a_console_that_takes_nothing_is_waited_for_once_and_then_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream, "PATIENCE", 0.2)
    read, write = os.pipe()
    sink = ConsoleSink(write)
    for _ in range(40):
        sink.write(b"x" * (1 << 20))  # hangs here if it waits for ever
    sink.flush()
    assert os.read(read, 10) == b"x" * 10


def test_a_console_that_goes_away_is_forgotten():
    read, write = os.pipe()
    sink = ConsoleSink(write)
    os.close(read)
    for _ in range(40):
        sink.write(b"x" * (1 << 20))
    sink.flush()


def test_a_console_that_somebody_made_non_blocking_gets_every_byte_too():
    read, write = os.pipe()
    os.set_blocking(write, False)
    sink = ConsoleSink(write)
    sink.write(b"y" * (1 << 20))
    taken = 0
    while taken < 1 << 20:
        taken += len(os.read(read, 65536))


def test_what_the_disk_did_not_take_is_judged_from_memory(tmp_path: Path):
    path = tmp_path / "attempt-1.log"
    path.symlink_to("/dev/full")
    log = AttemptLog(path)
    log.write(b"step=3 \n")
    log.write(b"node7: shepherd died from signal 9\n")
    log.close()
    assert log.lost == len(b"step=3 \nnode7: shepherd died from signal 9\n")
    with log.readable() as readable:
        assert readable.read_bytes() == b"step=3 \nnode7: shepherd died from signal 9\n"
    assert not readable.exists(), "it was a temporary file"


def test_what_the_file_system_refuses_only_when_the_log_is_closed_is_judged_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = AttemptLog(tmp_path / "attempt-1.log")
    log.write(b"node7: shepherd died from signal 9\n")
    (tmp_path / "attempt-1.log").write_bytes(b"")  # what had been taken was not kept
    close = os.close

    def refuse(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", refuse)
        log.close()
    with log.readable() as readable:
        assert readable.read_bytes() == b"node7: shepherd died from signal 9\n"


def test_memory_keeps_the_end_of_a_long_log_and_not_all_of_it(tmp_path: Path):
    log = AttemptLog(tmp_path / "no" / "such" / "directory.log")
    for number in range(1000):
        log.write(b"%6d" % number + b"." * 65530)
    log.write(b"the end\n")
    with log.readable() as readable:
        kept = readable.read_bytes()
    assert kept.endswith(b"the end\n")
    assert len(kept) < 5 << 20


def test_steps_are_read_from_whole_lines_however_they_are_cut():
    text = b"resumed from step 50\nstep=51 loss=2\nstep=52\nsaved checkpoint: /x/step-75\nsaved checkpoint: y step-100"
    for size in (1, 3, 7, len(text)):
        eye = StepEye()
        for at in range(0, len(text), size):
            eye.see(text[at : at + size])
        eye.finish()
        assert (eye.first, eye.saved) == (51, 100), f"in pieces of {size}"


def test_only_a_step_that_is_complete_is_a_checkpoint(tmp_path: Path):
    for name in ("step-10", "step-20", "step-30.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-10" / ".complete").touch()
    assert newest_checkpoint(tmp_path) == 10
    assert newest_checkpoint(tmp_path / "none") is None
    assert newest_checkpoint(None) is None
