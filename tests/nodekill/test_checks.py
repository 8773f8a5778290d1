"""The report: it passes the run that had to be, and none in which one thing differs; what is not judged is no pass."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from nodekill.experiment import space
from sunspot.checks import Result, checks, overall, report
from sunspot.evidence import Dead, Evidence, Life, Receipt, Retired, read

from ezpz_elastic.checkpoint.striping import Ost

KILL, HIT, RELAUNCH, INNOCENT, HEALTHY, ANSWER, PLACE, RESUME, FINISH = range(9)


def good(mode: str = "rank", launcher: str = "hydra", **changes: object) -> Evidence:
    """Attempt 1 on a and b, b killed behind step 40; attempt 2 on a and the spare c, from step 40 to the end."""
    kind = {"rank": "rank", "pals": "daemon", "agent": "agent", "node": "rank"}[mode]
    seen = Evidence(
        mode=mode,
        launcher=launcher,
        total=400,
        victim="b",
        complete=40,
        killer_code=0,
        exit_code=0,
        receipt=Receipt(mode, "b", 1000.0, (Dead(12, kind, True),)),
        rosters={1: ("a", "b"), 2: ("a", "c")},
        verdicts={1: ("bad_node_known", "host_lost"), 2: ("success", "unknown")},
        retired=(Retired("b", "scraped", 1),),
        active=("a", "c"),
        lives={1: (Life(0, "a", 11, None), Life(1, "b", 12, None)), 2: (Life(0, "a", 21, 40), Life(1, "c", 22, 40))},
        steps={1: 47, 2: 400},
        saved={1: (20, 40), 2: (60, 400)},
    )
    return msgspec.structs.replace(seen, **changes)


IN_PLACE = {
    "rosters": {1: ("a", "b"), 2: ("a", "b")},
    "verdicts": {1: ("bad_node_blind", "unknown"), 2: ("success", "unknown")},
    "retired": (),
    "active": ("a", "b"),
    "lives": {1: good().lives[1], 2: (Life(0, "a", 21, 40), Life(1, "b", 22, 40))},
}


@pytest.mark.parametrize("launcher", ["hydra", "pals"])
@pytest.mark.parametrize("mode", ["rank", "pals", "agent", "node"])
def test_the_run_that_had_to_be_passes(mode: str, launcher: str) -> None:
    found = checks(good(mode, launcher))
    assert [check for check in found if check.result is not Result.PASS] == []
    assert overall(found) is Result.PASS
    assert list(report(good(mode, launcher), found))[-1] == "OVERALL: PASS"


@pytest.mark.parametrize(("mode", "launcher"), [("pals", "hydra"), ("node", "hydra"), ("rank", "pals")])
def test_where_the_launcher_names_nobody_a_restart_in_place_is_right(mode: str, launcher: str) -> None:
    assert overall(checks(good(mode, launcher, **IN_PLACE))) is Result.PASS


@pytest.mark.parametrize(
    ("mode", "launcher"), [("rank", "hydra"), ("pals", "pals"), ("node", "pals"), ("agent", "pals")]
)
def test_where_the_launcher_names_the_host_a_restart_in_place_is_wrong(mode: str, launcher: str) -> None:
    found = checks(good(mode, launcher, **IN_PLACE))
    assert found[ANSWER].result is Result.FAIL
    assert overall(found) is Result.FAIL


@pytest.mark.parametrize(
    "change",
    [
        {"receipt": None},
        {"killer_code": 3},
        {"killer_code": None},
        {"receipt": Receipt("pals", "b", 0.0, (Dead(12, "rank", True),))},
        {"receipt": Receipt("rank", "a", 0.0, (Dead(11, "rank", True),))},
        {"receipt": Receipt("rank", "b", 0.0, ())},
        {"receipt": Receipt("rank", "b", 0.0, (Dead(12, "rank", False),))},
        {"receipt": Receipt("rank", "b", 0.0, (Dead(12, "daemon", True),))},
    ],
)
def test_without_a_kill_nothing_else_is_judged_however_well_the_job_went(change: dict[str, object]) -> None:
    found = checks(good(**change))
    assert [check.result for check in found] == [Result.FAIL] + [Result.NO_KILL] * FINISH
    assert overall(found) is Result.FAIL


@pytest.mark.parametrize("lives", [{1: good().lives[1]}, {1: good().lives[1], 2: ()}])
def test_without_a_relaunch_what_presumes_one_is_not_judged(lives: dict[int, tuple[Life, ...]]) -> None:
    """An untouched hostfile still has its hosts, and the attempt before the kill names no victim: both passed once."""
    found = checks(good(lives=lives, retired=(), active=("a", "b")))
    assert [check.result for check in found[: INNOCENT + 1]] == [*[Result.PASS] * 2, Result.FAIL, Result.NO_RELAUNCH]
    assert {check.result for check in found[INNOCENT:]} == {Result.NO_RELAUNCH}
    assert overall(found) is Result.FAIL


@pytest.mark.parametrize(
    ("which", "change"),
    [
        (HIT, {"victim": "a", "receipt": Receipt("rank", "a", 0.0, (Dead(11, "rank", True),))}),
        (HIT, {"complete": None}),
        (HIT, {"steps": {1: 400, 2: 400}}),
        (HIT, {"receipt": Receipt("rank", "b", 0.0, (Dead(99, "rank", True),))}),
        (HIT, {"lives": {**good().lives, 1: (Life(0, "a", 11, None), Life(1, "c", 12, None))}}),
        (INNOCENT, {"rosters": {1: ("a", "b"), 2: ("c", "b")}}),
        (HEALTHY, {"retired": (Retired("b", "scraped", 1), Retired("c", "scraped", 2))}),
        (HEALTHY, {"retired": (Retired("b", "blind", 1),)}),
        (HEALTHY, {"retired": (Retired("a", "scraped", 1),)}),
        (ANSWER, {"retired": ()}),
        (PLACE, {"active": ("a", "b")}),
        (PLACE, {"lives": {**good().lives, 2: (Life(0, "a", 21, 40), Life(1, "b", 22, 40))}}),
        (RESUME, {"lives": {**good().lives, 2: (Life(0, "a", 21, 20), Life(1, "c", 22, 20))}}),
        (RESUME, {"lives": {**good().lives, 2: (Life(0, "a", 21, 40), Life(1, "c", 22, 20))}}),
        (RESUME, {"lives": {**good().lives, 2: (Life(0, "a", 21, None), Life(1, "c", 22, None))}}),
        (RESUME, {"lives": {**good().lives, 2: (Life(0, "a", 21, 60), Life(1, "c", 22, 60))}}),
        (FINISH, {"exit_code": 1}),
        (FINISH, {"exit_code": None}),
        (FINISH, {"steps": {1: 47, 2: 399}}),
    ],
)
def test_one_wrong_thing_fails(which: int, change: dict[str, object]) -> None:
    found = checks(good(**change))
    assert found[which].result is Result.FAIL
    assert found[which].detail
    assert overall(found) is Result.FAIL


def test_no_checks_at_all_are_no_pass() -> None:
    assert overall([]) is Result.FAIL


def test_a_run_is_read_in_any_spelling_of_its_hosts(tmp_path: Path) -> None:
    spelled = [f"x1922c7s{n}b0n0-hsn0.hsn.cm.sunspot.alcf.anl.gov" for n in range(4)]
    keys = [f"x1922c7s{n}b0n0" for n in range(4)]
    job = tmp_path / "job"
    (job / "journal").mkdir(parents=True)
    (tmp_path / "allocation").write_text("\n".join(spelled))
    (tmp_path / "facts").write_text(
        f"mode=rank\nlauncher=pals\ntotal=400\nvictim={spelled[1]}\ncomplete=40\nkiller=0\nexit=0\n"
    )
    (tmp_path / "receipt.json").write_bytes(
        msgspec.json.encode(Receipt("rank", keys[1], 1.0, (Dead(12, "rank", True),)))
    )
    (job / "active.hostfile").write_text(f"{spelled[0]}\n{spelled[2]}\n")
    (job / "bad_nodes.txt").write_text(f"{spelled[1]}  scraped  attempt=1\n")
    (job / "journal/a.jsonl").write_bytes(
        msgspec.json.encode({"event": "round_committed", "round": 1, "roster": spelled[:2]})
        + b"\n"
        + msgspec.json.encode({"event": "verdict", "round": 1, "kind": "bad_node_known", "cause": "host_lost"})
        + b'\n{"event": "half a li'
    )
    (job / "attempt-1.log").write_text(
        f"nodekill rank=0 world=2 host={keys[0]} pid=11 resumed=None\nnodekill rank=1 world=2 host={keys[1]} pid=12 "
        "resumed=None\nstep=41 loss=0.1\nsaved checkpoint step-40\n"
    )
    rank = job / "rounds/2/0/stdout.log"
    rank.parent.mkdir(parents=True)
    rank.write_text(f"nodekill rank=0 world=2 host={keys[0]}.hostmgmt2001.cm.sunspot pid=21 resumed=40\n")
    seen = read(tmp_path)
    assert (seen.victim, seen.active, seen.rosters) == (keys[1], (keys[0], keys[2]), {1: tuple(keys[:2])})
    assert seen.retired == (Retired(keys[1], "scraped", 1),)
    assert seen.verdicts == {1: ("bad_node_known", "host_lost")}
    assert seen.lives[1] == (Life(0, keys[0], 11, None), Life(1, keys[1], 12, None))
    assert [life.resumed for life in seen.lives[2]] == [40]
    assert (seen.steps[1], seen.saved[1], seen.complete) == (41, (40,), 40)


def test_a_target_that_may_be_chosen_and_has_no_room_is_found() -> None:
    osts = (Ost(0, 100, 60), Ost(1, 100, 5), Ost(2, 100, 5, active=False))
    assert [ost.index for ost in space.too_full(osts, 10)] == [1]
    assert space.too_full(osts, 5) == ()


def test_where_there_is_no_lustre_the_file_system_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert space.main(tmp_path, 1) == 0
    assert space.main(tmp_path, 1 << 60) == 1
    assert "(df)" in capsys.readouterr().out


LFS = """#!/bin/sh
[ "$1 $2" = "df -i" ] && exit 0
cat <<'END'
UUID                     1K-blocks        Used   Available Use% Mounted on
tegu-OST0000_UUID       100000000    10000000    90000000  10% /lus/tegu[OST:0]
tegu-OST0001_UUID       100000000    99990000       10000 100% /lus/tegu[OST:1]
END
"""


def test_a_file_system_that_is_half_empty_is_refused_if_one_of_its_targets_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lfs = tmp_path / "lfs"
    lfs.write_text(LFS)
    lfs.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert space.main(tmp_path, 5 << 20) == 0
    assert space.main(tmp_path, 50 << 20) == 1
    told = capsys.readouterr()
    assert "OST 0: 87890 of 97656 MiB free" in told.out
    assert f"no room for 50 MiB on OST 1 of {tmp_path}" in told.err
