"""Breaking the product on purpose is noticed: each mutant of the table is put into a copy, whose tests then fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from mutation.mutants import MUTANTS, Mutant
from mutation.workshop import Failure, Outcome, Told, break_it, copy_project, judge, run_tests

TESTS = tuple(dict.fromkeys(test for mutant in MUTANTS for test in mutant.tests))
HARMLESS = Mutant(
    "A word in a comment is another one",
    "ezpz_elastic/decide/root.py",
    "clocks are compared",
    "watches are compared",
    ("tests/unit/test_decider.py::test_three_failures_on_three_hosts_use_up_a_budget_of_two",),
    "the tests have nothing to notice here",
)
FAILED = Failure("tests/a.py::test_b", "call", True, "AssertionError: 1 == 2")


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    """Copies are tried two at a time: most of it is the start of an interpreter."""
    made = ThreadPoolExecutor(2)
    yield made
    made.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def unbroken(pool: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> Future[Outcome]:
    """What all the tests say of the product as it is."""
    scratch = tmp_path_factory.mktemp("unbroken")
    return pool.submit(lambda: run_tests(copy_project(scratch / "copy"), TESTS, scratch, patience=600.0))


@pytest.fixture(scope="module")
def broken(
    request: pytest.FixtureRequest, pool: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Future[Outcome]]:
    """What came of each mutant whose test was asked for."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    asked = [item.callspec.params["mutant"] for item in items if "mutant" in item.callspec.params]
    return {mutant.name: pool.submit(tried, mutant, tmp_path_factory.mktemp("mutant")) for mutant in asked}


def tried(mutant: Mutant, scratch: Path) -> Outcome:
    """Break a copy and run what must notice it."""
    project = copy_project(scratch / "copy")
    break_it(project, mutant)
    return run_tests(project, mutant.tests, scratch)


def test_the_unbroken_copy_passes_all_that_must_fail_in_a_broken_one(
    unbroken: Future[Outcome], broken: Mapping[str, Future[Outcome]]
) -> None:
    """Otherwise a test that always fails would catch every mutant."""
    outcome = unbroken.result()
    assert outcome.code == 0, outcome.text
    assert outcome.told.foreign == ()
    assert outcome.told.skipped == ()
    for test in TESTS:
        assert any(node.startswith(test) for node in outcome.told.passed), f"{test} ran no test"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, broken: Mapping[str, Future[Outcome]]) -> None:
    complaint = judge(broken[mutant.name].result())
    assert complaint == "", f"{mutant.name}: {complaint}\nIt matters because {mutant.why}."


def test_the_table_has_enough_mutants_and_no_two_alike() -> None:
    assert len(MUTANTS) >= 12
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


# -- the judge's own negative controls ---------------------------------------------------------------------------------


def test_a_change_that_breaks_nothing_survives(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "copy")
    break_it(project, HARMLESS)
    assert "SURVIVED" in judge(run_tests(project, HARMLESS.tests, tmp_path))


def test_a_copy_that_cannot_be_imported_is_no_catch(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "copy")
    break_it(project, msgspec.structs.replace(HARMLESS, old="__all__ =", new="__all__ = ="))
    outcome = run_tests(project, HARMLESS.tests, tmp_path)
    assert outcome.code != 0
    assert judge(outcome) != ""


def test_a_test_that_is_gone_is_no_catch(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "copy")
    outcome = run_tests(project, ("tests/unit/test_decider.py::test_that_never_was",), tmp_path)
    assert "pytest ended with" in judge(outcome)


def test_a_run_without_an_end_is_no_catch(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "copy")
    assert "no end within" in judge(run_tests(project, HARMLESS.tests, tmp_path, patience=0.01))


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(1, Told(failures=(FAILED,))), ""),
        (Outcome(1, Told(failures=(msgspec.structs.replace(FAILED, asserted=False),))), "before any assertion"),
        (Outcome(1, Told(failures=(msgspec.structs.replace(FAILED, when="setup"),))), "before any assertion"),
        (Outcome(1, Told()), "before any assertion"),
        (Outcome(1, Told(failures=(FAILED,), foreign=("rendezvous from /elsewhere",))), "not run against the copy"),
        (Outcome(2, Told(failures=(FAILED,))), "pytest ended with 2"),
        (Outcome(4, Told()), "pytest ended with 4"),
        (Outcome(5, Told()), "pytest ended with 5"),
        (Outcome(None, Told()), "pytest ended with None"),
        (Outcome(0, Told(passed=("tests/a.py::test_b",))), "SURVIVED"),
    ],
)
def test_only_a_failed_assertion_is_a_catch(outcome: Outcome, said: str) -> None:
    assert (judge(outcome) == "") == (said == "")
    assert said in judge(outcome)


@pytest.mark.parametrize("old", ["this text is nowhere", "finding"])
def test_a_mutant_that_does_not_fit_the_product_any_more_is_told_loudly(old: str, tmp_path: Path) -> None:
    project = copy_project(tmp_path)
    with pytest.raises(AssertionError, match=r"has \d+ times what"):
        break_it(project, msgspec.structs.replace(HARMLESS, old=old))


def test_a_mutant_that_changes_nothing_is_told_loudly(tmp_path: Path) -> None:
    project = copy_project(tmp_path)
    with pytest.raises(AssertionError, match="changes nothing"):
        break_it(project, msgspec.structs.replace(HARMLESS, new=HARMLESS.old))
