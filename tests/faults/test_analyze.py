"""The analysis finds what is wrong in a run, whichever line of it says so, and nothing in a run that went well."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ezpz_elastic.faults.analysis.data import committed
from ezpz_elastic.faults.analysis.read import Malformed, read_run
from ezpz_elastic.faults.analyze import CHECKS, analyze, main

Line = dict[str, Any]
Run = dict[str, list[Line]]
A, B, C, D = "n1", "n2", "n3", "n4"


class Writer:
    """Writes a run that went well: three hosts of one rank, one is lost, a spare takes its slot, the job ends."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.files: Run = {}

    def event(self, host: str, number: int, name: str, /, after: float = 0.1, **fields: Any) -> None:
        """One line of a journal."""
        self.now = round(self.now + after, 3)
        common = {"ts": self.now, "host": host, "run_id": "job", "round": number, "event": name}
        self.files.setdefault(f"journal/{host}.jsonl", []).append({**common, **fields})

    def record(self, host: str, rank: int, number: int, name: str, /, **fields: Any) -> None:
        """One line of a worker, in its own file and in the journal of its host."""
        fields = {"rank": rank, **fields}
        self.files.setdefault(f"rounds/{number}/{rank}/events.jsonl", []).append({"event": name, **fields})
        self.event(host, number, name, after=0.0, **fields)

    def started(self, number: int, hosts: list[str]) -> None:
        """A round begins."""
        self.event(A, number, "round_committed", roster=hosts, world_size=len(hosts))
        for rank, host in enumerate(hosts):
            self.event(host, number, "span", name="rendezvous", seconds=0.05, after=0.0)
            self.event(host, number, "span", name="spawn", seconds=0.05, after=0.0)
            self.event(host, number, "worker_started", after=0.0, rank=rank, pid=100 * number + rank)

    def spans(self, number: int, hosts: list[str]) -> None:
        """The workers' part of the start, a second in all."""
        self.now += 1.0
        for rank, host in enumerate(hosts):
            for name, at in zip(
                ("import", "init_process_group", "build", "load", "first_step"), range(1, 6), strict=True
            ):
                self.record(host, rank, number, "span", name=name, seconds=0.2, at=self.now - 1.0 + 0.2 * at)

    def step(self, number: int, step: int, hosts: list[str], save: bool = True) -> None:
        """Every rank trains two samples."""
        for rank, host in enumerate(hosts):
            first = (step - 1) * 6 + 2 * rank
            told = {"world_size": len(hosts), "replica": rank, "serials": [first, first + 2], "params": f"p{step}"}
            self.record(host, rank, number, "step_trained", step=step, **told)
        if save:
            self.record(hosts[0], 0, number, "checkpoint_saved", step=step)

    def restored(self, number: int, step: int, hosts: list[str]) -> None:
        """Every rank goes on from a step."""
        for rank, host in enumerate(hosts):
            self.record(host, rank, number, "state_restored", step=step, params=f"p{step}")

    def decided(self, number: int, action: str, kind: str, cause: str, lost: list[str], **verdict: Any) -> None:
        """A verdict and a decision."""
        told = {"hosts": [], "suspects": [], "evidence": [{"text": "seen"}], "certain": True, "reason": "so"}
        self.event(A, number, "verdict", kind=kind, cause=cause, **{**told, **verdict})
        fields = {"action": action, "kind": kind, "cause": cause, "lost": lost, "reason": "so", "restarts_left": 3}
        self.event(A, number, "decision", **fields, exit_code=0, delay=0.0)


def good() -> Run:
    """The run that all tests begin with."""
    w = Writer()
    for host in (A, B, C, D):
        w.event(host, 0, "member_joined", member=host)
    first, second = [A, B, C], [A, D, C]
    w.started(1, first)
    w.step(1, 1, first)
    w.step(1, 2, first, save=False)
    w.decided(1, "restart", "bad_node_known", "host_lost", [B], hosts=[{"name": B, "provenance": "lost"}])
    w.event(A, 1, "host_retired", retired=B, provenance="lost", reason="gone", benched=False)
    for host in (A, C):
        w.event(host, 1, "span", name="stop", seconds=0.1, after=0.05)
    w.started(2, second)
    w.event(A, 2, "spare_admitted", admitted=D, slot=1)
    w.spans(2, second)
    w.restored(2, 1, second)
    for step in (2, 3):
        w.step(2, step, second)
    w.decided(2, "finish", "success", "unknown", [], evidence=[])
    w.event(A, 2, "finished", kind="success", rounds=2, exit_code=0)
    w.event(D, 3, "span", name="standby", seconds=1.0)  # a spare tells of its waiting when it leaves
    w.files["bad_nodes.txt"] = [{"line": f"{B}  lost  attempt=1"}]
    return w.files


