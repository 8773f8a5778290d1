"""Every fault there is: what it does, where it is done, and what has to be said of it afterwards.

``MODES[name]`` tells about a fault; ``commit(name, scene)`` does one inside the process that calls it, and
``inflict(name, targets, …)`` does one to other processes. Both leave a receipt (``receipts.py``): the victim before it
goes down, the injector when it has seen the harm. A fault is done ``times`` times in a run, whoever asks how often, and
both functions say ``None`` when it is spent.

Two answers belong to a fault, as the design's table gives them. ``offline`` is the classifier's on the attempt's log
and exit code alone (the retry loop); ``live`` is the coordinator's, from what agents saw. They differ, because a
killed process says nothing and its parent knows.

Nothing here imports torch: a worker calls at the right point of its step (``Mode.point``) and the rest is the same.
"""

from __future__ import annotations

import os
import sys

import msgspec

from ezpz_elastic.decide.verdict import Provenance
from ezpz_elastic.faults.answers import Answer
from ezpz_elastic.faults.catalog import INSIDE, MODES, OUTSIDE, Mode, Where
from ezpz_elastic.faults.receipts import Receipt, Receipts
from ezpz_elastic.faults.scene import Scene, Targets

__all__ = ["INSIDE", "MODES", "OUTSIDE", "Answer", "Mode", "Where", "commit", "inflict"]


def commit(name: str, scene: Scene) -> Receipt | None:
    """Do a fault to the calling process. Most do not return.

    Args:
        name: a mode that is done inside.
        scene: where it happens.

    Returns:
        the receipt, if the fault was done and survived; ``None`` if it was spent and nothing was done.

    Raises:
        KeyError: there is no such mode.
        ValueError: that mode is done from outside.
        Exception: what the fault itself raises.
    """
    mode = MODES[name]
    if mode.inside is None:
        raise ValueError(f"{name} is done from outside, by inflict()")
    announced = Receipt(
        mode=name,
        number=0,
        landed=None,
        witness="victim",
        attempt=scene.attempt,
        step=scene.step,
        rank=scene.rank,
        host=scene.host,
        named=scene.host if mode.offline is not None and mode.offline.provenance is Provenance.SCRAPED else "",
        pids=(os.getpid(),),
        text=mode.about,
    )
    receipt = Receipts(scene.receipts).claim(announced, scene.times, scene.name)
    if receipt is None:
        return None
    sys.stdout.flush()
    mode.inside(scene)
    return receipt


def inflict(name: str, targets: Targets, receipts: Receipts, about: Receipt, times: int = 1) -> Receipt | None:
    """Do a fault to others, and see it land.

    Args:
        name: a mode that is done from outside.
        targets: what is harmed.
        receipts: where the receipt goes.
        about: attempt, step, rank and host for the receipt, as far as they are known; the rest is filled in here.
        times: how many times in all the fault is done in this run.

    Returns:
        the receipt, which says whether the harm landed; ``None`` if the fault was spent and nothing was done.

    Raises:
        KeyError: there is no such mode.
        ValueError: that mode is done inside, or the targets do not say what it needs.
    """
    mode = MODES[name]
    if mode.outside is None:
        raise ValueError(f"{name} is done inside a worker, by commit()")
    if receipts.count(name) >= times:
        return None
    harm = mode.outside(targets)
    what = " and ".join(f"{what} (pid {pid})" for pid, what in targets.pids.items())
    return receipts.claim(
        msgspec.structs.replace(
            about,
            mode=name,
            landed=harm.landed,
            witness="injector",
            host=about.host or targets.host,
            pids=harm.pids,
            seconds=harm.seconds,
            text=f"{mode.about}: {what}" if what else mode.about,
        ),
        times,
    )
