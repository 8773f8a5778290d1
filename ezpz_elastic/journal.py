"""What people read afterwards: one JSON object a line, ``bad_nodes.txt``, ``active.hostfile``, ``outcome.json``."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec

__all__ = ["Journal", "replace_text"]


class Journal:
    """One host's journal, appended and flushed per event; safe to use from several threads.

    Args:
        directory: the run directory.
        host: whose journal this is.
        run_id: in every line.
    """

    def __init__(self, directory: Path, host: str, run_id: str) -> None:
        self.directory = directory
        self._host, self._run_id = host, run_id
        path = directory / "journal" / f"{host.replace('/', '_')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def write(self, event: str, round_number: int, **fields: object) -> None:
        """Append one event.

        Args:
            event: one of the contract's event names.
            round_number: the round it belongs to.
            fields: the event's own fields; anything msgspec can encode.
        """
        common = {"ts": time.time(), "host": self._host, "run_id": self._run_id, "round": round_number, "event": event}
        line = msgspec.json.encode({**common, **fields}) + b"\n"
        with self._lock:
            self._file.write(line)

    def append_line(self, name: str, line: str) -> None:
        """Append one line to a text file of the run directory, in one write."""
        with self._lock, (self.directory / name).open("ab", buffering=0) as file:
            file.write(line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