def written(run: Run, directory: Path) -> Path:
    """Put a run on the disk."""
    for name, lines in run.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join((line["line"] if "line" in line else json.dumps(line)) + "\n" for line in lines))
    return directory


def lines(run: Run, event: str, number: int | None = None, **fields: Any) -> Iterator[tuple[list[Line], Line]]:
    """Lines of a run, each with the file it is in."""
    for file in run.values():
        for line in list(file):
            right = line.get("event") == event and number in (None, line.get("round", number))
            if right and all(line.get(name) == value for name, value in fields.items()):
                yield file, line


def change(
    event: str, number: int | None = None, where: dict[str, Any] | None = None, **fields: Any
) -> Callable[[Run], None]:
    """Other fields in the lines of an event."""

    def make(run: Run) -> None:
        found = list(lines(run, event, number, **(where or {})))
        assert found, "nothing to change"
        for _, line in found:
            line.update(fields)

    return make


def drop(event: str, number: int | None = None, **where: Any) -> Callable[[Run], None]:
    """The lines of an event are not there."""

    def make(run: Run) -> None:
        found = list(lines(run, event, number, **where))
        assert found, "nothing to drop"
        for file, line in found:
            file.remove(line)

    return make


def again(event: str, number: int, /, **fields: Any) -> Callable[[Run], None]:
    """An event once more, with other fields."""

    def make(run: Run) -> None:
        file, line = next(lines(run, event, number))
        file.append({**line, **fields})

    return make


def both(*changes: Callable[[Run], None]) -> Callable[[Run], None]:
    """One after the other."""

    def make(run: Run) -> None:
        for made in changes:
            made(run)

    return make


def in_file(name: str, at: int, **fields: Any) -> Callable[[Run], None]:
    """Other fields in one line of a worker's own file."""

    def make(run: Run) -> None:
        found = [line for line in run[name] if line["event"] in {"step_trained", "state_restored"}]
        found[at].update(fields)

    return make


def known(**verdict: Any) -> Callable[[Run], None]:
    """Round 1's verdict and decision are other ones."""

    def make(run: Run) -> None:
        change("verdict", 1, **verdict)(run)
        change("decision", 1, kind=verdict["kind"], cause=verdict["cause"], lost=[])(run)

    return make


FIRST, SECOND = "rounds/1", "rounds/2"
PROVENANCE = both(
    change("host_retired", provenance="inferred"),
    lambda run: run["bad_nodes.txt"].__setitem__(0, {"line": f"{B}  inferred  attempt=1"}),
)
SUSPECT = {"hosts": [], "suspects": [{"name": B, "weight": 1.0}]}

