"""A pytest plugin for the runs in a copy: which tests passed, what failed and how, and whose modules were tested."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

PACKAGES = ("ezpz_elastic", "rendezvous")


class Witness:
    """Collects, and writes it all down at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[str, list[object]] = {"passed": [], "skipped": [], "failures": []}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of a test is over."""
        if report.skipped:
            self._told["skipped"].append(report.nodeid)
        elif report.passed and report.when == "call":
            self._told["passed"].append(report.nodeid)

    def pytest_exception_interact(
        self, call: pytest.CallInfo[object], report: pytest.TestReport | pytest.CollectReport
    ) -> None:
        """Something went wrong: an assertion, or anything else."""
        assert call.excinfo is not None
        self._told["failures"].append(
            {
                "node": report.nodeid,
                "when": report.when or "collect",
                "asserted": issubclass(call.excinfo.type, (AssertionError, pytest.fail.Exception)),
                "text": f"{call.excinfo.typename}: {call.excinfo.value}".splitlines()[0][:300],
            }
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The end: say where the product's modules came from, too."""
        here = session.config.rootpath
        foreign = [
            f"{name} from {file}"
            for name, module in sorted(sys.modules.items())
            if name.partition(".")[0] in PACKAGES
            and (file := getattr(module, "__file__", None)) is not None
            and not Path(file).is_relative_to(here)
        ]
        self._path.write_text(json.dumps({**self._told, "foreign": foreign}))


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest."""
    config.pluginmanager.register(Witness(Path(os.environ["MUTATION_WITNESS"])))
