"""torch's handles on a group of worker processes, without the signal handlers that torch installs with them.

Those raise an exception wherever the agent stands. While workers are being started that looks like a failure to start
them, leaves those unknown that are there already, and cuts a talk with the warm server in two.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.elastic.multiprocessing import PContext
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext, SubprocessContext

__all__ = ["QuietContext", "cold_context"]


class QuietContext(PContext):  # type: ignore[misc]  # torch is not followed by mypy
    """A context whose start leaves the handlers of signals as they are."""

    def start(self) -> None:
        """Start the processes."""
        self._start()
        for tail_log in self._tail_logs:
            tail_log.start()


class _Programs(QuietContext, SubprocessContext):  # type: ignore[misc]
    """Workers that are programs."""


class _Functions(QuietContext, MultiprocessContext):  # type: ignore[misc]
    """Workers that are functions of this program (``--run-path``)."""


def cold_context(start_method: str, **arguments: Any) -> QuietContext:
    """What ``torch.distributed.elastic.multiprocessing.start_processes`` makes, not started yet.

    Args:
        start_method: how ``multiprocessing`` starts a function.
        arguments: as ``start_processes`` takes them.
    """
    if isinstance(arguments["entrypoint"], str):
        return _Programs(**arguments)
    return _Functions(start_method=start_method, **arguments)
