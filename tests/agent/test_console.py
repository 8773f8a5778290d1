"""Workers' lines reach the console whole and unchanged, the last one too."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from ezpz_elastic.console import Console
from ezpz_elastic.ledger import say


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


def test_a_program_that_prints_such_words_all_the_time_has_ports_asked_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    heard: list[int] = []
    log, sink, console = tmp_path / "log", io.BytesIO(), Console(lambda: heard.append(1))
    console.add(log, sink, "")
    monkeypatch.setattr("ezpz_elastic.console.ECHO_PAUSE", 1000.0)
    with log.open("ab", buffering=0) as file:
        for _ in range(10):
            file.write(b"retrying: Connection reset by peer\n")
            console.copy()
        assert heard == [1]
        monkeypatch.setattr("ezpz_elastic.console.ECHO_PAUSE", 0.0)
        console._echo_at = 0.0
        console.copy()
        assert heard == [1, 1], "what was heard meanwhile is told, later"
    console.close()


def test_a_console_that_nobody_reads_holds_nobody_up_and_gets_every_line_once_it_reads_again(tmp_path: Path):
    log, (read, write), console = tmp_path / "log", os.pipe(), Console()
    text = b"".join(b"step=%d %s\n" % (step, b"x" * 1000) for step in range(500))
    log.write_bytes(text)
    with open(write, "wb", buffering=0) as sink, open(read, "rb") as reader:  # noqa: PTH123
        console.add(log, sink, "")
        console.copy()
        console.drain()  # returns although the pipe holds an eighth of it at most
        (waiting,) = struct.unpack("i", fcntl.ioctl(read, termios.FIONREAD, struct.pack("i", 0)))
        assert waiting < len(text)
        second = tmp_path / "second"
        second.write_bytes(b"next round\n")
        console.add(second, sink, "")
        assert reader.read(len(text) + 11) == text + b"next round\n"
        console.close()


def test_a_line_of_ours_is_left_out_where_nobody_reads_the_console(monkeypatch: pytest.MonkeyPatch):
    read, write = os.pipe()
    os.set_blocking(write, False)
    with open(read, "rb") as reader, open(write, "w") as full:  # noqa: PTH123
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, b"x" * 4096)
        os.set_blocking(write, True)
        monkeypatch.setattr(sys, "stderr", full)
        say("nobody waits for this")
        os.set_blocking(read, False)
        assert b"nobody" not in reader.read()
        say("and this is read")
        assert reader.read() == b"[ezpz] and this is read\n"


def test_an_agent_whose_standard_streams_are_closed_has_others_in_their_place():
    program = (
        "import os; os.closerange(0, 3); import sys; sys.stdin = sys.stdout = sys.stderr = None;"
        "from ezpz_elastic.console import open_streams; from ezpz_elastic.ledger import say; open_streams();"
        "print('nowhere'); say('nowhere'); os._exit(all(os.readlink(f'/proc/self/fd/{n}') == os.devnull and"
        " os.get_inheritable(n) for n in range(3)) and 3)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 3
