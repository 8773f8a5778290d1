"""A stop and a restart at the same step, on a cold start and from a checkpoint made after a recovery: every bit equal.

Each phase trains three steps; in the third a worker is killed before the all-reduce, and the job restarts in place.
Phase ``a`` starts from nothing. Phase ``b`` resumes from what phase ``a`` saved after its recovery. The baseline is one
uninterrupted run of both.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from scenarios import app, compare, dumps, journal, no_failure, runs
from scenarios.modes import Mode

__all__ = ["CONTROLS", "PHASE", "compare_controls", "compare_phases", "run_baseline", "run_controls", "run_phases"]

PHASE = 3
"""Steps of each phase; the last of them is the one that is interrupted."""

CONTROLS = {
    "optimizer": "optim.",
    "optimizer_steps": "optimizer_steps",
    "schedule": "next_lr",
    "rng": "rng",
    "stream": "stream",
    "position": "position",
    "grad_norm": "norm_average",
}
"""What is left out of the checkpoint -> what a comparison must then complain of."""

_SAVED = 2
"""The step from which every control resumes."""


def run_baseline(mode: Mode, directory: Path) -> None:
    """Plain torchrun, both phases in one life."""
    no_failure.run_baseline(mode, directory, 2 * PHASE)


def run_phases(mode: Mode, directory: Path) -> None:
    """Both phases, one job each."""
    _phase(mode, directory / "a", PHASE)
    last = f"step-{PHASE}"
    shutil.copytree(directory / "a" / "checkpoints" / last, directory / "b" / "checkpoints" / last)
    _phase(mode, directory / "b", 2 * PHASE)


def compare_phases(mode: Mode, baseline: Path, target: Path) -> list[str]:
    """Complaints; empty if every bit of both phases is that of the uninterrupted run."""
    complaints = journal.silent(baseline)
    for phase, first in (("a", 1), ("b", PHASE + 1)):
        directory, last = target / phase, first + PHASE - 1
        story = [
            journal.opened(1, range(mode.hosts)),
            journal.decided(1, "retryable_unattributed", "worker_killed"),
            journal.opened(2, range(mode.hosts)),
            journal.finished(2),
        ]
        resumed = {2: last - 1} if phase == "a" else {1: first - 1, 2: last - 1}
        complaints += compare.identical(_read(baseline), _read(directory), range(first, last + 1))
        complaints += journal.differences(directory / "run", story)
        complaints += journal.killed(directory / "run", [(1, _victim(mode))])
        complaints += journal.resumptions(directory / "run", resumed)
        complaints += journal.judged(directory / "run")
    return complaints


def run_controls(mode: Mode, directory: Path) -> None:
    """One job that resumes from the same step again and again, each time without another part of its checkpoint.

    Round 1 makes the checkpoint. Each of the next rounds drops one part, makes one step, and is killed in the one
    after. The last round drops nothing.
    """
    victim, rounds = _victim(mode), len(CONTROLS) + 2
    deaths = [(_SAVED + 1, 1), *((_SAVED + 2, number) for number in range(2, rounds))]
    kills = [f"--kill={step}:{victim}:{number}" for step, number in deaths]
    command = runs.trainer(mode, directory, _SAVED + 1, f"--controls={','.join(CONTROLS)}", *kills)
    _run(mode, directory, command, restarts=rounds)


def compare_controls(mode: Mode, baseline: Path, target: Path) -> dict[str, list[str]]:
    """What the comparison says to each control, and under ``""`` what it says to the round that dropped nothing."""
    mine, yours = _read(baseline), _read(target)
    rounds = dict(enumerate([*CONTROLS, ""], start=2))
    steps = range(_SAVED + 1, _SAVED + 2)
    told = {}
    for number, part in rounds.items():
        made = {key: dump for key, dump in yours.items() if key.round == number}
        told[part] = compare.identical(mine, made, steps)
    told[""] += journal.killed(target / "run", [(number, _victim(mode)) for number in range(1, len(rounds) + 1)])
    told[""] += journal.resumptions(target / "run", dict.fromkeys(rounds, _SAVED))
    return told


def _phase(mode: Mode, directory: Path, last: int) -> None:
    _run(mode, directory, runs.trainer(mode, directory, last, f"--kill={last}:{_victim(mode)}:1"), restarts=3)


def _run(mode: Mode, directory: Path, command: list[str], restarts: int) -> None:
    with runs.cluster(directory) as cluster:
        for index in range(mode.hosts):
            runs.start(cluster, index, mode, command, restarts=restarts)
        for index in range(mode.hosts):
            assert cluster.wait(runs.FIRST_HOST + index, runs.DEADLINE) == 0


def _victim(mode: Mode) -> int:
    return (mode.hosts - 1) * mode.per_host


def _read(directory: Path) -> dict[dumps.Key, dumps.Dump]:
    return dumps.read(directory / "dumps")


if __name__ == "__main__":
    app.main(__doc__, {"": app.Sides(run_baseline, run_phases, compare_phases)})
