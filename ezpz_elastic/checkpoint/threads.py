"""Work in a thread of its own, wherever one can be had."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["start"]

_log = logging.getLogger(__name__)


def start(work: Callable[[], None], name: str) -> threading.Thread | None:
    """Run ``work`` in a thread, or here if no thread can be started.

    An interpreter that is ending may start none (in some Pythons from 3.12 on; through ``concurrent.futures`` never),
    nor may a process at its limit; what is being saved is to become durable all the same.

    Args:
        work: what to do; it keeps its own errors.
        name: of the thread.

    Returns:
        The thread, to be joined; ``None`` if the work is done already.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        _log.debug("%s: %s; done in the calling thread", name, error)
        work()
        return None
    return thread
