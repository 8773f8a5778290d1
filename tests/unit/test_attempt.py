"""classify_log and the two commands on top of it: what a user can do wrong ends in one line and exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz_elastic import Cause, VerdictKind, classify_log
from ezpz_elastic.attempt import resolve_addresses
from ezpz_elastic.cli import commands, main
from ezpz_elastic.errors import UsageError

NAME = "x1921c1s4b0n0-hsn0.hsn.cm.sunspot.alcf.anl.gov"
DEATH = f"{NAME}: shepherd died from signal 9\n"


@pytest.fixture
def death(tmp_path: Path) -> Path:
    path = tmp_path / "attempt.log"
    path.write_text("step=3 loss=1\n" + DEATH)
    return path


def cli(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return int(caught.value.code or 0)


def test_the_answer_is_spelled_as_the_allocation_does_or_canonically(death: Path) -> None:
    assert [h.name for h in classify_log(death, 143, "sunspot").hosts] == [NAME.replace("-hsn0", "", 1)]
    assert [h.name for h in classify_log(death, 143, hosts=[NAME, "x1921c1s5b0n0"]).hosts] == [NAME]


def test_a_host_outside_the_attempt_is_as_if_never_told(death: Path) -> None:
    verdict = classify_log(death, 1, "sunspot", hosts=["x1921c1s5b0n0", "x1921c1s6b0n0"])
    assert (verdict.kind, verdict.hosts) == (VerdictKind.BAD_NODE_BLIND, ())
    assert "no host of this attempt" in verdict.set_aside[0].why


def test_three_silences_are_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("step=1\n")
    assert "none matched" in classify_log(log, 1, "sunspot").reason
    unknown = classify_log(log, 1, "elcap")
    assert "no signatures" in unknown.reason
    assert "elcap" in unknown.note
    log.write_text("OSError: [Errno 122] Disk quota exceeded\n")
    assert classify_log(log, 1, "sunspot").cause is Cause.QUOTA


def test_an_empty_log_gets_the_honest_verdict(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    assert classify_log(tmp_path / "log", 0).kind is VerdictKind.SUCCESS
    assert classify_log(tmp_path / "log", 1).kind is VerdictKind.BAD_NODE_BLIND
    assert classify_log(tmp_path / "log", 143).kind is VerdictKind.WALLTIME


def test_an_address_is_looked_up_only_where_there_are_names_to_compare(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1\n")
    from ezpz_elastic.observe.logs import scan_log

    matches = scan_log(log).matches
    assert resolve_addresses(matches, ()) == {}
    assert resolve_addresses(matches, ["127.0.0.1"]) == {}
    assert resolve_addresses(matches, ["10.0.0.1"]) == {}


def test_what_cannot_be_read_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "broken.gz").write_bytes(b"no gzip")
    secret = tmp_path / "secret"
    secret.touch(mode=0o000)
    paths = [tmp_path / "missing", tmp_path, tmp_path / "fifo", tmp_path / "broken.gz"]
    if os.geteuid() != 0:  # root may read anything
        paths.append(secret)
    for path in paths:
        assert cli("classify", path) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1, told
        assert str(path) in told


@pytest.mark.parametrize(
    "words",
    [
        ["classify"],
        ["classify", "{log}", "--remaining", "soon"],
        ["classify", "{log}", "--nonsense"],
        ["classify", "{log}", "--hosts", "a", "--hostfile", "{log}"],
        ["classify", "{log}", "--hostfile", "/nowhere"],
        ["classify", "{log}", "--signatures", "/nowhere"],
        ["nonsense"],
        ["checkpoint"],
        ["checkpoint", "nonsense"],
        ["hosts"],
        ["hosts", "{log}"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    death: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(*(word.format(log=death) for word in words)) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["checkpoint"], "Missing command; expected one of ls, verify, prune, repair, interval; hint: ezpz-elastic"),
        (
            ["hosts", "runs/job"],
            "Missing command; expected one of list, retire, readmit; hint: ezpz-elastic hosts --help",
        ),
        (["hosts", "runs/job", "retire"], "'HOST'; hint: ezpz-elastic hosts RUN_DIR retire --help"),
        (["checkpoint", "interval", "--mtbf=1h"], "'--save'; hint: ezpz-elastic checkpoint interval --help"),
    ],
)
def test_a_command_of_a_command_is_told_what_it_lacks_and_where_that_is_explained(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_classify_prints_the_verdict_and_explains_it(death: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("classify", death, "--exit-code", 143, "--remaining", "2h", "--explain") == 0
    told = capsys.readouterr().out
    assert "bad_node_known (host_lost)" in told
    assert "2: " + DEATH.strip() in told
    assert cli("classify", death, "--json") == 0
    assert json.loads(capsys.readouterr().out)["hosts"][0]["provenance"] == "scraped"


def test_scrape_prints_hosts_and_nothing_else(death: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("scrape", "--machine", "sunspot", death) == 0
    assert capsys.readouterr() == (NAME.replace("-hsn0", "", 1) + "\n", "")
    death.write_text("step=1\n")
    assert cli("scrape", death) == 0
    assert capsys.readouterr().out == ""
    assert cli("scrape", death, "--machine", "elcap") == 0
    assert "elcap" in capsys.readouterr().err


def test_scrape_imports_no_torch(death: Path) -> None:
    code = f"""
import sys
from ezpz_elastic.cli import main
try:
    main(["scrape", {str(death)!r}])
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_command_tells_in_one_line_what_it_does() -> None:
    assert {"classify", "scrape"} <= set(commands())
    assert all(summary for summary in commands().values())


def test_a_usage_error_is_shown_whole_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        main(["classify", str(tmp_path), "--verbose"])
