"""Without a fault the agent changes nothing: every bit is what plain torchrun gives; the journal shows one round."""

from __future__ import annotations

from pathlib import Path

from scenarios import app, compare, dumps, journal, runs
from scenarios.modes import Mode

__all__ = ["STEPS", "compare_runs", "run_baseline", "run_target"]

STEPS = 3


def run_baseline(mode: Mode, directory: Path, steps: int = STEPS) -> None:
    """Plain torchrun."""
    runs.baseline(mode, directory, steps)


def run_target(mode: Mode, directory: Path) -> None:
    """The agent."""
    with runs.cluster(directory) as cluster:
        command = runs.trainer(mode, directory, STEPS)
        for index in range(mode.hosts):
            runs.start(cluster, index, mode, command)
        for index in range(mode.hosts):
            assert cluster.wait(runs.FIRST_HOST + index, runs.DEADLINE) == 0


def compare_runs(mode: Mode, baseline: Path, target: Path) -> list[str]:
    """Complaints; empty if the two are the same."""
    expected = [journal.opened(1, range(mode.hosts)), journal.finished(1)]
    return [
        *compare.identical(dumps.read(baseline / "dumps"), dumps.read(target / "dumps"), range(1, STEPS + 1)),
        *journal.differences(target / "run", expected),
        *journal.judged(target / "run", without=("spans",)),  # nothing was recovered from
        *journal.silent(baseline),
    ]


if __name__ == "__main__":
    app.main(__doc__, {"": app.Sides(run_baseline, run_target, compare_runs)})
