"""A control group for each worker, where this user may make one.

What a worker starts stays in its group, whatever it does to its environment, session or parent. Where there are no
control groups to be had, the tag in the environment and the worker's session are what its processes are known by.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import psutil

from ezpz_elastic import guard
from ezpz_elastic.observe.cgroup import UNIFIED, directories

__all__ = ["WorkerGroups"]

logger = logging.getLogger(__name__)

_OLD = ("pids", "freezer")
"""Hierarchies of version 1 in which a group of its own changes nothing for a process."""


class WorkerGroups:
    """The control groups of one agent's workers.

    Args:
        tag: the agent's tag; names the groups.
        root: of the file system, for tests.

    Attributes:
        directory: holds the groups; ``None`` where there are none.
    """

    def __init__(self, tag: str, root: Path = Path("/")) -> None:
        self.directory: Path | None = None
        own = directories(root=root)
        # Where both versions are mounted, the second one can kill a whole group at once.
        for name in (UNIFIED, *_OLD):
            if name not in own:
                continue
            candidate = own[name] / f"ezpz-{os.getpid()}-{tag}"
            try:
                _sweep(own[name])
                candidate.mkdir()
            except OSError as error:
                logger.debug("no control group in %s: %s", own[name], error)
                continue
            self.directory = candidate
            return

    def entrance(self, local_rank: int) -> Path | None:
        """The file by which a process enters a worker's group, made if need be; ``None`` where there are no groups.

        Args:
            local_rank: names the group.
        """
        if self.directory is None:
            return None
        group = self.directory / str(local_rank)
        try:
            group.mkdir(exist_ok=True)
        except OSError as error:
            logger.info("workers run without control groups: %s", error)
            self.close()
            return None
        return group / "cgroup.procs"

    def add(self, local_rank: int, pid: int) -> None:
        """Put a worker that has just been started into its group, with what it may have started already.

        Args:
            local_rank: names the group.
            pid: the worker.
        """
        entrance = self.entrance(local_rank)
        if entrance is None:
            return
        try:
            entrance.write_text(f"{pid}\n")
            for child in psutil.Process(pid).children(recursive=True):
                entrance.write_text(f"{child.pid}\n")
        except (ProcessLookupError, psutil.NoSuchProcess):
            return  # it has ended
        except OSError as error:
            logger.info("workers run without control groups: %s", error)
            self.close()

    def close(self) -> None:
        """Remove the groups; one with a process that cannot be killed stays."""
        if self.directory is not None:
            guard.remove_groups(self.directory)
        self.directory = None


def _sweep(directory: Path) -> None:
    """Remove what agents have left that were killed together with their guards; only empty groups can be removed."""
    for left in directory.glob("ezpz-*-*"):
        pid = left.name.split("-")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            guard.remove_groups(left)
