"""The run directory: whole lines, whole files, and a disk that runs full costs events and nothing else."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path

import msgspec
import pytest
from support.builders import decision, member

from ezpz_elastic.decide.verdict import Cause, Verdict, VerdictKind
from ezpz_elastic.journal import Journal
from ezpz_elastic.ledger import RunLedger
from rendezvous.records import Action, Case, Decision, Opening, Retirement, Roster

A, B, C = (member(name) for name in "abc")


class FullDisk:
    """A file on a disk that takes half a line and then nothing more."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("ab", buffering=0)
        self.full = True

    def write(self, data: bytes) -> int:
        if self.full:
            self.file.write(data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)


def events(directory: Path, host: str = "a") -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "journal" / f"{host}.jsonl").read_text().splitlines()]


def test_every_event_is_one_line_with_the_common_fields(tmp_path):
    journal = Journal(tmp_path, "a", "run")
    journal.write("span", 3, name="spawn", seconds=0.5)
    (event,) = events(tmp_path)
    assert event.pop("ts") > 1e9
    assert event == {"host": "a", "run_id": "run", "round": 3, "event": "span", "name": "spawn", "seconds": 0.5}


def test_a_full_disk_loses_events_is_told_once_and_breaks_no_later_line(tmp_path, caplog):
    journal = Journal(tmp_path, "a", "run")
    journal.write("span", 1)
    disk = FullDisk(tmp_path / "journal" / "a.jsonl")
    journal._file = disk
    with caplog.at_level(logging.WARNING):
        journal.write("span", 2)
        journal.write("span", 3)
        disk.full = False
        journal.write("span", 4)
    assert caplog.text.count("No space left on device; the job goes on") == 1
    assert "2 events were lost" in caplog.text
    whole = [
        json.loads(line) for line in (tmp_path / "journal" / "a.jsonl").read_text().splitlines() if line.endswith("}")
    ]
    assert [event["round"] for event in whole] == [1, 4]


def test_a_run_directory_that_is_gone_stops_nobody(tmp_path, caplog):
    journal = Journal(tmp_path / "run", "a", "run")
    for path in sorted((tmp_path / "run").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "run").rmdir()
    journal.append_line("bad_nodes.txt", "a  lost  attempt=1")
    journal.replace("outcome.json", "{}")
    assert "the job goes on" in caplog.text


@pytest.fixture
def ledger(tmp_path):
    return RunLedger(Journal(tmp_path, "a", "run"))


def test_of_many_who_tell_the_end_the_first_ones_word_stays(ledger, tmp_path):
    ledger.ended(decision(3, Action.STOP, "c", kind="exhausted"), (Retirement("b", "lost", "gone"),))
    ledger.ended(decision(3, Action.STOP, "c", kind="another"), ())
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert (outcome["kind"], outcome["rounds"], outcome["hosts_retired"]) == ("exhausted", 3, ["b", "c"])
    assert [e["event"] for e in events(tmp_path)] == ["finished"]
    assert not list(tmp_path.glob(".outcome*"))


def test_the_outcome_of_an_earlier_run_is_not_taken_for_this_ones(ledger, tmp_path):
    ledger.decided(case(1), decision(1, Action.STOP), ())
    ledger.opened(Opening(1, roster=Roster(1, (A, B))), None)
    assert not (tmp_path / "outcome.json").exists()


def case(round_number: int) -> Case:
    return Case(round_number, Roster(round_number, (A, B)), (), (), (), 2, 2, 0.0)


def test_a_new_coordinator_tells_of_the_spare_and_of_what_happened_before_its_time(ledger, tmp_path):
    """It has opened no round itself: what it writes comes from the records, not from its own memory."""
    ledger.opened(Opening(2, roster=Roster(2, (A, C))), Roster(1, (A, B)))
    assert [(e["admitted"], e["slot"]) for e in events(tmp_path) if e["event"] == "spare_admitted"] == [("c", 1)]
    end: Decision = decision(2, Action.FINISH, kind="success")
    ledger.decided(case(2), end, (Retirement("b", "lost", "gone"),))
    assert json.loads((tmp_path / "outcome.json").read_text())["hosts_retired"] == ["b"]
    assert (tmp_path / "active.hostfile").read_text() == "a\nc\n"


def test_the_first_round_admits_no_spare(ledger, tmp_path):
    ledger.opened(Opening(1, roster=Roster(1, (A, B))), None)
    assert [e["event"] for e in events(tmp_path)] == ["round_committed"]


def test_a_failure_is_told_with_the_time_others_had_to_report_it_and_that_of_the_decision(ledger, tmp_path):
    failed = msgspec.structs.replace(case(1), failed_at=10.0, at=10.75)
    ledger.decided(failed, decision(1, Action.STOP), ())
    ledger.decided(msgspec.structs.replace(case(2), at=11.0), decision(2, Action.STOP), ())
    spans = [(e["round"], e["name"]) for e in events(tmp_path) if e["event"] == "span"]
    assert spans == [(1, "settle"), (1, "decide")]
    assert next(e["seconds"] for e in events(tmp_path) if e.get("name") == "settle") == 0.75


def test_a_benched_host_has_its_line_and_is_not_retired(ledger, tmp_path):
    answer = decision(1, Action.STOP)
    benched = msgspec.structs.replace(answer, retired=(Retirement("b", "blind", "picked", benched=True),))
    ledger.decided(case(1), benched, ())
    assert (tmp_path / "bad_nodes.txt").read_text() == "b  blind  attempt=1\n"
    assert json.loads((tmp_path / "outcome.json").read_text())["hosts_retired"] == []


def test_the_console_calls_a_round_what_its_command_calls_it_and_gives_success_no_cause(tmp_path, capsys):
    ledger = RunLedger(Journal(tmp_path, "a", "run"), unit="attempt")
    verdict = Verdict(VerdictKind.SUCCESS, Cause.UNKNOWN, "all succeeded")
    ended = decision(2, Action.FINISH, kind="success")
    ledger.decided(case(2), msgspec.structs.replace(ended, verdict=msgspec.Raw(msgspec.json.encode(verdict))), ())
    told = capsys.readouterr().err
    assert "[ezpz] attempt 2: verdict success: all succeeded\n" in told
    assert "[ezpz] attempt 2: decision finish" in told
