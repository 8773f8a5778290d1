"""Notices that training has stopped although all workers live, looks at every rank of the job, and says who is behind.

One thread per round. Whoever notices first says so in the store; the other agents, whose workers wait too, see it as
soon as half of their own limit is over. Each writes down where its ranks stand, and then, when all have been looked at,
how far they have come by now: a job that has gone on meanwhile has nobody who is behind. Who noticed it first reads all
that was written and says who is behind; so all agents report the same, nothing is stopped before every rank has been
looked at, and any other agent needs as few operations in a job of a thousand hosts as in one of two.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
from torch.distributed.elastic.agent.server.api import Worker

from ezpz_elastic.decide.evidence import IdleTimeout
from ezpz_elastic.journal import Journal
from ezpz_elastic.observe import progress
from ezpz_elastic.observe.exits import last_step
from ezpz_elastic.observe.hang import Standing, StepClock, to_blame
from ezpz_elastic.observe.stacks import look
from ezpz_elastic.round_logs import WorkerFiles
from rendezvous.seat import Seat
from rendezvous.stores import Store, StoreUnavailable

__all__ = ["Ranks", "StallWatch"]

logger = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks at the step counters; a short limit is looked at five times in its course."""

PATIENCE = 8.0
"""Seconds to wait for the other agents' ranks, and again for their steps: one look at a process by py-spy, and some."""

FIRST_PATIENCE = 2 * PATIENCE
"""Seconds to wait for the agent that noticed it first; whoever waits in vain reads by itself what all have written."""

Told = TypeVar("Told")


class Ranks:
    """The local workers of a round, as they can be looked at.

    Args:
        host: this host.
        workers: ranks and pids.
        files: their files, by local rank.
        journal: where the stacks are announced.
        round_number: the round.
    """

    def __init__(
        self,
        host: str,
        workers: Sequence[Worker],
        files: Mapping[int, WorkerFiles],
        journal: Journal,
        round_number: int,
    ) -> None:
        self._host, self._workers, self._files = host, list(workers), dict(files)
        self._journal, self._round = journal, round_number
        self._lock = threading.Lock()
        self._seen: list[Standing] | None = None

    def step(self) -> int | None:
        """The furthest step of any of them."""
        return max((step for files in self._files.values() if (step := last_step(files)) is not None), default=None)

    def busy(self) -> bool:
        """Whether any of them waits for a checkpoint."""
        return any(progress.read(files.progress).busy for files in self._files.values())

    def steps(self) -> dict[int, int | None]:
        """Each rank's last step, now."""
        return {worker.global_rank: last_step(self._files[worker.local_rank]) for worker in self._workers}

    def look(self) -> list[Standing]:
        """Write every rank's stacks into the run directory, once in a round; where they stand."""
        with self._lock:
            if self._seen is None:
                self._seen = [self._one(worker) for worker in self._workers]
        return self._seen

    def _one(self, worker: Worker) -> Standing:
        files = self._files[worker.local_rank]
        seen = look(worker.id, files.stacks)
        path = files.stdout.with_name("stacks.txt")
        try:
            path.write_text(seen.text)
        except OSError as error:
            logger.warning("the stacks of rank %d are not kept: %s", worker.global_rank, error)
        self._journal.write(
            "stacks", self._round, rank=worker.global_rank, file=str(path), state=seen.state, frame=seen.frame
        )
        return Standing(worker.global_rank, self._host, last_step(files), seen.state, seen.place, seen.frame)


class StallWatch(threading.Thread):
    """Watches one round.

    Args:
        ranks: this agent's workers.
        clock: what is known about this run's steps.
        seat: this agent's place in the round.
        store: a connection of its own.
        finished: whether all of this agent's workers have ended; they make no steps any more.
        wake: called when ``found`` is set.

    Attributes:
        found: what all agents together have found.
        stalled: whether this agent's workers make no steps, as far as it can tell alone.
    """

    def __init__(
        self,
        ranks: Ranks,
        clock: StepClock,
        seat: Seat,
        store: Store,
        finished: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(name="ezpz-stall", daemon=True)
        self._ranks, self._clock, self._seat, self._store, self._wake = ranks, clock, seat, store, wake
        self._finished = finished
        self._stopping = threading.Event()
        self.found: IdleTimeout | None = None
        self.stalled = False
        self._looks: dict[int, list[Standing]] | None = None
        clock.begin(time.monotonic())
        self.start()

    def run(self) -> None:
        while not self._stopping.wait(min(LOOK, self._clock.limit() / 5)):
            step = self._ranks.step()
            self._clock.see(step, time.monotonic(), busy=step == self._clock.step and self._ranks.busy())
            waiting, limit = self._clock.waiting(time.monotonic()), self._clock.limit()
            self.stalled = waiting >= limit
            if waiting < limit / 2 or self._finished():
                continue
            try:
                mine = str(self._seat.slot).encode()
                if waiting >= limit:
                    first = self._store.create(self._key("stall"), mine)
                elif (told := self._store.get(self._key("stall"))) is not None:
                    first = told
                else:
                    continue
                self._conclude(waiting, first == mine)
            except StoreUnavailable as error:
                logger.debug("stall watch: %s", error)
                continue
            return

    def _conclude(self, waiting: float, first: bool) -> None:
        """Tell of one's own ranks, and hear who is behind from the agent that noticed it ``first``, or say it."""
        self._tell("stall", self._ranks.look())
        compares = first or self._hear("looked") is None
        if compares:
            # Once: what is told from now on may be of a later moment than the steps of the others.
            self._looks = self._looks or self._all("stall", list[Standing])
            self._store.create(self._key("looked"), b"all")
        self._tell("stalled", self._ranks.steps())
        said = None if compares else self._hear("behind")
        if said is None:
            said = self._store.create(self._key("behind"), msgspec.json.encode(self._compare()))
        if self._stopping.is_set():
            return
        behind = msgspec.json.decode(said, type=tuple[tuple[int, str], ...])
        self.found = IdleTimeout(round(waiting, 3), behind)
        self._wake()

    def _compare(self) -> list[tuple[int, str]]:
        """Ranks and hosts that are behind; nobody, if the agent that has seen all ranks is gone since."""
        if self._looks is None:
            return []
        everybody = [item for slot in sorted(self._looks) for item in self._looks[slot]]
        later = self._all("stalled", dict[int, int | None])
        steps = {rank: step for told in later.values() for rank, step in told.items()}
        return [(item.rank, item.host) for item in to_blame(everybody, steps, self._seat.roster.world_size())]

    def _tell(self, name: str, mine: object) -> None:
        self._store.create(self._key(f"{name}/{self._seat.slot}"), msgspec.json.encode(mine))

    def _hear(self, name: str) -> bytes | None:
        return self._store.wait(self._key(name), FIRST_PATIENCE)

    def _all(self, name: str, kind: type[Told]) -> dict[int, Told]:
        """What all agents have told, by slot, as far as it is told in time."""
        found: dict[int, Told] = {}
        deadline = time.monotonic() + PATIENCE
        for slot in range(len(self._seat.roster.members)):
            if self._stopping.is_set():
                break
            data = self._store.wait(self._key(f"{name}/{slot}"), max(0.0, deadline - time.monotonic()))
            if data is not None:
                found[slot] = msgspec.json.decode(data, type=kind)
        return found

    def _key(self, name: str) -> str:
        return f"round/{self._seat.roster.round}/{name}"

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._store.close()
        self.join()