WRONG: dict[str, tuple[str, Callable[[Run], None]]] = {
    "no round": ("I1", both(drop("round_committed"), drop("worker_started"))),
    "two rosters of one round": ("I1", again("round_committed", 2, roster=[A, C, D])),
    "a host in two slots": ("I1", change("round_committed", 2, roster=[A, C, C])),
    "two decisions of one round": ("I2", again("decision", 1, action="stop")),
    "a round without a decision": ("I2", drop("decision", 1)),
    "a round after the end": ("I2", change("decision", 1, action="finish")),
    "workers where there is no slot": ("I2", again("worker_started", 2, host=B)),
    "a host that did nothing": ("I2", drop("worker_started", 2, rank=1)),
    "a retired host in a slot": ("I3", change("round_committed", 2, roster=[A, B, C])),
    "a spare in a slot nobody left": ("I4", change("round_committed", 2, roster=[D, B, C])),
    "a host gone without a decision": ("I4", both(change("round_committed", 2, roster=[A]), drop("worker_started", 2))),
    "survivors that change places": ("I5", change("round_committed", 2, roster=[C, D, A])),
    "a wrong rank": ("I5", change("worker_started", 2, where={"rank": 1}, rank=5)),
    "no line in bad_nodes.txt": ("retirement", lambda run: run["bad_nodes.txt"].clear()),
    "a line too many in bad_nodes.txt": (
        "retirement",
        lambda run: run["bad_nodes.txt"].append({"line": f"{C}  blind  attempt=1"}),
    ),
    "an unknown provenance": ("retirement", change("host_retired", provenance="felt")),
    "another provenance than the verdict's": ("retirement", PROVENANCE),
    "no reason": ("retirement", change("host_retired", reason="")),
    "no evidence": ("retirement", change("verdict", 1, evidence=[])),
    "nobody named": ("retirement", both(change("verdict", 1, hosts=[]), change("decision", 1, lost=[]))),
    "no verdict": ("retirement", drop("verdict", 1)),
    "a lost host that stays": ("policy", both(drop("host_retired"), lambda run: run["bad_nodes.txt"].clear())),
    "a named host that stays": (
        "policy",
        both(
            change("decision", 1, lost=[]),
            drop("host_retired"),
            lambda run: run["bad_nodes.txt"].clear(),
            change("round_committed", 2, roster=[A, B, C]),
        ),
    ),
    "a host retired for storage": ("policy", known(kind="retryable_unattributed", cause="storage", **SUSPECT)),
    "a host retired for an exit": ("policy", known(kind="retryable_unattributed", cause="worker_exit", **SUSPECT)),
    "a host retired for a user's error": ("policy", known(kind="user_error", cause="user_exception", **SUSPECT)),
    "a host retired at its first kill": (
        "policy",
        known(kind="retryable_unattributed", cause="worker_killed", **SUSPECT),
    ),
    "a host retired on doubt": (
        "policy",
        known(kind="bad_node_known", cause="device_fault", certain=False, hosts=[{"name": B, "provenance": "lost"}]),
    ),
    "a host rotated at the first guess": (
        "policy",
        both(known(kind="bad_node_blind", cause="unknown"), change("host_retired", provenance="blind", benched=True)),
    ),
    "a failure that ends as success": ("policy", change("decision", 2, action="finish", kind="bad_node_blind")),
    "a success that is no end": ("policy", change("decision", 2, action="restart")),
    "a walltime that goes on": ("policy", known(kind="walltime", cause="unknown", hosts=[], suspects=[])),
    "a finish with an exit code": ("policy", change("decision", 2, exit_code=3)),
    "another kind than the verdict's": ("policy", change("decision", 1, kind="user_error")),
    "samples seen twice": ("samples", in_file(f"{SECOND}/1/events.jsonl", 1, serials=[6, 8])),
    "samples left out": ("samples", in_file(f"{SECOND}/2/events.jsonl", 2, serials=[17, 18])),
    "a rank that told nothing": ("samples", lambda run: run.pop(f"{SECOND}/1/events.jsonl") and None),
    "a step that is missing": (
        "samples",
        lambda run: [run[f"{SECOND}/{r}/events.jsonl"].pop(6) for r in range(3)] and None,
    ),
    "other samples the second time": ("samples", in_file(f"{FIRST}/0/events.jsonl", 1, serials=[30, 32])),
    "no step at all": (
        "samples",
        lambda run: (
            [
                run.__setitem__(
                    name, [line for line in run[name] if line["event"] != "step_trained" or line["step"] == 99]
                )
                for name in list(run)
                if name.startswith("rounds")
            ]
            and run[f"{FIRST}/0/events.jsonl"].append(
                {
                    "event": "step_trained",
                    "step": 9,
                    "rank": 0,
                    "world_size": 1,
                    "replica": 0,
                    "serials": [0, 2],
                    "params": "p",
                }
            )
        ),
    ),
    "replicas that differ": ("replicas", in_file(f"{SECOND}/1/events.jsonl", 1, params="other")),
    "replicas that restored other states": ("replicas", in_file(f"{SECOND}/1/events.jsonl", 0, params="other")),
    "a restored state that is not what was saved": (
        "replicas",
        lambda run: [in_file(f"{SECOND}/{r}/events.jsonl", 0, params="other")(run) for r in range(3)] and None,
    ),
    "a rank that did not say what it restored": (
        "replicas",
        lambda run: run[f"{SECOND}/2/events.jsonl"].remove(
            next(line for line in run[f"{SECOND}/2/events.jsonl"] if line["event"] == "state_restored")
        ),
    ),
    "a span that is missing": ("spans", drop("span", 2, name="load")),
    "a span told too long": ("spans", change("span", 2, where={"name": "build"}, seconds=2.0)),
    "time that nobody tells of": ("spans", change("span", 2, where={"name": "first_step"}, at=1e6)),
}


def test_a_run_that_went_well_has_no_findings_and_every_check_was_made(tmp_path: Path):
    result = analyze(read_run(written(good(), tmp_path)))
    assert result.findings == ()
    assert result.made == set(CHECKS)
    assert [(outage.round, outage.host) for outage in result.outages] == [(2, A), (2, C)]


@pytest.mark.parametrize(("check", "spoil"), WRONG.values(), ids=WRONG)
def test_whatever_is_wrong_is_found_by_the_check_whose_matter_it_is(
    check: str, spoil: Callable[[Run], None], tmp_path: Path
):
    run = good()
    spoil(run)
    found = analyze(read_run(written(run, tmp_path))).findings
    assert check in {finding.check for finding in found}, found


