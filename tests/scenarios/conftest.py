"""Runs that several tests compare with, made once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from scenarios import no_failure
from scenarios.modes import Mode

BASELINE_STEPS = 6
"""The longest that any scenario compares."""

Made = Callable[[Mode], Path]


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The fault-free run under plain torchrun, one for all modes that compute the same."""
    make = functools.partial(no_failure.run_baseline, steps=BASELINE_STEPS)
    return _once(make, tmp_path_factory.mktemp("baseline"))


@pytest.fixture(scope="session")
def untroubled(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same under the agent."""
    return _once(no_failure.run_target, tmp_path_factory.mktemp("untroubled"))


def _once(make: Callable[[Mode, Path], None], directory: Path) -> Made:
    made: dict[object, Path] = {}

    def of(mode: Mode) -> Path:
        if mode.computation not in made:
            made[mode.computation] = directory / mode.name
            make(mode, made[mode.computation])
        return made[mode.computation]

    return of
