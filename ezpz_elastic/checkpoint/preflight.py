"""Is there room? Asked by the coordinator before the first byte, because a refusal then costs nothing."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ezpz_elastic.checkpoint.errors import NoSpace
from ezpz_elastic.checkpoint.lustre import LfsError
from ezpz_elastic.checkpoint.placer import Assignment, Placer
from ezpz_elastic.checkpoint.striping import NoRoom, Ost

__all__ = ["check"]

_log = logging.getLogger(__name__)


def check(
    directory: Path, placer: Placer | None, sizes: Sequence[int], files: int, reclaimable: Callable[[], int]
) -> list[Assignment]:
    """Room for a save, and where it will go.

    Args:
        directory: the checkpoint directory.
        placer: knows the storage targets; ``None`` where there are none to choose from.
        sizes: bytes per rank.
        files: how many files each rank divides them into.
        reclaimable: tells the bytes that keeping only one step would free, for the message.

    Returns:
        A placement per rank; empty ones without a placer.

    Raises:
        NoSpace: the table of what is needed and what there is.
    """
    needed = sum(sizes)

    def refuse(code: int, detail: str) -> NoSpace:
        hint = f"keeping one step only would free {_size(reclaimable())}"
        return NoSpace(code, f"needed {_size(needed)}, {detail}; {hint}", str(directory))

    if placer is None:
        stat = os.statvfs(directory)
        free = stat.f_bavail * stat.f_frsize
        if needed > free:
            raise refuse(errno.ENOSPC, f"free {_size(free)}")
        return [Assignment()] * len(sizes)
    try:
        table = placer.table()
    except LfsError as error:
        _log.warning("lfs does not answer (%s): this save is placed by the file system", error)
        return [Assignment()] * len(sizes)
    quotas = ", ".join(f"{quota.kind} quota left {_size(quota.left or 0)}" for quota in table.quotas) or "no quota"
    for quota in table.quotas:
        if quota.left is not None and needed > quota.left:
            raise refuse(errno.EDQUOT, quotas)
    try:
        return placer.assign(sizes, files, table)
    except NoRoom as full:
        rows = ", ".join(_row(ost) for ost in table.osts)
        raise refuse(errno.ENOSPC, f"of it {_size(full.needed)} in one piece; {rows}; {quotas}") from full


def _row(ost: Ost) -> str:
    return f"OST {ost.index} free {_size(ost.free)}" if ost.active else f"OST {ost.index} inactive"


def _size(value: int) -> str:
    number, units = float(value), ["PiB", "TiB", "GiB", "MiB", "KiB"]
    if value < 1024:
        return f"{value} B"
    number /= 1024
    while number >= 1024 and len(units) > 1:
        number /= 1024
        units.pop()
    return f"{number:.1f} {units[-1]}"
