"""Facts for the journal, left where the agent looks for them: this package knows nothing of agents.

One JSON object a line in the file that ``EZPZ_EVENTS_FILE`` names; without it, nothing. Only the coordinator of a save
or restore writes, so each fact is there once.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["EVENTS_FILE", "PROGRESS_FILE", "busy", "durable", "tell"]

EVENTS_FILE = "EZPZ_EVENTS_FILE"
PROGRESS_FILE = "EZPZ_PROGRESS_FILE"

_log = logging.getLogger(__name__)


def tell(event: str, **fields: object) -> None:
    """Leave one fact; a file that cannot be written costs a warning and never the save it tells of."""
    path = os.environ.get(EVENTS_FILE)
    if not path:
        return
    line = json.dumps({"event": event, **fields}, default=str) + "\n"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)
    except OSError as error:
        _log.warning("cannot write %s to %s: %s", event, path, error)


def durable(step: int, environ: Mapping[str, str] = os.environ) -> None:
    """Tell this worker's agent that ``step`` survives from now on."""
    if environ.get(PROGRESS_FILE):
        from ezpz_elastic.observe.progress import durable as record

        record(step)


@contextmanager
def busy() -> Iterator[None]:
    """Tell this worker's agent that what it waits for is a checkpoint: it is not hung."""
    if os.environ.get(PROGRESS_FILE):
        from ezpz_elastic.observe.progress import busy as recorded

        with recorded():
            yield
    else:
        yield
