"""What workers wrote into their event files reaches the journal; what is no event stops nobody."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ezpz_elastic.events import EventRelay
from ezpz_elastic.journal import Journal


def test_lines_that_are_no_events_are_left_out_and_the_next_one_is_carried_over(tmp_path: Path):
    journal = Journal(tmp_path, "h1", "job")
    file = tmp_path / "events.jsonl"
    bad = [
        b"\xff",
        b'{"event":"x","v":"\xff"}',
        b'{"event":"x","v":"\\ud800"}',
        b"\0" * 4096,
        b"[" * 100_000,
        b"7",
        b"{}",
    ]
    bad.append(b'{"event":"x","v":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    good = b'{"event":"checkpoint_saved","step":3,"self":1,"round_number":9,"round":8,"host":"h9"}'
    file.write_bytes(b"\n".join([*bad, good, b'{"event":"unfinished"']))
    relay = EventRelay(journal, 2, {0: file, 1: tmp_path / "none", 2: tmp_path})
    relay.relay()
    relay.relay()
    lines = (tmp_path / "journal" / "h1.jsonl").read_bytes().splitlines()
    (event,) = [msgspec.json.decode(line) for line in lines]
    assert (event["event"], event["step"], event["round"], event["host"]) == ("checkpoint_saved", 3, 2, "h1")
    journal.close()
