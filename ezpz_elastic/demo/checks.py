"""Did it happen, and was the answer right? Pure: journals, receipts and the plot in, complaints out.

A harness that cannot tell a fault that was survived from one that never landed reports the second as the first. So a
missing receipt is a failure here, however well the job went.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ezpz_elastic.demo.plot import PLOT, SAVE_EVERY, STEPS, Chapter
from ezpz_elastic.demo.receipts import Fault, Receipt
from ezpz_elastic.demo.story import Named, Round

__all__ = ["Ending", "complaints", "redone", "witnessed"]


class Ending(msgspec.Struct, frozen=True):
    """How the job ended, from the files it left and the processes themselves.

    Args:
        outcome: ``outcome.json``; ``None`` if there is none.
        bad_nodes: lines of ``bad_nodes.txt``.
        exit_codes: of every agent, negative for a signal.
        left: pids of processes of the job that are still there.
    """

    outcome: Mapping[str, object] | None
    bad_nodes: tuple[str, ...]
    exit_codes: Mapping[str, int]
    left: tuple[int, ...] = ()


def witnessed(lives: Sequence[Round], receipts: Sequence[Receipt]) -> tuple[Round, ...]:
    """The rounds, with the step a witness saw where a round was over before any agent reported how far it had come."""
    seen = {receipt.round: receipt.step for receipt in receipts if receipt.step is not None}
    return tuple(
        life if life.reached is not None else msgspec.structs.replace(life, reached=seen.get(life.number))
        for life in lives
    )


def redone(life: Round, after: Round) -> int | None:
    """Steps that the round after ``life`` did again; ``None`` if nobody says how far ``life`` came."""
    return None if life.reached is None else life.reached - (after.resumed_from or 0)


def complaints(
    lives: Sequence[Round], receipts: Sequence[Receipt], ending: Ending, disk_errno: int, plot: Sequence[Chapter] = PLOT
) -> list[str]:
    """Everything that is not as it had to be; empty if the demo holds.

    Args:
        lives: the rounds, from the journals.
        receipts: of the faults, from their witnesses.
        ending: how the job ended.
        disk_errno: what a write to the full disk had to meet.
        plot: what was done.
    """
    found: list[str] = []
    if len(lives) != len(plot) + 1:
        found.append(f"{len(lives)} rounds instead of {len(plot) + 1}")
    for chapter in plot:
        found += [f"{chapter.fault.value}: {text}" for text in _landed(chapter, receipts, lives, disk_errno)]
        life, after = _round(lives, chapter.round), _round(lives, chapter.round + 1)
        if life is None:
            found.append(f"{chapter.fault.value}: there was no round {chapter.round}")
            continue
        found += [f"{chapter.fault.value}: {text}" for text in _judged(chapter, life)]
        if after is None:
            found.append(f"{chapter.fault.value}: no round followed it")
            continue
        found += [f"{chapter.fault.value}: {text}" for text in _recovered(chapter, life, after, lives, receipts)]
    return [*found, *_ended(lives, ending, plot)]


def _round(lives: Sequence[Round], number: int) -> Round | None:
    return next((life for life in lives if life.number == number), None)


def _landed(chapter: Chapter, receipts: Sequence[Receipt], lives: Sequence[Round], disk_errno: int) -> Iterator[str]:
    """The receipts: there, about the right round, and of the harm that was meant."""
    mine = [receipt for receipt in receipts if receipt.fault is chapter.fault]
    if not any(receipt.landed for receipt in mine):
        yield "the fault did not land: nobody saw it happen"
        return
    for receipt in mine:
        if receipt.round != chapter.round:
            yield f"it landed in round {receipt.round} instead of round {chapter.round}"
        if chapter.fault is Fault.DISK_FULL and receipt.errno != disk_errno:
            yield f"the save met errno {receipt.errno} instead of {disk_errno}"
    if chapter.fault is Fault.DISK_FULL:
        return
    life = _round(lives, chapter.round)
    workers = set(life.workers.get(chapter.victim, ())) if life is not None else set()
    dead = {pid for receipt in mine for pid in receipt.pids}
    if not workers or not workers <= dead:
        yield f"the workers of {chapter.victim} ({sorted(workers)}) are not among those seen dead ({sorted(dead)})"


def _judged(chapter: Chapter, life: Round) -> Iterator[str]:
    """The verdict and what was decided on it."""
    if (life.kind, life.cause) != (chapter.kind, chapter.cause):
        yield f"the verdict is {life.kind} ({life.cause}) instead of {chapter.kind} ({chapter.cause})"
    if life.named != chapter.named:
        yield f"the verdict names {_names(life.named)} instead of {_names(chapter.named)}"
    if not set(chapter.suspects) <= set(life.suspects):
        yield f"the verdict suspects {', '.join(life.suspects) or 'nobody'} instead of {', '.join(chapter.suspects)}"
    if life.action != "restart":
        yield f"the decision is {life.action or 'missing'} instead of restart"
    if life.retired != chapter.named:
        yield f"{_names(life.retired)} retired instead of {_names(chapter.named)}"


def _recovered(
    chapter: Chapter, life: Round, after: Round, lives: Sequence[Round], receipts: Sequence[Receipt]
) -> Iterator[str]:
    """The round that followed: the same slots, the last complete checkpoint, no more work twice than need be."""
    if after.hosts != chapter.next_hosts:
        yield f"round {after.number} ran on {', '.join(after.hosts)} instead of {', '.join(chapter.next_hosts)}"
    saved = {step for past in lives if past.number < after.number for step in past.saved}
    seen = {receipt.complete for receipt in receipts if receipt.fault is chapter.fault}
    complete = max((step for step in saved | seen if step is not None), default=None)
    if after.resumed_from != complete:
        yield f"round {after.number} resumed from step {after.resumed_from} and the last complete one is {complete}"
    again = redone(life, after)
    if again is None:
        yield f"nobody says how far round {life.number} came"
    elif not 0 <= again <= SAVE_EVERY:
        yield f"{again} steps were done again and a save is due every {SAVE_EVERY}"


def _ended(lives: Sequence[Round], ending: Ending, plot: Sequence[Chapter]) -> Iterator[str]:
    """The end: success, said by every agent that lived to see it, and nothing left behind."""
    last = lives[-1] if lives else Round(0)
    if (last.action, last.kind) != ("finish", "success"):
        yield f"the last decision is {last.action or 'missing'} ({last.kind or 'no verdict'}) instead of finish"
    if max((step for life in lives for step in life.saved), default=0) != STEPS:
        yield f"no checkpoint of the last step, {STEPS}"
    outcome = ending.outcome
    if outcome is None or outcome.get("kind") != "success" or outcome.get("exit_code") != 0:
        yield f"outcome.json says {outcome}"
    lines = tuple(
        f"{item.host}  {item.provenance}  attempt={chapter.round}" for chapter in plot for item in chapter.named
    )
    if ending.bad_nodes != lines:
        yield f"bad_nodes.txt has {list(ending.bad_nodes)} instead of {list(lines)}"
    lost = {chapter.victim for chapter in plot if chapter.fault is Fault.HOST_LOST}
    for host, code in sorted(ending.exit_codes.items()):
        if code != (-9 if host in lost else 0):
            yield f"the agent of {host} ended with {code}"
    losses = [loss for life in lives for loss in life.losses]
    if len(losses) < 2 or not losses[-1] < losses[0]:
        yield f"the validation loss did not fall: {losses}"
    if ending.left:
        yield f"processes are left: {list(ending.left)}"


def _names(named: Sequence[Named]) -> str:
    return ", ".join(f"{item.host} ({item.provenance})" for item in named) or "nobody"
