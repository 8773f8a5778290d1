"""Between the plan of a save and Lustre: who goes where, and what to do when a target fails under a shard."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ezpz_elastic.checkpoint import striping
from ezpz_elastic.checkpoint.durable import CREATE_LIMIT
from ezpz_elastic.checkpoint.errors import TARGET_ERRNOS
from ezpz_elastic.checkpoint.lustre import Lfs, find
from ezpz_elastic.checkpoint.lustre_text import Quota
from ezpz_elastic.checkpoint.striping import Ost, Placement, Policy
from ezpz_elastic.errors import UsageError

__all__ = ["Assignment", "Placer", "Table", "check_striping", "estimate", "estimate_items", "placer_for"]

_log = logging.getLogger(__name__)


class Table(msgspec.Struct, frozen=True):
    """What the file system said at one moment.

    Args:
        osts: its targets.
        quotas: the limits that apply.
    """

    osts: tuple[Ost, ...]
    quotas: tuple[Quota, ...] = ()


class Assignment(msgspec.Struct, frozen=True):
    """One rank's part of a placement.

    Args:
        shards: a placement per file of this rank.
        control: for the coordinator's own small files, one after the other if one fails.
        avoid: targets that were left out because they failed before.
    """

    shards: tuple[Placement, ...] = ()
    control: tuple[Placement, ...] = ()
    avoid: tuple[int, ...] = ()


class Placer:
    """Places the files of one directory.

    Args:
        directory: the checkpoint directory.
        lfs: how to ask.
        policy: how to place.
        pool: only this pool's targets.
    """

    def __init__(self, directory: Path, lfs: Lfs, policy: Policy, pool: str = "") -> None:
        self._directory = directory
        self._lfs = lfs
        self._policy = policy
        self._pool = pool
        self._failed: frozenset[int] = frozenset()
        self._complained = False

    def table(self) -> Table:
        """Ask the file system.

        Raises:
            LfsError: it does not answer.
        """
        existing = self._directory if self._directory.exists() else self._directory.parent
        return Table(self._lfs.df(existing, self._pool), self._lfs.quotas(existing))

    def remember(self, failed: Iterable[int]) -> None:
        """Targets that failed during the last save; they are left out of the next one and then forgiven."""
        self._failed = frozenset(failed)

    def assign(self, sizes: Sequence[int], files: int, table: Table) -> list[Assignment]:
        """A placement for every rank.

        Args:
            sizes: bytes per rank.
            files: how many files each rank divides its bytes into.
            table: from ``table``.

        Raises:
            striping.NoRoom: some shard fits nowhere.
        """
        parts = [-(-size // files) for size in sizes for _ in range(files)]
        try:
            placed = striping.place(parts, table.osts, self._policy, self._failed)
            avoid = self._failed
        except striping.NoRoom:
            if not self._failed:
                raise
            # Better a target that failed once than no checkpoint.
            placed, avoid = striping.place(parts, table.osts, self._policy), frozenset()
        control = striping.healthy(table.osts, self._policy, avoid)[:CREATE_LIMIT]
        return [
            Assignment(placed[rank * files : (rank + 1) * files], control, tuple(sorted(avoid)))
            for rank in range(len(sizes))
        ]

    def control(self) -> tuple[Placement, ...]:
        """Where a small file of ours can go now; nowhere in particular if the file system does not tell."""
        try:
            return striping.healthy(self.table().osts, self._policy, self._failed)[:CREATE_LIMIT]
        except (OSError, striping.NoRoom) as error:
            self._complain(f"cannot choose a target for a small file: {error}")
            return ()

    def another(self, rank: int, size: int, avoid: Sequence[int]) -> Placement:
        """Another place for a shard whose target failed.

        Raises:
            striping.NoRoom: there is none.
            LfsError: the file system does not answer.
        """
        return striping.replacement(rank, size, self._lfs.df(self._directory, self._pool), self._policy, avoid)

    def create(self, path: Path, placement: Placement) -> Placement:
        """Create ``path`` on its target, before anybody opens it.

        Returns:
            Where it is; nowhere in particular if ``lfs`` itself failed, which leaves the choice to the file system.

        Raises:
            OSError: the target refuses, with the errno it refused with.
        """
        if not placement.osts:
            return placement
        path.unlink(missing_ok=True)
        try:
            self._lfs.setstripe(path, placement, self._pool)
        except OSError as error:
            if error.errno in TARGET_ERRNOS:
                raise
            self._complain(f"cannot place {path}: {error}")
            return Placement()
        return placement

    def create_control(self, path: Path, places: Sequence[Placement], attempt: int) -> None:
        """Like ``create`` for a small file, on the ``attempt``-th of ``places``; if none, the file system chooses."""
        if attempt < len(places):
            self.create(path, places[attempt])

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("%s; said once", what)


def placer_for(directory: Path, striping_: str | int, policy: Policy | None = None) -> Placer | None:
    """The placer for a directory; ``None`` where it is not on Lustre or placing is off.

    Args:
        directory: the checkpoint directory; need not exist yet.
        striping_: ``"auto"``, ``"off"`` or a stripe count.
        policy: how to place; the default policy if ``None``.

    Raises:
        UsageError: ``striping_`` is none of these.
    """
    check_striping(striping_)
    if striping_ == "off":
        return None
    lfs = find(directory)
    if lfs is None:
        return None
    chosen = policy or Policy()
    if isinstance(striping_, int):
        chosen = msgspec.structs.replace(chosen, count=striping_)
    return Placer(directory, lfs, chosen, _pool_of(directory, lfs))


def _pool_of(directory: Path, lfs: Lfs) -> str:
    """The pool that the directory's default layout names: the site's word on where files of this kind belong."""
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        default = lfs.getstripe(existing)
    except OSError as error:
        _log.warning("cannot read the default layout of %s (%s): no pool is assumed", existing, error)
        return ""
    return default.pool if default is not None else ""


def check_striping(striping_: str | int) -> None:
    """Raise ``UsageError`` unless ``striping_`` is ``"auto"``, ``"off"`` or a stripe count."""
    if striping_ in ("auto", "off"):
        return
    if isinstance(striping_, bool) or not isinstance(striping_, int) or striping_ < 1:
        raise UsageError(f"striping is {striping_!r}", expected='"auto", "off" or a stripe count of at least 1')


def estimate(plan: Any) -> int:
    """Bytes a rank's files will have, about and rather too many."""
    return estimate_items(plan.items)


def estimate_items(items: Sequence[Any]) -> int:
    """Bytes a file with these items will have, about and rather too many.

    A tensor's archive adds about 1.5 KiB; values that are no tensors are not known before they are pickled, and small.
    """
    total = 1 << 12
    for item in items:
        total += 1 << 11
        if item.tensor_data is not None:
            chunk = int(item.tensor_data.properties.dtype.itemsize)
            for extent in item.tensor_data.chunk.sizes:
                chunk *= int(extent)
            total += chunk
    return total
