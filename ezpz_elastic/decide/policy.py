"""Verdict + history + situation -> Decision. Pure: the same question has the same answer on every host.

``moves`` says what a verdict's row of the table asks for; ``answer`` meets that with what the job has: spares, the
minimum, the retirement limit and the restart budget. This file ties the two together and keeps the memory.
"""

from __future__ import annotations

import msgspec

from ezpz_elastic.decide.answer import answer
from ezpz_elastic.decide.history import (
    KEPT_HOSTS,
    KEPT_PLACES,
    Chore,
    History,
    Mark,
    arrived,
    load_history,
    place_of,
)
from ezpz_elastic.decide.moves import View, culprits, plan
from ezpz_elastic.decide.situation import Limits, OnBlind, Situation
from ezpz_elastic.decide.suspicion import suspected
from ezpz_elastic.decide.verdict import Cause, Verdict, VerdictKind
from ezpz_elastic.decide.wording import chores, stop_line
from rendezvous.records import Decision

__all__ = ["Chore", "History", "Limits", "OnBlind", "Situation", "chores", "decide", "load_history", "stop_line"]

# What "two attempts without a step" can mean something for. The other causes have a row of their own that says what to
# do about them, or are explained by a host that was replaced.
_STUCK_CAUSES = frozenset(
    {Cause.UNKNOWN, Cause.WORKER_EXIT, Cause.USER_EXCEPTION, Cause.LAUNCH_ERROR, Cause.HANG, Cause.NETWORK}
)


def decide(verdict: Verdict, history: History, situation: Situation, limits: Limits) -> Decision:
    """Say what is done about the end of a round.

    Args:
        verdict: what happened; ``exhausted`` for a round that could not be formed.
        history: the memory that the last decision carried; ``History()`` at first.
        situation: where the job stands.
        limits: how far the policy may go.

    Returns:
        the decision, with the new memory in ``ledger``. Hosts in ``retired`` are always hosts of this round, each with
        a provenance. It is ``FINISH`` only for the verdict ``success``.
    """
    if situation.step is None and verdict.step is not None:
        situation = msgspec.structs.replace(situation, step=verdict.step)
    now = suspected(arrived(history, situation, limits), verdict, situation)
    view = View(verdict, now, situation, limits)
    return answer(view, plan(view), _remembered(view, before=history))


def _remembered(view: View, before: History) -> History:
    """The memory with this failure in it."""
    verdict, situation, history = view.verdict, view.situation, view.history
    slots = {host: slot for slot, host in enumerate(situation.hosts)}
    at = [Mark(verdict.cause, host.name, slots[host.name], history.at) for host in culprits(verdict, situation)]
    marks = (*history.marks, *(at or [Mark(verdict.cause, "", -1, history.at)]))
    places = history.places
    if verdict.fingerprint or verdict.kind is VerdictKind.USER_ERROR or verdict.cause is Cause.OOM_DEVICE:
        place = place_of(verdict, situation)
        places = (*(old for old in places if old != place), place)
    return msgspec.structs.replace(
        history,
        marks=marks[-KEPT_HOSTS:],
        places=places[-KEPT_PLACES:],
        blind=history.blind + (verdict.kind is VerdictKind.BAD_NODE_BLIND and not verdict.stale),
        pre_training=_pre_training(view, before),
        storage_waited=history.storage_waited + _waited_for_storage(view, before),
        in_place=0 if _trained(view) else history.in_place,
    )


def _trained(view: View) -> bool:
    """Whether this round came as far as training. Waiting before the next one then gains nothing: the backoff is for
    rounds that cannot even begin, and for storage, which needs time."""
    return view.situation.step is not None and view.verdict.cause is not Cause.STORAGE


def _pre_training(view: View, before: History) -> int:
    """Rounds in a row without a step, among those that a step was expected of.

    A program that never tells its steps is not stuck, it is silent: then only the budget limits it. That steps are told
    at all is known from an earlier round of this job, or from the agent (``Situation.tells_steps``).
    """
    situation, history = view.situation, view.history
    if situation.step is not None or history.durable != before.durable:
        return 0
    expected = situation.tells_steps or history.step is not None
    unexplained = view.verdict.cause in _STUCK_CAUSES and not situation.lost
    return history.pre_training + (expected and unexplained)


def _waited_for_storage(view: View, before: History) -> float:
    """Seconds since the last decision, if agents spent them probing storage and it failed again before a step."""
    if view.verdict.cause is not Cause.STORAGE or Chore.PROBE_STORAGE not in before.chores:
        return 0.0
    return view.history.at - before.at if view.situation.step is None else 0.0
