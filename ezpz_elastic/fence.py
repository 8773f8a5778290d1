"""For workers: is my round still the current one? ``CheckpointManager(…, fence=round_fence())``.

The agent of a host that was cut off stops its workers as soon as it sees the store again; until then they run on. What
they must not do meanwhile is commit a checkpoint over that of a newer round. The checkpoint directory's own record of
its writer sees to that wherever the file system is shared; this asks the job's store as well, right before a commit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ezpz_elastic.errors import UsageError
from ezpz_elastic.storefile import find
from rendezvous.fencing import is_current
from rendezvous.stores import StoreRefused, StoreUnavailable

__all__ = ["round_fence"]

logger = logging.getLogger(__name__)


def round_fence(environ: Mapping[str, str] = os.environ) -> Callable[[], bool] | None:
    """A fence for this worker's round.

    Args:
        environ: the worker's environment, with ``EZPZ_RUN_DIR`` and ``EZPZ_ROUND`` from its agent.

    Returns:
        A function that is ``False`` once a decision has ended this round. While the store does not answer it is
        ``True``: an outage stops nobody, and the checkpoint directory has a fence of its own. ``None`` outside of an
        elastic run, and where etcd asks for a password, which no worker has.
    """
    directory, number = environ.get("EZPZ_RUN_DIR", ""), environ.get("EZPZ_ROUND", "")
    if not directory or not number.isdigit():
        return None
    try:
        store, _ = find(Path(directory), dict(environ))
        is_current(store, int(number))
    except StoreUnavailable as error:
        if isinstance(error, StoreRefused):
            logger.info("no fence: %s", error)
            return None
    except UsageError as error:
        logger.info("no fence: %s", error)
        return None

    def current() -> bool:
        try:
            return is_current(store, int(number))
        except StoreUnavailable as error:
            logger.info("whether round %s is over is not known: %s", number, error)
            return True

    return current
