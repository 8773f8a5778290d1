"""The command line that all comparing scenarios share: ``run``, one side alone, or ``compare`` what is there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from scenarios.dumps import Unreadable
from scenarios.modes import MODES, Mode

__all__ = ["Sides", "main"]


class Sides(NamedTuple):
    """What a scenario consists of.

    Args:
        baseline: makes the side without a fault, in a directory that does not exist yet.
        target: makes the other side.
        compare: mode, baseline and target -> complaints.
    """

    baseline: Callable[[Mode, Path], None]
    target: Callable[[Mode, Path], None]
    compare: Callable[[Mode, Path, Path], list[str]]


def main(about: str | None, variants: Mapping[str, Sides]) -> None:
    """Run what the command line asks for; exit code 1 if the comparison complains.

    Args:
        about: the scenario's own docstring.
        variants: by name; one without a name is not asked for.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("what", choices=("run", "baseline", "target", "compare"))
    parser.add_argument("--mode", choices=sorted(MODES), required=True)
    parser.add_argument("--dump-dir", type=Path, required=True)
    names = list(variants)
    if len(names) > 1:
        parser.add_argument("--variant", choices=names, default=names[0])
    options = parser.parse_args()
    mode, directory = MODES[options.mode], options.dump_dir.absolute()
    sides = variants[getattr(options, "variant", names[0])]
    if options.what in {"run", "baseline"}:
        sides.baseline(mode, directory / "baseline")
    if options.what in {"run", "target"}:
        sides.target(mode, directory / "target")
    if options.what in {"run", "compare"}:
        try:
            complaints = sides.compare(mode, directory / "baseline", directory / "target")
        except Unreadable as error:
            complaints = [str(error)]
        for line in complaints:
            print(line)
        print(f"{len(complaints)} complaints" if complaints else "the same")
        sys.exit(bool(complaints))
