"""Refuses to start a run that would not find room: on each storage target where there is ``lfs``, else in all.

    space.py DIRECTORY MEBIBYTES

A file with one stripe lies on one target, so a file system that is 10 % full has no room where that target has none.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ezpz_elastic.checkpoint import lustre
from ezpz_elastic.checkpoint.striping import Ost

__all__ = ["main", "too_full"]

MIB = 1 << 20


def too_full(osts: tuple[Ost, ...], need: int) -> tuple[Ost, ...]:
    """The targets on which ``need`` bytes would not fit, though the file system may choose them."""
    return tuple(ost for ost in osts if ost.active and ost.free < need)


def main(directory: Path, need: int) -> int:
    """Say what room there is; 0 if ``need`` bytes fit wherever they may go."""
    lfs = lustre.find(directory)
    if lfs is None:
        free = shutil.disk_usage(directory).free
        print(f"space: {free // MIB} MiB free in {directory} (df), {need // MIB} MiB needed")
        return 0 if free >= need else 1
    osts = lfs.df(directory)
    for ost in osts:
        state = "" if ost.active else ", inactive"
        print(f"space: OST {ost.index}: {ost.free // MIB} of {ost.total // MIB} MiB free{state}")
    full = too_full(osts, need)
    if full:
        names = ", ".join(str(ost.index) for ost in full)
        print(f"space: no room for {need // MIB} MiB on OST {names} of {directory}", file=sys.stderr)
    return 1 if full else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(float(sys.argv[2]) * MIB)))