RIGHT: dict[str, Callable[[Run], None]] = {
    "a readmitted host holds a slot again": both(
        change("round_committed", 2, roster=[A, B, C]),
        change("worker_started", 2, where={"rank": 1}, host=B),
        again("host_retired", 1, event="host_readmitted", readmitted=B),
    ),
    "a benched host holds a slot again": both(
        change("host_retired", benched=True, provenance="person"),
        lambda run: run["bad_nodes.txt"].__setitem__(0, {"line": f"{B}  person  attempt=1"}),
    ),
    "a person's order needs no verdict": both(
        drop("verdict", 1),
        change("decision", 1, lost=[]),
        change("host_retired", provenance="person"),
        lambda run: run["bad_nodes.txt"].__setitem__(0, {"line": f"{B}  person  attempt=1"}),
    ),
}


@pytest.mark.parametrize("spoil", RIGHT.values(), ids=RIGHT)
def test_what_is_unusual_and_right_is_no_finding(spoil: Callable[[Run], None], tmp_path: Path):
    run = good()
    spoil(run)
    found = [item for item in analyze(read_run(written(run, tmp_path))).findings if item.check != "spans"]
    assert found == []


def test_a_job_that_shrinks_closes_the_hole_from_the_top(tmp_path: Path):
    run = good()
    change("round_committed", 2, roster=[A, C])(run)
    drop("worker_started", 2, rank=1)(run)
    change("worker_started", 2, where={"rank": 2}, rank=1)(run)
    assert [f for f in analyze(read_run(written(run, tmp_path))).findings if f.check.startswith("I")] == []


def test_a_step_counts_if_the_job_went_on_from_it(tmp_path: Path):
    records = read_run(written(good(), tmp_path)).records
    assert committed(records) == {1: 1, 2: 2, 3: 2}


@pytest.mark.parametrize(("saved", "found"), [(False, []), (True, ["policy"])])
def test_a_second_kill_at_one_host_is_a_ground_for_suspicion_unless_a_checkpoint_came_in_between(
    saved: bool, found: list[str], tmp_path: Path
):
    w = Writer()
    for number in (1, 2):
        w.started(number, [A, B])
        if number == 2 and saved:
            w.event(A, 2, "checkpoint_saved", step=5)
        hints = {"suspects": [{"name": B, "weight": 1.0}]}
        w.decided(number, "restart", "retryable_unattributed", "worker_killed", [], **hints)
    w.event(A, 2, "host_retired", retired=B, provenance="inferred", reason="again", benched=False)
    w.started(3, [A, C])
    w.files["bad_nodes.txt"] = [{"line": f"{B}  inferred  attempt=2"}]
    assert [item.check for item in analyze(read_run(written(w.files, tmp_path))).findings] == found


@pytest.mark.parametrize("name", ["journal/n1.jsonl", "rounds/1/0/events.jsonl", "bad_nodes.txt"])
@pytest.mark.parametrize("line", ["}{", "[]", "{}", "", '{"event": 1}'])
def test_a_malformed_line_is_an_error_and_no_gap(name: str, line: str, tmp_path: Path, capsys):
    directory = written(good(), tmp_path)
    path = directory / name
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(Malformed, match=path.name):
        read_run(directory)
    assert main([str(directory)]) == 2
    assert path.name in capsys.readouterr().err


def test_a_line_without_an_end_is_malformed(tmp_path: Path):
    directory = written(good(), tmp_path)
    path = directory / "journal/n1.jsonl"
    path.write_text(path.read_text()[:-1])
    with pytest.raises(Malformed):
        read_run(directory)


def test_the_command_tells_of_findings_of_checks_not_made_and_of_a_run_that_is_not_there(tmp_path: Path, capsys):
    run = good()
    assert main([str(written(run, tmp_path / "good"))]) == 0
    assert "2 rounds, 6 checks, 0 findings" in capsys.readouterr().out
    drop("decision", 1)(run)
    assert main([str(written(run, tmp_path / "bad"))]) == 1
    assert "round 1: I2: the round ended without a decision" in capsys.readouterr().out
    bare = {name: file for name, file in good().items() if not name.startswith("rounds")}
    drop("span")(bare)
    assert main([str(written(bare, tmp_path / "bare"))]) == 0
    assert "not checked, for the run tells nothing of it: samples, replicas, spans" in capsys.readouterr().out
    assert main([str(tmp_path / "nothing")]) == 2
    assert "has no journal" in capsys.readouterr().err
