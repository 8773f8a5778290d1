"""A host dies before an all-reduce; what the job computes is what it would have computed without that.

Phase A trains one step and saves it. Phase B resumes, and in its second step the first rank of the last host comes to
the all-reduce and dies there, with its agent and the rest of the host. ``spare``: a spare takes the slot, and every bit
is that of a run without a fault. ``shrink``: there is no spare, the job goes on with one host less, then the host comes
back and the job grows again; the order of additions differs, so the results are as near as rounding allows.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

from scenarios import app, compare, dumps, journal, no_failure, receipts, runs
from scenarios.modes import Mode

__all__ = ["LAST", "compare_shrunk", "compare_spared", "run_baseline", "run_shrunk", "run_spared"]

FIRST, FATAL, LAST = 2, 3, 4
"""Steps of phase B: its first, the one in which the host dies, its last."""


def run_baseline(mode: Mode, directory: Path) -> None:
    """Plain torchrun, in one life."""
    no_failure.run_baseline(mode, directory, LAST)


def run_spared(mode: Mode, directory: Path, phase_a: Path | None = None) -> None:
    """One host more than needed stands by.

    Args:
        mode: the topology.
        directory: of the run.
        phase_a: a run whose first step is the one to resume from; made here if there is none.
    """
    _resume(mode, directory, phase_a)
    with runs.cluster(directory) as cluster:
        command = _phase_b(mode, directory)
        runs.start_all(cluster, mode, command, spares=1)
        cluster.await_true((directory / "cue").exists, "the victim is before its all-reduce", runs.DEADLINE)
        receipts.kill_host(cluster, mode.hosts - 1, directory / "receipts", 1, FATAL)
        for index in [*range(mode.hosts - 1), mode.hosts]:
            assert cluster.wait(runs.FIRST_HOST + index, runs.DEADLINE) == 0


def run_shrunk(mode: Mode, directory: Path, phase_a: Path | None = None) -> None:
    """Nobody stands by; the arguments are those of ``run_spared``."""
    last = mode.hosts - 1
    _resume(mode, directory, phase_a)
    with runs.cluster(directory) as cluster:
        begin = functools.partial(
            runs.start,
            cluster,
            mode=mode,
            command=[*_phase_b(mode, directory), f"--hold={LAST}:2"],
            least=last,
            conf="grow=now",
        )
        for index in range(mode.hosts):
            begin(index=index)
        cluster.await_true((directory / "cue").exists, "the victim is before its all-reduce", runs.DEADLINE)
        receipts.kill_host(cluster, last, directory / "receipts", 1, FATAL)
        cluster.await_true((directory / "cue.held").exists, "the others have made the step without it", runs.DEADLINE)
        command = str(Path(sys.executable).with_name("ezpz-elastic"))
        readmit = [command, "hosts", str(cluster.run_dir), "readmit", runs.host_name(last)]
        subprocess.run(readmit, check=True, timeout=runs.DEADLINE)
        begin(index=last)
        for index in range(mode.hosts):
            assert cluster.wait(runs.FIRST_HOST + index, runs.DEADLINE) == 0


def compare_spared(mode: Mode, baseline: Path, target: Path) -> list[str]:
    """Complaints; empty if every bit is the same and the journal tells what happened, and nothing else."""
    last = mode.hosts - 1
    expected = [
        journal.opened(1, range(mode.hosts)),
        journal.decided(1, "bad_node_known", "host_lost", [last]),
        journal.retired(1, last, "lost"),
        journal.opened(2, [*range(last), mode.hosts]),
        journal.admitted(2, mode.hosts, last),
        journal.finished(2),
    ]
    return [
        *compare.identical(_read(baseline), _read(target), range(FIRST, LAST + 1)),
        *journal.differences(target / "run", expected),
        *journal.resumptions(target / "run", {1: FIRST - 1, 2: FATAL - 1}),
        *receipts.missing(target / "receipts", last, 1, FATAL),
        *journal.judged(target / "run"),
        *journal.silent(baseline),
    ]


def compare_shrunk(mode: Mode, baseline: Path, target: Path) -> list[str]:
    """Complaints; before the fault every bit must be the same, from then on all within rounding."""
    last = mode.hosts - 1
    expected = [
        journal.opened(1, range(mode.hosts)),
        journal.decided(1, "bad_node_known", "host_lost", [last]),
        journal.retired(1, last, "lost"),
        journal.opened(2, range(last)),
        journal.readmitted(1, last),
        journal.decided(2, "retryable_unattributed", "unknown"),
        journal.opened(3, range(mode.hosts)),
        journal.admitted(3, last, last),
        journal.finished(3),
    ]
    mine, yours = _read(baseline), _read(target)
    before = {key: dump for key, dump in yours.items() if key.step < FATAL}
    return [
        *compare.identical(mine, before, range(FIRST, FATAL)),
        *compare.alike(mine, yours, range(FIRST, LAST + 1)),
        *_worlds(yours, {FIRST: mode.ranks, FATAL: mode.ranks - mode.per_host, LAST: mode.ranks}),
        *journal.differences(target / "run", expected),
        *journal.resumptions(target / "run", {1: FIRST - 1, 2: FATAL - 1, 3: LAST - 1}),
        *receipts.missing(target / "receipts", last, 1, FATAL),
        *journal.judged(target / "run"),
        *journal.silent(baseline),
    ]


def _phase_b(mode: Mode, directory: Path) -> list[str]:
    victim = (mode.hosts - 1) * mode.per_host
    return runs.trainer(mode, directory, LAST, f"--await-death={FATAL}:{victim}:1", f"--cue={directory / 'cue'}")


def _resume(mode: Mode, directory: Path, phase_a: Path | None) -> None:
    """Put the checkpoint of phase A where phase B looks for one."""
    if phase_a is None:
        phase_a = directory.with_name(f"{directory.name}-phase-a")
        no_failure.run_target(mode, phase_a)
    directory.mkdir(parents=True)
    shutil.copytree(phase_a / "checkpoints" / "step-1", directory / "checkpoints" / "step-1")


def _read(directory: Path) -> dict[dumps.Key, dumps.Dump]:
    return dumps.read(directory / "dumps")


def _worlds(found: dict[dumps.Key, dumps.Dump], expected: dict[int, int]) -> list[str]:
    """Complaints where a step was made by another number of ranks than expected."""
    ranks = {step: len({key.rank for key in found if key.step == step}) for step in expected}
    return [] if ranks == expected else [f"ranks by step are {ranks} instead of {expected}"]


if __name__ == "__main__":
    app.main(
        __doc__,
        {
            "spare": app.Sides(run_baseline, run_spared, compare_spared),
            "shrink": app.Sides(run_baseline, run_shrunk, compare_shrunk),
        },
    )
