"""Workers' lines reach the console whole and unchanged, the last one too."""

from __future__ import annotations

import io
from pathlib import Path

from ezpz_elastic.console import Console


def test_lines_are_copied_whole_with_their_bytes_and_the_last_words_are_not_lost(tmp_path: Path):
    log, sink, console = tmp_path / "log", io.BytesIO(), Console()
    console.add(log, sink, "")
    console.copy()
    with log.open("wb", buffering=0) as file:
        file.write(b"one\ntw")
        console.copy()
        assert sink.getvalue() == b"one\n"
        file.write(b"o \xff\x00\nlast words")
        console.copy()
        assert sink.getvalue() == b"one\ntwo \xff\x00\n"
    console.drain()
    assert sink.getvalue() == b"one\ntwo \xff\x00\nlast words\n"
    console.close()


def test_a_prefix_goes_before_every_line(tmp_path: Path):
    log, sink, console = tmp_path / "log", io.BytesIO(), Console()
    log.write_bytes(b"a\nb\n")
    console.add(log, sink, "[3] ")
    console.close()
    assert sink.getvalue() == b"[3] a\n[3] b\n"


def test_a_line_without_end_does_not_grow_without_bound(tmp_path: Path):
    log, sink, console = tmp_path / "log", io.BytesIO(), Console()
    log.write_bytes(b"x" * (3 << 20))
    console.add(log, sink, "")
    console.copy()
    assert len(sink.getvalue()) >= 2 << 20
    console.close()
    assert sink.getvalue().rstrip(b"\n") == b"x" * (3 << 20)


def test_a_console_that_went_away_stops_nothing(tmp_path: Path):
    log, sink, console = tmp_path / "log", io.BytesIO(), Console()
    log.write_bytes(b"a\n")
    sink.close()
    console.add(log, sink, "")
    console.close()


def test_a_rank_that_says_its_connection_broke_is_heard_before_it_has_ended(tmp_path: Path):
    heard: list[int] = []
    log, sink, console = tmp_path / "log", io.BytesIO(), Console(lambda: heard.append(1))
    console.add(log, sink, "")
    log.write_bytes(b"step=1\nloss=2\n")
    console.copy()
    assert heard == []
    with log.open("ab", buffering=0) as file:
        file.write(b"RuntimeError: [../tcp/pair.cc:553] Connection closed by peer [127.0.0.3]:1")
    console.copy()
    assert heard
    console.close()
