"""Random faults until there were enough of them: each is seen, understood and survived, and no healthy host is lost.

``python -m scenarios.random_faults --seed 1 --injections 20 --dump-dir DIR``
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from scenarios import journal, runs
from scenarios.injector import Injection, Injector, unwitnessed
from scenarios.modes import THREE, Mode
from scenarios.schedule import KINDS, SILENT, Plan, draw

__all__ = ["FURTHER", "INJECTIONS", "SPARES", "compare_run", "run_target"]

INJECTIONS = 8
"""Faults, at least."""

FURTHER = 5
"""Steps after the last recovery, at least."""

SPARES = 3

MEAN_GAP = 0.3
"""Seconds between a recovery and the next fault, on average."""

_ENDLESS = 1_000_000


def run_target(directory: Path, plans: list[Plan], mode: Mode = THREE, conf: str = "hang_timeout=0") -> list[Injection]:
    """Run the job and do everything of the schedule to it.

    Args:
        directory: of the run.
        plans: the schedule.
        mode: the topology.
        conf: more of ``--rdzv-conf``.

    Returns:
        what was done.
    """
    done: list[Injection] = []
    with runs.cluster(directory) as cluster:
        faults = directory / "faults"
        command = runs.trainer(mode, directory, _ENDLESS, f"--faults={faults}", "--keep-last=3", dumps=False)
        runs.start_all(cluster, mode, command, SPARES, conf=conf)
        injector = Injector(cluster, mode, faults)
        saved = injector.await_saved(1, 0)
        names = [runs.host_name(index) for index in range(mode.hosts + SPARES)]
        for plan in plans:
            time.sleep(plan.gap)
            done.append(injector.inject(plan))
            saved = injector.await_recovery(done[-1])
        injector.finish(saved + FURTHER)
        gone = {injection.host for injection in done if injection.kind in {"host_loss", "agent_loss"}}
        for index, name in enumerate(names):
            if name not in gone:
                assert cluster.wait(runs.FIRST_HOST + index, runs.DEADLINE) == 0
    return done


def compare_run(directory: Path, done: list[Injection], without: tuple[str, ...] = ()) -> list[str]:
    """Complaints; empty if every fault has its witnesses and the run is in order."""
    from ezpz_elastic.demo.story import Journals

    events = Journals(directory / "run").poll()
    last = max((e.fields["step"] for e in events if e.name == "checkpoint_saved"), default=0)
    recovered = max((injection.step for injection in done), default=0)
    complaints = unwitnessed(done, events)
    if last < recovered + FURTHER:
        complaints.append(f"the last step is {last} and the last fault fell on {recovered}")
    if not any(e.name == "finished" and e.fields["kind"] == "success" for e in events):
        complaints.append("the job did not end in success")
    return [*complaints, *journal.judged(directory / "run", without)]


def main() -> None:
    """Run as the command line says; exit code 1 if something was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--injections", type=int, default=INJECTIONS)
    parser.add_argument("--kinds", type=lambda text: tuple(text.split(",")), default=KINDS)
    parser.add_argument("--mean-gap", type=float, default=MEAN_GAP, help="seconds")
    parser.add_argument("--dump-dir", type=Path, required=True)
    options = parser.parse_args()
    plans = draw(options.seed, options.kinds, options.injections, SPARES, options.mean_gap)
    conf = "hang_timeout=15" if set(options.kinds) & set(SILENT) else "hang_timeout=0"
    done = run_target(options.dump_dir.absolute(), plans, conf=conf)
    for injection in done:
        print(f"round {injection.round}: {injection.kind} at {injection.host}, after step {injection.step}")
    complaints = compare_run(options.dump_dir.absolute(), done)
    print("\n".join(complaints) or f"{len(done)} faults, each seen, understood and survived")
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
