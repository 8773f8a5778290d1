"""What people read afterwards: one JSON object a line, ``bad_nodes.txt``, ``active.hostfile``, ``outcome.json``."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

__all__ = ["Journal"]

logger = logging.getLogger(__name__)


class Journal:
    """One host's side of the run directory, appended and flushed per event; safe to use from several threads.

    A disk that cannot be written loses events, never the job: that is told once, and once more when it is over.

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
        self._lost = 0

    def write(self, event: str, round_number: int, **fields: object) -> None:
        """Append one event.

        Args:
            event: one of the contract's event names.
            round_number: the round it belongs to.
            fields: the event's own fields; anything msgspec can encode.
        """
        common = {"ts": time.time(), "host": self._host, "run_id": self._run_id, "round": round_number, "event": event}
        line = msgspec.json.encode({**common, **fields}) + b"\n"
        with self._lock, self._kept():
            # After a write that failed half-way, a line end first: what is broken stays one line.
            self._file.write(b"\n" + line if self._lost else line)

    def span(self, round_number: int, name: str, seconds: float) -> None:
        """Append how long a part of a recovery took."""
        self.write("span", round_number, name=name, seconds=round(seconds, 6))

    def append_line(self, name: str, line: str) -> None:
        """Append one line to a text file of the run directory, in one write."""
        with self._lock, self._kept(), (self.directory / name).open("ab", buffering=0) as file:
            file.write(line.encode() + b"\n")

    def replace(self, name: str, text: str) -> None:
        """Write a file of the run directory so that a reader sees the old text or the new one, never half of it."""
        path = self.directory / name
        temporary = path.with_name(f".{name}.{os.getpid()}")
        with self._lock, self._kept():
            temporary.write_text(text)
            temporary.replace(path)

    def create(self, name: str, text: str) -> bool:
        """Write a file of the run directory, whole, unless it is there. Returns whether this call has written it."""
        path = self.directory / name
        temporary = path.with_name(f".{name}.{os.getpid()}")
        with self._lock, self._kept():
            temporary.write_text(text)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            finally:
                temporary.unlink()
            return True
        return False

    def remove(self, name: str) -> None:
        """Remove a file of the run directory, if it is there."""
        with self._lock, self._kept():
            (self.directory / name).unlink(missing_ok=True)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._lost:
                logger.warning("cannot write to %s: %s; the job goes on, events are lost", self.directory, error)
            self._lost += 1
        else:
            if self._lost:
                logger.warning("%s can be written again; %d events were lost", self.directory, self._lost)
            self._lost = 0

    def close(self) -> None:
        """Close the file. A file system may tell only now that it has not taken what it was given."""
        try:
            self._file.close()
        except OSError as error:
            logger.warning("cannot write to %s: %s; events may be lost", self.directory, error)
