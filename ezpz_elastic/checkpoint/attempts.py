"""Writing one file again where a storage target fails under it."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from ezpz_elastic.checkpoint.errors import TARGET_ERRNOS, ShardWriteError
from ezpz_elastic.checkpoint.placer import Placer
from ezpz_elastic.checkpoint.striping import NoRoom, Placement

__all__ = ["Attempts"]

_log = logging.getLogger(__name__)

LIMIT = 4


class Attempts:
    """Where one file has been tried and where next.

    Args:
        placer: knows the targets; ``None`` where there are none to choose from.
        path: the file.
        rank: of the writer.
        size: bytes the file will have, about.
        placement: the first place.
        avoid: targets not to use.
    """

    def __init__(
        self, placer: Placer | None, path: Path, rank: int, size: int, placement: Placement, avoid: tuple[int, ...]
    ) -> None:
        self._placer = placer
        self._path = path
        self._rank = rank
        self._size = size
        self._avoid = avoid
        self._count = 0
        self.placement = placement
        self.failed: tuple[int, ...] = ()

    def create(self) -> None:
        """Create the file on its target; nothing where the file system chooses.

        Raises:
            OSError: the target refuses.
        """
        self._count += 1
        if self._placer is not None:
            self.placement = self._placer.create(self._path, self.placement)

    def after(self, error: OSError) -> None:
        """Choose the next place after ``error``.

        Raises:
            ShardWriteError: there is none, or it would not help.
        """
        self._path.unlink(missing_ok=True)
        self.failed = (*self.failed, *self.placement.osts)
        final = ShardWriteError(error, str(self._path), self.failed)
        if error.errno not in TARGET_ERRNOS or self._count >= LIMIT:
            raise final from error
        if self._placer is None:
            # One place only: full stays full, while a broken connection may be back by now.
            if error.errno == errno.ENOSPC or self._count > 1:
                raise final from error
            _log.warning("writing %s again after %s", self._path, error)
            return
        try:
            self.placement = self._placer.another(self._rank, self._size, (*self._avoid, *self.failed))
        except (NoRoom, OSError) as reason:
            _log.warning("no other target for %s: %s", self._path, reason)
            raise final from error
        name, osts = self._path.name, self.placement.osts
        _log.warning("%s failed on OST %s (%s); writing it again on OST %s", name, self.failed[-1:], error, osts)
