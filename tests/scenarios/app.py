"""The command line that all scenarios share: ``run``, or one side alone, or the comparison of dumps that are there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from scenarios.dumps import Unreadable
from scenarios.modes import MODES, Mode

__all__ = ["main"]


def main(
    about: str | None,
    run_baseline: Callable[[Mode, Path], None],
    run_target: Callable[[Mode, Path], None],
    compare_runs: Callable[[Mode, Path, Path], list[str]],
    modes: dict[str, Mode] = MODES,
) -> None:
    """Run what the command line asks for; exit code 1 if the comparison complains.

    Args:
        about: the scenario's own docstring.
        run_baseline, run_target: make one side in a directory that does not exist yet.
        compare_runs: mode, baseline and target -> complaints.
        modes: what can be chosen.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("what", choices=("run", "baseline", "target", "compare"))
    parser.add_argument("--mode", choices=sorted(modes), required=True)
    parser.add_argument("--dump-dir", type=Path, required=True)
    options = parser.parse_args()
    mode, directory = modes[options.mode], options.dump_dir.absolute()
    if options.what in {"run", "baseline"}:
        run_baseline(mode, directory / "baseline")
    if options.what in {"run", "target"}:
        run_target(mode, directory / "target")
    if options.what in {"run", "compare"}:
        try:
            complaints = compare_runs(mode, directory / "baseline", directory / "target")
        except Unreadable as error:
            complaints = [str(error)]
        for line in complaints:
            print(line)
        print(f"{len(complaints)} complaints" if complaints else "the same")
        sys.exit(bool(complaints))
