"""The launcher's own console log as a further witness: what ``mpiexec``, ``srun`` and the scheduler say of hosts."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from ezpz_elastic.decide.evidence import LogMatch, Role
from ezpz_elastic.observe.logs import scan_since

__all__ = ["LauncherLog"]

logger = logging.getLogger(__name__)

LOG_BYTES = 16 << 20
"""How much of the log's end is searched at a failure: the output of all workers may pass through it."""

MOST = 24
"""Matched lines reported at once."""

_OF_WORKERS = frozenset({"python", "torch", "gloo", "nccl", "cuda", "xpu", "storage"})
"""Emitters that speak in workers' output. Agents have that first hand, with rank and host."""

_OURS = "[ezpz]"


class LauncherLog:
    """A log that something else writes while the job runs.

    Args:
        path: the log; it need not exist. ``None``: there is none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._from = path, 0

    def begin(self) -> None:
        """A round begins: what the log says up to here is about earlier ones."""
        self._from = self._size()

    def news(self) -> tuple[LogMatch, ...]:
        """What the launcher has said since the last call or the beginning of the round.

        Its ranks are agents, one on each host, and no ranks of the job: only hosts it names are taken over.
        """
        size = self._size()
        if self._path is None or size == self._from:
            return ()
        start = max(self._from if size > self._from else 0, size - LOG_BYTES)  # a log that has shrunk began anew
        try:
            found = scan_since(self._path, start)
        except OSError as error:
            logger.warning("cannot read %s: %s", self._path, error)
            return ()
        self._from = size
        told = [
            msgspec.structs.replace(match, rank=None, task=None, tasks="")
            for match in found
            if match.emitter not in _OF_WORKERS and match.role is not Role.BENIGN and _OURS not in match.text
        ]
        return tuple(told if len(told) <= MOST else told[: MOST // 2] + told[-MOST // 2 :])

    def _size(self) -> int:
        try:
            return self._path.stat().st_size if self._path is not None else 0
        except OSError:
            return 0
