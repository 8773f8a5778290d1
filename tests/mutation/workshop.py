"""A copy of the project with one thing broken in it, and what the tests in that copy say.

A mutant is caught only by a failed assertion of a test that was meant to notice it. A copy that cannot be imported, a
test that no longer exists, a run without an end: none of these says that the suite would notice such a mistake.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import msgspec
from mutation.mutants import Mutant
from support.forked import Program, fork

__all__ = ["Outcome", "break_it", "copy_project", "judge", "run_tests"]

ROOT = Path(__file__).parents[2]

RUNNER = Path(__file__).with_name("in_a_copy.py")

LIBRARIES = ("torch.distributed.tensor", "hypothesis", "hyperscan", "numpy.random")
"""What the tests import of others, but not what loads our plugin: each copy has its own."""

PATIENCE = 120.0
"""Seconds for one mutant's tests; the slowest selection takes a few."""


class Failure(msgspec.Struct, frozen=True):
    """One thing that went wrong in a copy.

    Args:
        node: the test's id; of the file, where it could not be collected.
        when: ``collect``, ``setup``, ``call`` or ``teardown``.
        asserted: whether it was a failed assertion, and not an exception on the way to one.
        text: the first line of what it said.
    """

    node: str
    when: str
    asserted: bool
    text: str


class Told(msgspec.Struct, frozen=True):
    """What ``mutation_witness`` saw from inside pytest.

    Args:
        passed: ids of tests that passed.
        skipped: ids of tests that were skipped.
        failures: everything that went wrong.
        foreign: modules of the product that were imported from anywhere but the copy.
    """

    passed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    foreign: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """How the tests in a copy ended.

    Args:
        code: pytest's exit code; ``None`` if it did not end in time.
        told: the witness's word.
        text: pytest's own output.
    """

    code: int | None
    told: Told
    text: str = ""


def copy_project(target: Path) -> Path:
    """Copy what the tests need, but neither these tests nor anything compiled."""
    skip = shutil.ignore_patterns("__pycache__", "mutation", ".hypothesis", ".pytest_cache")
    for name in ("ezpz_elastic", "rendezvous", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, target / name, ignore=skip)
    shutil.copy2(ROOT / "pyproject.toml", target / "pyproject.toml")
    return target


def break_it(project: Path, mutant: Mutant) -> None:
    """Put the mistake in.

    Raises:
        AssertionError: the product has changed so that the mutant no longer describes a mistake in it.
    """
    path = project / mutant.file
    text = path.read_text()
    found = text.count(mutant.old)
    assert found == 1, f"{mutant.file} has {found} times what {mutant.name!r} replaces:\n{mutant.old}"
    assert mutant.old != mutant.new, f"{mutant.name!r} changes nothing"
    path.write_text(text.replace(mutant.old, mutant.new))


def run_tests(project: Path, tests: tuple[str, ...], scratch: Path, patience: float = PATIENCE) -> Outcome:
    """Run some of a copy's tests against that copy, in a process of its own, until the first failure.

    Args:
        project: the copy.
        tests: what to run, as pytest takes it.
        scratch: an existing directory for its temporary files.
        patience: seconds.
    """
    told = scratch / "told.json"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(project), str(RUNNER.parent)])
    environ["MUTATION_WITNESS"] = str(told)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "mutation_witness", f"--basetemp={scratch / 'tmp'}"]
    output = scratch / "output"
    with output.open("wb") as file:
        done = fork([str(RUNNER), *options, *tests], project, environ, file, LIBRARIES)
    try:
        done.wait(patience)
    except subprocess.TimeoutExpired as error:
        return Outcome(None, Told(), f"no end within {error.timeout:g} s")
    finally:
        _end(done)
    seen = msgspec.json.decode(told.read_bytes(), type=Told) if told.exists() else Told()
    return Outcome(done.returncode, seen, output.read_text(errors="replace"))


def _end(run: Program) -> None:
    """End what is left of a run: a test that fails in its middle leaves its processes behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def judge(outcome: Outcome) -> str:
    """Why this is no catch; empty if the tests caught the mutant."""
    if outcome.told.foreign:
        return f"the tests did not run against the copy: {', '.join(outcome.told.foreign[:3])}"
    if outcome.code == 0:
        return "SURVIVED: the tests that must notice it all passed"
    if outcome.code != 1:
        return f"pytest ended with {outcome.code}: {outcome.text[-1500:]}"
    if not any(failure.asserted and failure.when == "call" for failure in outcome.told.failures):
        return f"something broke before any assertion could fail: {outcome.told.failures}"
    return ""
