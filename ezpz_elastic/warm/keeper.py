"""Keeps one agent's warm servers: the first knows torch, its successor also what a first life had to import.

The program's own modules are never imported ahead. What else its first life imported up to its first step is noted
by rank 0 of slot 0, published in the store, and imported on every host by a second server, a fork of the first one,
while that one's workers train. A spare has no workers yet, so its first server imports that itself.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ezpz_elastic.warm.client import ServerGone, Unfit, WarmServer
from rendezvous.stores import Store, StoreUnavailable

__all__ = ["WarmWorkers", "can_be_warm"]

logger = logging.getLogger(__name__)

ALWAYS = ("torch",)
"""Imported by the first server: about a second, and nearly every training script needs it."""

PATIENCE = 300.0
"""Seconds a server may take to import; the libraries of a large job may come from a slow file system."""

BIRTH = 2.0
"""Seconds that a stop waits for a server which is being started, so as not to take it for something the workers have
left. To fork takes milliseconds; a server that stands still never does, and must not hold up a stop."""

STEP_LOOK = 0.25
"""Seconds between two looks for the first step of the life that is being learned from."""

STORE_LOOK = 1.0
"""Seconds between two looks for the published list: nobody waits for it, so it may be late."""

MOST = 5000
"""Modules published at most: the list is one value in the store."""

KEY = "warm/modules"


def can_be_warm(entrypoint: object, arguments: Sequence[object], numa_options: object) -> bool:
    """Whether a command can be run by a fork instead of by a new process.

    Args:
        entrypoint, arguments: the worker's command as torch holds it.
        numa_options: torch's binding, which it puts in front of the command; a fork cannot have it.
    """
    python = isinstance(entrypoint, str) and arguments[:1] and arguments[0] == "-u"
    if not python or entrypoint != os.getenv("PYTHON_EXEC", sys.executable) or numa_options is not None:
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False  # a kernel before 5.3
    return True


class WarmWorkers:
    """The warm servers of one agent.

    Args:
        command: the worker's command: interpreter, ``-u``, ``[-m]``, script, arguments.
        more: modules to import ahead beside torch.
        tag: the agent's tag.
        scratch: the agent's directory for temporary files.
    """

    def __init__(self, command: Sequence[str], more: Sequence[str], tag: str, scratch: Path) -> None:
        self._python, self._words = command[0], list(command[2:])
        self._modules, self._tag, self._scratch = [*ALWAYS, *more], tag, scratch
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._pids, self._born_by = frozenset[int](), 0.0
        self._first: WarmServer | None = self._serve(self._modules)
        self._successor: WarmServer | None = None
        self._learner: threading.Thread | None = None
        self._stepped: Callable[[], bool] = lambda: False
        self._recording = self._learned = False
        self._first_is_free = threading.Lock()  # held by whoever talks with the first server
        self._used = False  # workers come from the first server: what it must not do any more is import

    def _serve(self, modules: Sequence[str], parent: WarmServer | None = None) -> WarmServer:
        give_up = self._stopping.is_set
        with self._lock:
            self._born_by = time.monotonic() + BIRTH
            server = WarmServer(self._python, self._words, modules, self._tag, self._scratch, parent, give_up)
            self._pids |= {server.pid}
        return server

    def _end(self, server: WarmServer) -> None:
        server.close()
        with self._lock:
            self._pids -= {server.pid}

    @property
    def _record(self) -> Path:
        return self._scratch / "imports.txt"

    # -- forking from them -------------------------------------------------------------------------------------------

    def server(self, give_up: Callable[[], bool]) -> WarmServer | None:
        """The best server that is ready; waits for the first one. No worker of an older one may still run.

        Args:
            give_up: looked at while waiting.

        Returns:
            ``None`` if there is none: start workers the cold way.
        """
        while not self._first_is_free.acquire(timeout=0.25):
            if give_up():
                return None
        self._used = True
        self._first_is_free.release()
        if self._successor is not None:
            if self._first is not None:
                self._end(self._first)
            self._first, self._successor = self._successor, None  # whoever comes after it stays, should it end
        while self._first is not None:
            try:
                return self._first if self._first.ready(PATIENCE, give_up) else None
            except (Unfit, ServerGone) as error:
                logger.warning("workers start without their libraries: %s", error)
                self._end(self._first)
                self._first = self._instead(self._first, error)
        return None

    def _instead(self, server: WarmServer, error: Exception) -> WarmServer | None:
        """A server in the place of one that is unfit or gone; ``None`` if that one never was of use."""
        if isinstance(error, Unfit):
            left = [module for module in server.modules if module != str(error)]
            return self._serve(left) if str(error) not in ALWAYS else None
        return self._serve(server.modules) if server.was_ready else None

    def pids(self) -> set[int]:
        """Processes that are servers: the workers' end is not theirs."""
        if self._lock.acquire(timeout=max(0.0, self._born_by - time.monotonic())):
            self._lock.release()
        return set(self._pids)

    # -- learning ----------------------------------------------------------------------------------------------------

    def learn(self, store: Store) -> None:
        """Begin to wait for the list of modules that a first life needs.

        Args:
            store: a connection of its own.
        """
        if self._first is not None and self._learner is None:
            self._learner = threading.Thread(target=self._learn, args=(store,), name="ezpz-warm", daemon=True)
            self._learner.start()

    def begin(self, slot: int, stepped: Callable[[], bool]) -> Path | None:
        """A round begins.

        Args:
            slot: this agent's slot.
            stepped: whether a local worker has made its first step.

        Returns:
            Where local rank 0 is to note its imports, if it is to.
        """
        self._recording = slot == 0 and not self._learned
        self._stepped = stepped
        return self._record if self._recording else None

    def _learn(self, store: Store) -> None:
        try:
            names = self._await_names(store)
        finally:
            store.close()
        names = self._extend_first(names)
        while names and not self._stopping.is_set():
            server = self._branch_off(names)
            try:
                if server.ready(PATIENCE, self._stopping.is_set):
                    self._successor, self._learned = server, True
                    return
            except Unfit as error:
                logger.info("%s cannot be imported ahead: it leaves threads or devices behind", error)
                names = [name for name in names if name != str(error)]
            except ServerGone as error:
                logger.warning("cannot import ahead: %s", error)
                names = []
            self._end(server)

    def _branch_off(self, names: list[str]) -> WarmServer:
        """A server that has more: a fork of the first one, which has the rest already, if that one can."""
        modules = [*self._modules, *names]
        with self._first_is_free:
            if self._first is not None and self._first.was_ready:
                try:
                    return self._serve(modules, self._first)
                except (ServerGone, OSError) as error:
                    logger.info("the server that imports more starts from nothing: %s", error)
        return self._serve(modules)

    def _extend_first(self, names: list[str]) -> list[str]:
        """A spare's first server has no workers yet and imports the rest itself, which saves a second one.

        Returns:
            What a second server has to import because the first one cannot.
        """
        with self._first_is_free:
            first = self._first
            if not names or self._used or first is None:
                return names
            try:
                if not first.ready(PATIENCE, self._stopping.is_set):
                    return names
                first.extend(names)
                self._learned = first.ready(PATIENCE, self._stopping.is_set)
                return []
            except Unfit as error:
                logger.info("%s cannot be imported ahead: it leaves threads or devices behind", error)
                names = [name for name in names if name != str(error)]
            except ServerGone as error:
                logger.warning("cannot import ahead: %s", error)
            self._end(first)
            self._first = self._serve(self._modules)
            return names

    def _await_names(self, store: Store) -> list[str]:
        while not self._stopping.wait(STEP_LOOK if self._recording else STORE_LOOK):
            try:
                if self._recording and not self._stepped():
                    continue
                data = store.create(KEY, msgspec.json.encode(self._noted())) if self._recording else store.get(KEY)
            except StoreUnavailable as error:
                logger.debug("warm modules: %s", error)
                continue
            if data is not None:
                return msgspec.json.decode(data, type=list[str])
        return []

    def _noted(self) -> list[str]:
        text = self._record.read_text(errors="replace") if self._record.exists() else ""
        noted = dict.fromkeys(text.splitlines())
        if self._words[0] == "-m":  # found by its name, but run and not imported, wherever it lies
            for name in (self._words[1], f"{self._words[1]}.__main__"):
                noted.pop(name, None)
        return list(noted)[:MOST]

    def close(self) -> None:
        """End the servers."""
        self._stopping.set()
        if self._learner is not None:
            self._learner.join()
        for server in {self._first, self._successor}:
            if server is not None:
                self._end(server)
