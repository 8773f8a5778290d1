"""The table of all faults: what each does, where it is done, and the two answers that are right."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from ezpz_elastic.decide.verdict import Cause, Provenance
from ezpz_elastic.faults import console, inside, outside
from ezpz_elastic.faults.answers import (
    EXITED,
    LOST,
    NOTHING,
    RAISED,
    SCRAPED,
    SILENT,
    STANDS,
    STORAGE,
    WALLTIME,
    Answer,
    blind,
    known,
    retryable,
)
from ezpz_elastic.faults.deaths import Harm
from ezpz_elastic.faults.scene import Point, Scene, Targets

__all__ = ["INSIDE", "MODES", "OUTSIDE", "Mode", "Where"]


class Where(Enum):
    """Who does it."""

    CONSOLE = "console"  # the trainer itself: it prints what a launcher or a library prints, and exits as that does
    WORKER = "worker"  # a worker, to itself, for real
    OUTSIDE = "outside"  # an injector, to processes of the job or to its surroundings


class Mode(msgspec.Struct, frozen=True):
    """One fault.

    Args:
        name: as the command line and the receipts spell it.
        where: who does it.
        about: one line.
        point: where in a step a worker calls for it.
        offline: what the retry loop has to say; ``None``: a launcher's log does not come into it.
        live: what the agents' coordinator has to say; ``None``: it has no meaning there.
        inside: the deed, for ``CONSOLE`` and ``WORKER``.
        outside: the deed, for ``OUTSIDE``.
        lasts: it goes on for the rest of this process's life: one receipt, done again at every step.
        needs: what the machine must allow; empty if nothing special.
    """

    name: str
    where: Where
    about: str
    offline: Answer | None
    live: Answer | None
    point: Point = Point.STEP
    inside: Callable[[Scene], None] | None = None
    outside: Callable[[Targets], Harm] | None = None
    lasts: bool = False
    needs: str = ""


def _console(
    name: str, about: str, offline: Answer, live: Answer | None, deed: Callable[[Scene], None]
) -> tuple[str, Mode]:
    return name, Mode(name, Where.CONSOLE, about, offline, live, inside=deed)


def _worker(
    name: str,
    about: str,
    offline: Answer | None,
    live: Answer | None,
    deed: Callable[[Scene], None],
    point: Point = Point.STEP,
    *,
    lasts: bool = False,
    needs: str = "",
) -> tuple[str, Mode]:
    return name, Mode(name, Where.WORKER, about, offline, live, point, inside=deed, lasts=lasts, needs=needs)


def _outside(name: str, about: str, live: Answer, deed: Callable[[Targets], Harm], needs: str = "") -> tuple[str, Mode]:
    return name, Mode(name, Where.OUTSIDE, about, None, live, outside=deed, needs=needs)


MODES: dict[str, Mode] = dict(
    [
        _console(
            "shepherd",
            "the launcher's daemon on a host dies of signal 9",
            SCRAPED,
            SCRAPED,
            console.shepherd,
        ),
        _console(
            "rank_sig9",
            "the launcher tells of a rank killed with 9 beside ranks it tore down",
            SCRAPED,
            SCRAPED,
            console.rank_sig9,
        ),
        _console(
            "gloo_peer",
            "one rank says that a peer closed the connection",
            blind(Cause.NETWORK),
            EXITED,
            console.gloo_peer,
        ),
        _console(
            "ur_oom",
            "a device runs out of resources",
            blind(Cause.OOM_DEVICE),
            known(Cause.OOM_DEVICE, Provenance.INFERRED, retires=False),
            console.ur_oom,
        ),
        _console(
            "rank_exit",
            "one rank exits with 1 and the launcher with 143",
            EXITED,
            EXITED,
            console.rank_exit,
        ),
        _console(
            "innocent_cascade",
            "ranks that SIGTERM ended, and 143: the end of the allocation",
            WALLTIME,
            EXITED,
            console.innocent_cascade,
        ),
        _console(
            "clean_walltime",
            "143 without a word: the end of the allocation",
            WALLTIME,
            EXITED,
            console.clean_walltime,
        ),
        _worker("hang", "a worker goes silent", SILENT, STANDS, inside.hang),
        _worker(
            "sigkill",
            "a worker is killed and says nothing",
            blind(),
            retryable(Cause.WORKER_KILLED),
            inside.sigkill,
        ),
        _console("silent_fail", "a failure that no signature knows", blind(), EXITED, console.silent_fail),
        _console(
            "enospc",
            "a save meets a full storage target, and teardown",
            STORAGE,
            STORAGE,
            console.enospc,
        ),
        _console(
            "enospc_named",
            "the same, with a healthy host named in the teardown",
            STORAGE,
            STORAGE,
            console.enospc_named,
        ),
        _worker("segv", "a worker crashes in native code", blind(), EXITED, inside.segv),
        _worker("exit", "a worker leaves without a word", blind(), EXITED, inside.leave),
        _worker("sigstop", "a worker is stopped", SILENT, STANDS, inside.sigstop),
        _worker("gil_sleep", "a worker sleeps and holds the GIL", SILENT, STANDS, inside.hold_the_gil),
        _worker("slow", "a rank is slow from now on", NOTHING, NOTHING, inside.linger, lasts=True),
        _worker(
            "raise_before",
            "an exception before a collective",
            RAISED,
            RAISED,
            inside.raise_error,
            Point.BEFORE_REDUCE,
        ),
        _worker(
            "raise_inside",
            "an exception inside a collective",
            RAISED,
            RAISED,
            inside.raise_error,
            Point.IN_REDUCE,
        ),
        _worker(
            "raise_after",
            "an exception after a collective",
            RAISED,
            RAISED,
            inside.raise_error,
            Point.AFTER_REDUCE,
        ),
        _worker(
            "crash_before_allreduce",
            "a worker leaves before the gradients are reduced",
            blind(),
            EXITED,
            inside.leave,
            Point.BEFORE_REDUCE,
        ),
        _worker(
            "crash_in_save",
            "a worker leaves while a checkpoint is written",
            blind(),
            EXITED,
            inside.leave,
            Point.IN_SAVE,
        ),
        _worker(
            "full_ost",
            "a save meets a full storage target, for real",
            STORAGE,
            STORAGE,
            inside.write_to_full_device,
            Point.IN_SAVE,
        ),
        _worker(
            "truncated_shard",
            "the newest checkpoint loses half a file, and a worker leaves",
            blind(),
            EXITED,
            inside.truncate_shard,
            Point.AFTER_SAVE,
        ),
        _worker(
            "oom",
            "a worker takes memory until the kernel ends it",
            blind(),
            retryable(Cause.OOM_HOST),
            inside.eat_memory,
            needs="a memory cgroup",
        ),
        _outside(
            "worker_kill",
            "SIGKILL to workers, their agent lives",
            retryable(Cause.WORKER_KILLED),
            outside.kill_all,
        ),
        _outside("worker_stop", "SIGSTOP to workers, their agent lives", STANDS, outside.stop_all),
        _outside("host_loss", "a host is gone: its agent and its workers at once", LOST, outside.kill_all),
        _outside("agent_loss", "a host's agent alone is killed", LOST, outside.kill_all),
        _outside(
            "store_loss",
            "the store is killed; the workers run on",
            NOTHING,
            outside.kill_all,
            needs="an etcd of the test's own",
        ),
        _outside(
            "network_cut",
            "a host is cut off from all others",
            LOST,
            outside.cut,
            needs="root and network namespaces",
        ),
        _outside(
            "disk_fill",
            "the disk that takes the checkpoints is filled",
            STORAGE,
            outside.cut,
            needs="a file system of the test's own",
        ),
    ]
)
"""All faults by name. The first twelve (and ``rank_sig9``) are the injection table of the design page."""

INSIDE = tuple(name for name, mode in MODES.items() if mode.inside is not None)
"""What ``commit`` takes."""

OUTSIDE = tuple(name for name, mode in MODES.items() if mode.outside is not None)
"""What ``inflict`` takes."""
