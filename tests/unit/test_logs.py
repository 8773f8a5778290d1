"""Scanning: bytes of any kind, in pieces of any size, growing, rotated, truncated, compressed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from ezpz_elastic.decide.evidence import LogMatch
from ezpz_elastic.observe.logs import LogFollower, scan_log, scan_rank_log
from ezpz_elastic.observe.matching import Matcher
from ezpz_elastic.observe.scanner import HitLine, Scanner
from ezpz_elastic.observe.steps import StepTracker
from ezpz_elastic.observe.text import clean, clock, expand_hosts, parse_prefix
from ezpz_elastic.signatures import load_library

LIBRARY = load_library()
DEATH = b"x1921c1s1b0n0.hsn.cm.sunspot.alcf.anl.gov: shepherd died from signal 9"


def scan(tmp_path: Path, data: bytes) -> tuple[LogMatch, ...]:
    log = tmp_path / "log"
    log.write_bytes(data)
    return scan_log(log, LIBRARY).matches


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
def test_a_line_split_between_pieces_is_found_with_its_number(size: int) -> None:
    data = b"step=1\n" * 50 + DEATH + b"\nstep=2\n"
    lines: list[HitLine] = []
    scanner = Scanner(LIBRARY, lines.append)
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    scanner.finish()
    assert [(line.number, line.text, line.step) for line in lines] == [(51, DEATH.decode(), 1)]
    assert scanner.last_step == 2


@pytest.mark.parametrize(
    "data",
    [
        DEATH,  # no end of line
        DEATH + b"\r\n",
        b"\x00\x00" + DEATH + b"\x00\n",
        b"\xff\xfe\x80 \xf0\x9f\n" + DEATH + b"\n",
        b"progress 12%\rprogress 13%\r" + DEATH + b"\n",
        b"y" * 3_000_000 + b"\n" + DEATH + b"\n",
        b"[rank3]: " + DEATH + b"\n",
        b" 5: " + DEATH + b"\n",
        b"2026-05-12T10:00:41 " + DEATH + b"\n",
        DEATH.replace(b" died", b" \x1b]8;;http://x\x1b\\died\x1b]8;;\x1b\\") + b"\n",
    ],
)
def test_nothing_in_a_log_stops_the_scanner(tmp_path: Path, data: bytes) -> None:
    found = scan(tmp_path, data)
    assert [match.host for match in found] == ["x1921c1s1b0n0.hsn.cm.sunspot.alcf.anl.gov"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 3, 50, 4000])
def test_whatever_ends_a_traceback_is_an_exception_by_its_place(size: int, end: bytes) -> None:
    lines = [
        b"[rank9]: Traceback (most recent call last):",
        b'[rank9]:   File "/home/u/train.py", line 12, in <module>',
        b"[rank1]: step=4",
        b"[rank9]:     main()",
        b"[rank9]:     ^^^^^^",
        b"[rank9]: mylib.trouble.Gone: nothing is there",
        b"[rank9]: mylib.trouble.Gone: told by nobody",
    ]
    matcher = Matcher(LIBRARY, "log")
    scanner = Scanner(LIBRARY, matcher.take)
    data = end.join(lines) + end
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    scanner.finish()
    assert [(match.line, match.rank, match.cause.value) for match in matcher.take_all()] == [(6, 9, "user_exception")]


def test_a_line_without_an_end_keeps_memory_bounded() -> None:
    scanner = Scanner(LIBRARY, lambda line: None)
    for _ in range(64):
        scanner.feed(b"died from signal x" * 4096)
        assert len(scanner._tail) < 64 * 1024
    scanner.finish()


def test_compressed_logs_are_read_and_a_cut_one_as_far_as_it_goes(tmp_path: Path) -> None:
    text = b"step=1\n" * 2000 + DEATH + b"\n"
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b.zst").write_bytes(zstandard.compress(text))
    (tmp_path / "c.gz").write_bytes(gzip.compress(text)[:-9])
    (tmp_path / "zipped-under-a-plain-name.log").write_bytes(gzip.compress(text))
    (tmp_path / "b-too.log").write_bytes(zstandard.compress(text))
    for name in ("a.gz", "b.zst", "c.gz", "zipped-under-a-plain-name.log", "b-too.log"):
        assert len(scan_log(tmp_path / name, LIBRARY).matches) == 1, name


@pytest.mark.parametrize("ranks", [1, 24, 400])
def test_one_progress_line_or_a_last_one_does_not_say_that_training_went_on(tmp_path: Path, ranks: int) -> None:
    def steps(*numbers: int) -> bytes:
        return b"".join(b"[rank%d] loss=2.5 step=%d\n" % (rank, number) for number in numbers for rank in range(ranks))

    def told(after: bytes) -> int | None:
        return scan(tmp_path, steps(*range(50)) + DEATH + b"\n" + after)[0].last_step

    assert told(b"") == 49
    assert told(b"step=70\n") == 49
    assert told(b"step=70\nbye\n") == 49
    assert told(steps(50) + b"step=7000\n") == 50
    assert told(steps(*range(50, 99)) + b"bye\n") == 98


def test_what_is_quoted_or_told_of_another_time_is_no_evidence(tmp_path: Path) -> None:
    text = DEATH.decode()
    for line in (
        f'note: "{text}"',
        f"[I] last attempt ended with {text}",
        "NOTICE: previously: NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.",
        'raise RuntimeError("CUDA error: uncorrectable ECC error encountered")',
    ):
        assert scan(tmp_path, f"{line}\n".encode()) == (), line


def test_the_same_text_is_told_by_the_frames_of_its_own_rank(tmp_path: Path) -> None:
    found = scan(
        tmp_path,
        b'[rank1]:   File "/v/torch/utils/data/dataloader.py", line 1, in get\n'
        b'[rank0]:   File "/v/torch/distributed/checkpoint/filesystem.py", line 2, in write\n'
        b"[rank1]: OSError: [Errno 28] No space left on device\n"
        b"[rank0]: OSError: [Errno 28] No space left on device\n",
    )
    assert [(match.rank, match.cause.value) for match in found] == [(1, "shm_full"), (0, "storage")]


def test_a_banner_gives_the_lines_after_it_rank_and_host(tmp_path: Path) -> None:
    found = scan(
        tmp_path,
        b"  time      : 2026-05-12_10:00:00\n  host      : nid002\n  rank      : 5 (local_rank: 1)\n"
        b"  exitcode  : -9 (pid: 4250)\n",
    )
    assert (found[-1].rank, found[-1].host, found[-1].code) == (5, "nid002", -9)


def test_a_growing_log_is_followed_through_rotation_and_truncation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    follower = LogFollower(log, LIBRARY)
    assert follower.poll() == ()
    log.write_bytes(b"step=1\n" + DEATH[:30])
    assert follower.poll() == ()
    with log.open("ab") as file:
        file.write(DEATH[30:] + b"\n")
    assert [match.line for match in follower.poll()] == [2]
    assert follower.poll() == ()
    log.rename(tmp_path / "log.1")
    log.write_bytes(DEATH + b"\n")
    assert [match.line for match in follower.poll()] == [1]
    log.write_bytes(DEATH[:20])  # truncated: shorter than what was read
    assert follower.poll() == ()
    with log.open("ab") as file:
        file.write(DEATH[20:])
    assert [match.line for match in follower.close()] == [1]
    assert follower.poll() == ()
    assert follower.last_step == 1


def test_a_workers_own_log_is_told_with_its_rank_and_host(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_text("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    (match,) = scan_rank_log(log, rank=7, host="n3", library=LIBRARY)
    assert (match.rank, match.reporter, match.host) == (7, "n3", None)
    assert scan_rank_log(tmp_path / "none", rank=7, host="n3", library=LIBRARY) == ()


@pytest.mark.parametrize(
    ("text", "rank", "task", "reporter", "rest"),
    [
        ("[rank3]: boom", 3, None, None, "boom"),
        ("5: boom", None, 5, None, "boom"),
        ("[5] boom", None, 5, None, "boom"),
        ("[default0]: boom", None, None, None, "boom"),
        ("[1,5]<stderr>:boom", 5, None, None, "boom"),
        ("[prterun-n1-42@1,7]<stderr>: boom", 7, None, None, "boom"),
        ("nid002: [rank5]: boom", 5, None, "nid002", "boom"),
        ("2026-05-12 10:00:00,123 nid002: boom", None, None, "nid002", "boom"),
        ("RuntimeError: boom", None, None, None, "RuntimeError: boom"),
    ],
)
def test_prefixes_of_every_launcher(
    text: str, rank: int | None, task: int | None, reporter: str | None, rest: str
) -> None:
    prefix = parse_prefix(text)
    assert (prefix.rank, prefix.task, prefix.reporter, prefix.rest) == (rank, task, reporter, rest)


def test_small_readers() -> None:
    assert expand_hosts("nid[001-003,007]") == ["nid001", "nid002", "nid003", "nid007"]
    assert expand_hosts("a1,b[08-09]") == ["a1", "b08", "b09"]
    assert len(expand_hosts("n[0-999999999]")) == 4096
    assert clock("[17:29:58][I] x") == 17 * 3600 + 29 * 60 + 58
    assert clock("no time") is None
    assert clean(b"\x1b[31mred\x1b[0m\x00 \xff\r\n") == "red \ufffd"


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (b"step=300 loss=1", 300),
        (b"\x1b[36miter\x1b[0m=\x1b[35m4\x1b[0m2 loss=9.9", 42),
        (b" iteration      100/  500000 | consumed samples", 100),
        (b"Epoch [1/10], Step [100/600]", 100),
        (b"{'step': 7, 'loss': 1}", 7),
        (b"resuming from step=40", None),
        (b"max_steps=100 --save-interval 20", None),
        (b"saved checkpoint: ckpt/step-40", None),
    ],
)
def test_what_a_step_looks_like(line: bytes, step: int | None) -> None:
    tracker = StepTracker()
    tracker.see(line + b"\n", len(line) + 1)
    assert tracker.last == step


def test_the_last_step_is_found_before_a_long_traceback() -> None:
    tracker = StepTracker()
    data = b"step=9\n" + b"  File x, line 1\n" * 20000
    tracker.see(data, len(data))
    assert tracker.last == 9
