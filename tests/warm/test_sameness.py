"""The same program under plain torchrun and in a warm worker: what it sees, what it prints, how it ends."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.cluster import JOBS
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from ezpz_elastic.warm.client import WarmServer

ENDS = [
    "facts",
    "raise",
    "chain",
    "hook",
    "exit-text",
    "exit-none",
    "exit-300",
    "exit-code",
    "hard",
    "interrupt",
    "abort",
    "kill",
    "term",
    "thread",
    "children",
    "warn",
    "record",
]


WORDS = ["mirror.py", "--lr", "1", "an argument"]


@dataclass
class Seen:
    """What is left of a program that has ended."""

    code: int
    stdout: str
    stderr: str
    error: str
    facts: str


def seen(code: int, directory: Path) -> Seen:
    texts = []
    for name in ("out.txt", "err.txt", "error.json", "facts-0.json"):
        texts.append((directory / name).read_text() if (directory / name).exists() else "")
        (directory / name).unlink(missing_ok=True)
    out, err, error, facts = texts
    # An error file tells when, and in which process.
    error = re.sub(r'"timestamp": "?\d+"?|pid: \d+', "", error)
    return Seen(code, out, err, error, facts)


def environment(directory: Path) -> dict[str, str]:
    ours = {"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_ERROR_FILE": str(directory / "error.json"), "ADDED": "1"}
    return {**{key: value for key, value in os.environ.items() if key != "EZPZ_REMOVED"}, **ours}


def cold(directory: Path, words: list[str]) -> Seen:
    """torch's own way."""
    handler = SubprocessHandler(
        sys.executable,
        ("-u", *words),
        environment(directory),
        str(directory / "out.txt"),
        str(directory / "err.txt"),
        0,
        None,
    )
    return seen(handler.proc.wait(180), directory)


def warm(server: WarmServer, directory: Path, words: list[str]) -> Seen:
    with (directory / "out.txt").open("w") as stdout, (directory / "err.txt").open("w") as stderr:
        worker = server.fork(words, environment(directory), stdout.fileno(), stderr.fileno(), None)
    end = worker.wait(180)
    worker.close()
    assert end is not None
    return seen(os.waitstatus_to_exitcode(end.status), directory)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("program")
    shutil.copy(JOBS / "mirror.py", directory)
    (directory / "broken.py").write_text('"""A mistake in its syntax."""\nprint("never"\n')
    package = directory / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    shutil.copy(JOBS / "mirror.py", package / "mirror.py")
    shutil.copy(JOBS / "mirror.py", package / "__main__.py")
    before = Path.cwd()
    os.chdir(directory)
    yield directory
    os.chdir(before)


def serve(directory: Path, words: list[str], *modules: str) -> WarmServer:
    (directory / "scratch").mkdir(exist_ok=True)
    made = WarmServer(sys.executable, words, modules, "tag-of-a-test", directory / "scratch")
    assert made.ready(100)
    return made


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[WarmServer]:
    made = serve(place, WORDS, "torch", "torch.utils.data", "torch.distributed.elastic.multiprocessing.errors")
    yield made
    made.close()


@pytest.mark.parametrize("how", ENDS)
def test_a_script_sees_prints_and_ends_as_in_an_interpreter_of_its_own(place, server, how):
    there, here = cold(place, [*WORDS, how]), warm(server, place, [*WORDS, how])
    assert here.facts == there.facts
    assert here == there
    assert bool(here.facts) == (how == "facts")
    assert "unfinished line" in here.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "package.mirror", "facts"],
        ["-m", "package.mirror", "raise"],
        ["-m", "package", "facts"],
        ["-m", "no.such.module"],
        ["package", "facts"],
        ["package/mirror.py", "facts"],
        ["./mirror.py", "facts"],
        ["broken.py", "x"],
        ["missing.py", "x"],
    ],
    ids=" ".join,
)
def test_modules_packages_broken_and_missing_scripts_too(place, words):
    made = serve(place, words)
    try:
        there, here = cold(place, words), warm(made, place, words)
    finally:
        made.close()
    assert here.facts == there.facts
    assert here == there
    assert here.facts or here.stderr


def test_workers_share_no_randomness(place, server):
    (place / "dice.py").write_text("import random, sys\nprint(random.random(), sys.modules['numpy'].random.rand())")
    made = serve(place, ["dice.py"], "numpy.random")
    try:
        first, second = warm(made, place, ["dice.py"]), warm(made, place, ["dice.py"])
    finally:
        made.close()
    assert first.code == second.code == 0, first.stderr
    assert not set(first.stdout.split()) & set(second.stdout.split())
