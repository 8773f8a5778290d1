"""Runs that several tests compare with, made once."""

from __future__ import annotations

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
    made: dict[object, Path] = {}

    def of(mode: Mode) -> Path:
        if mode.computation not in made:
            directory = tmp_path_factory.mktemp("baseline") / mode.name
            no_failure.run_baseline(mode, directory, BASELINE_STEPS)
            made[mode.computation] = directory
        return made[mode.computation]

    return of


@pytest.fixture(scope="session")
def untroubled(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same under the agent."""
    made: dict[object, Path] = {}

    def of(mode: Mode) -> Path:
        if mode.computation not in made:
            directory = tmp_path_factory.mktemp("untroubled") / mode.name
            no_failure.run_target(mode, directory)
            made[mode.computation] = directory
        return made[mode.computation]

    return of
