"""Surveys this host when the agent starts and at each failure, in a thread, so that nothing waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ezpz_elastic.decide.evidence import HostProbe
from ezpz_elastic.journal import Journal
from ezpz_elastic.ledger import say
from ezpz_elastic.observe.host import SILENT, gone_since, survey

__all__ = ["Health"]

PATIENCE = 5.0
"""Seconds a survey that is under way is waited for at the end; only a run directory that hangs takes longer."""


class Health:
    """One host's health over the run.

    Args:
        host: its name.
        journal: where every survey is written down.
        probes_dir: the user's own probes.
    """

    def __init__(self, host: str, journal: Journal, probes_dir: Path | None) -> None:
        self._host, self._journal, self._probes_dir = host, journal, probes_dir
        self._first: list[HostProbe] = []
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """The survey before joining."""

        def look() -> None:
            self._first = self._survey(0, ())
            for item in self._first:
                if not item.healthy or item.detail.startswith(SILENT):
                    say(f"{item.host}: probe {item.probe}: {item.detail}")

        self._begin(look)

    def failed(self, round_number: int, workers: Sequence[int], report: Callable[[list[HostProbe]], None]) -> None:
        """The survey at a failure; one under way is enough.

        Args:
            round_number: the round that fails.
            workers: pids.
            report: called from the thread with what is unhealthy, if anything is.
        """

        def look() -> None:
            found = gone_since(self._first, self._survey(round_number, workers))
            if found:
                report(found)

        if self._thread is None or not self._thread.is_alive():
            self._begin(look)

    def _begin(self, look: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=look, name="ezpz-health", daemon=True)
        self._thread.start()

    def _survey(self, round_number: int, workers: Sequence[int]) -> list[HostProbe]:
        found = survey(self._host, self._journal.directory, workers, self._probes_dir)
        told = {item.probe: item.detail for item in found}
        unhealthy = [item.probe for item in found if not item.healthy]
        self._journal.write("host_probed", round_number, probes=told, unhealthy=unhealthy)
        return found

    def close(self) -> None:
        """Wait for a survey that is under way, for ``PATIENCE`` seconds at most."""
        if self._thread is not None:
            self._thread.join(PATIENCE)
