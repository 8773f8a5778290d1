"""Whose words are whose: ``--verbose`` is ours before a command of the user's, and names need not be text."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ezpz_elastic.cli import main
from ezpz_elastic.errors import UsageError

OURS = [
    ["--verbose", "retry", "--nhosts=0", "sh"],
    ["retry", "--verbose", "--nhosts=0", "sh"],
    ["retry", "--nhosts=0", "--verbose", "--", "sh", "-c", "true"],
    ["classify", "nowhere", "--verbose"],
    ["hosts", ".", "list", "--verbose"],
    ["hosts", "--verbose", ".", "list"],
    ["checkpoint", "verify", "nowhere", "--verbose"],
]
NOT_OURS = [
    ["retry", "--nhosts=0", "sh", "--verbose"],
    ["retry", "--nhosts=0", "sh", "-c", "true", "--verbose", "--", "x"],
    ["retry", "--nhosts=0", "--", "sh", "--verbose"],
    ["classify", "--", "--verbose"],
]


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_verbose_shows_where_a_usage_error_comes_from(words: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        main(words)


@pytest.mark.parametrize("words", NOT_OURS, ids=" ".join)
def test_a_verbose_of_the_users_command_is_none_of_ours(words: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_verbose_before_the_name_reaches_a_command_with_a_parser_of_its_own(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["--verbose", "run", "nowhere.py"])
    assert "Traceback" in capsys.readouterr().err


def test_a_log_whose_name_is_not_text_is_classified(tmp_path: Path, capsys) -> None:
    log = tmp_path / os.fsdecode(b"caf\xe9.log")
    log.write_text("node7: shepherd died from signal 9\n")
    with pytest.raises(SystemExit) as ended:
        main(["classify", "--json", str(log)])
    assert ended.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["log"] == told["evidence"][0]["file"] == f"{tmp_path}/caf?.log"
