"""Carries events that workers wrote (``EZPZ_EVENTS_FILE``) into the host's journal."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ezpz_elastic.journal import Journal

__all__ = ["EventRelay"]

_RESERVED = ("event", "round", "ts", "host", "run_id", "self", "round_number")


class EventRelay:
    """Follows the event files of one round's local workers.

    Args:
        journal: where the events go.
        round_number: the round.
        files: one event file per local rank; a file may not exist.
    """

    def __init__(self, journal: Journal, round_number: int, files: dict[int, Path]) -> None:
        self._journal, self._round, self._files = journal, round_number, files
        self._offsets = dict.fromkeys(files, 0)

    def relay(self) -> None:
        """Carry over every complete line that is new; a line that is no event is left out."""
        for local_rank, path in self._files.items():
            try:
                with path.open("rb") as file:
                    file.seek(self._offsets[local_rank])
                    data = file.read()
            except OSError:
                continue  # not there yet, or its file system is away
            complete = data[: data.rfind(b"\n") + 1]
            self._offsets[local_rank] += len(complete)
            for line in complete.splitlines():
                self._write(line)

    def _write(self, line: bytes) -> None:
        try:
            fields = msgspec.json.decode(line, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        event = fields.get("event")
        if isinstance(event, str):
            rest = {key: value for key, value in fields.items() if key not in _RESERVED}
            self._journal.write(event, self._round, **rest)
