"""The end of the allocation: workers are told in time, may save, and are stopped before the scheduler kills them."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ezpz_elastic import guard
from ezpz_elastic.decide.evidence import Certainty, LogMatch, Role
from ezpz_elastic.decide.verdict import Cause, VerdictKind
from ezpz_elastic.observe import progress

__all__ = ["Walltime", "known_deadline"]

logger = logging.getLogger(__name__)

SAVING = 0.75
"""Part of the margin that workers have to save; the rest is for stopping and for the scheduler's own haste."""


def known_deadline(given: float | None, environment: Mapping[str, str]) -> float | None:
    """When the allocation ends, in seconds since the epoch.

    Args:
        given: by ``--rdzv-conf deadline=…``.
        environment: Slurm tells it in ``SLURM_JOB_END_TIME``.

    Returns:
        ``None`` if nobody tells.
    """
    if given is not None:
        return given
    told = environment.get("SLURM_JOB_END_TIME", "")
    return float(told) if told.isdigit() else None


class Walltime:
    """One agent's eye on the deadline. Each agent reads its own clock; the workers of all hosts save together.

    Args:
        deadline: seconds since the epoch; ``None``: never.
        margin: seconds before it at which workers are told.
        nudge: send SIGUSR1 as well.
        clock: seconds since the epoch.
    """

    def __init__(
        self, deadline: float | None, margin: float, nudge: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._deadline, self._margin, self._nudge, self._clock = deadline, margin, nudge, clock
        self._files: Sequence[Path] = ()
        self._told = False
        self._saved_before: int | None = None

    def begin(self, files: Iterable[Path]) -> None:
        """A round begins, with these progress files."""
        self._files, self._told = list(files), False

    @property
    def told(self) -> bool:
        """Whether the workers of this round have been told."""
        return self._told

    @property
    def nudged(self) -> bool:
        """Whether the workers of this round were sent SIGUSR1."""
        return self._told and self._nudge

    def over(self, running: Iterable[int]) -> bool:
        """Tell the workers when it is time; whether they have to be stopped now.

        That is as soon as a checkpoint has become durable since they were told, or all of them have ended, and at the
        latest when three quarters of the margin are over.

        Args:
            running: pids of the workers that still run.
        """
        if self._deadline is None:
            return False
        left = self._deadline - self._clock()
        if left > self._margin:
            return False
        running = list(running)
        if not self._told:
            self._told, self._saved_before = True, self._saved()
            logger.warning("the allocation ends in %.0f s: the workers are told to save", left)
            for file in self._files:
                try:
                    progress.tell(file)
                except OSError as error:
                    logger.warning("a worker cannot be told: %s", error)
            if self._nudge:
                guard.kill(running, signal.SIGUSR1)
            return False
        return not running or self._saved() != self._saved_before or left <= (1 - SAVING) * self._margin

    def _saved(self) -> int | None:
        return min((step for f in self._files if (step := progress.read(f).durable_step) is not None), default=None)

    def evidence(self, host: str) -> LogMatch:
        """What is reported when the workers are stopped for this."""
        left = 0.0 if self._deadline is None else max(0.0, self._deadline - self._clock())
        return LogMatch(
            signature="agent.walltime",
            emitter="agent",
            cause=Cause.UNKNOWN,
            role=Role.PRIMARY,
            certainty=Certainty.CERTAIN,
            text=f"the allocation ends in {left:.0f} s; the workers on {host} were told to save and are stopped",
            kind=VerdictKind.WALLTIME.value,
            reporter=host,
        )
