"""What the table asks for, as far as the job can afford it.

========================================  ======  =======  ==========================================
restart                                   budget  backoff  needs
========================================  ======  =======  ==========================================
in place (storage too)                    1       yes      a restart left in the budget
a named or lost host leaves               0       no       hosts enough for the minimum, spare or not
a host leaves on suspicion (recurrence)   0       no       a free spare, else in place
a blind rotation                          1       yes      a free spare, else in place
========================================  ======  =======  ==========================================

A blind rotation costs a restart although it takes a spare, because the host it takes out comes back: rotations could
otherwise go on for ever. A host that leaves for good cannot come back, so those end by themselves. Storage costs one
because the law counts restarts without progress, whatever their cause; *waiting* for storage costs nothing.

Hosts that are gone are outside the retirement limit: nobody decided that they leave, and without them the round cannot
be formed. The limit counts decisions, not hosts: a switch that takes five hosts along is one event. Once it is reached,
named hosts keep their slots and the restart is one in place, so the budget ends a job that cannot live with them.
"""

from __future__ import annotations

import re

import msgspec

from ezpz_elastic.decide.history import Chore, History
from ezpz_elastic.decide.moves import Move, Plan, View
from ezpz_elastic.decide.suspicion import forgotten
from ezpz_elastic.decide.verdict import Cause, NamedHost, Provenance, VerdictKind
from ezpz_elastic.decide.wording import ADVICE, LOOK_AT_LOGS, departure, names, one_line, sentence
from rendezvous.records import Action, Decision, Hold, Retirement

__all__ = ["answer"]

# The code a job ends with where no worker told one: 128 + SIGTERM, 128 + SIGINT, else 1.
_EXIT_CODES = {VerdictKind.WALLTIME: 143, VerdictKind.PREEMPTED: 143, VerdictKind.INTERRUPTED: 130}

_QUOTED_PATH = re.compile(r""": ['"](/[^'"\0]{1,1000})['"]""")
_ADVICE_LIMIT = 300
_RETIREMENT_REASON_LIMIT = 200  # one per host: a decision that loses a rack must stay a small record


class _Leave(msgspec.Struct, frozen=True):
    """Who loses the slot: the lost, then those taken out by judgement; and what the move has become."""

    move: Move = Move.IN_PLACE
    why: str = ""
    lost: tuple[NamedHost, ...] = ()
    judged: tuple[NamedHost, ...] = ()

    @property
    def hosts(self) -> tuple[NamedHost, ...]:
        """All of them."""
        return self.lost + self.judged


_NOBODY = _Leave()


def answer(view: View, asked: Plan, history: History) -> Decision:
    """Turn a row of the table into the decision.

    Args:
        view: the case.
        asked: what the row asks for.
        history: the memory with this failure in it.
    """
    if asked.move is Move.FINISH:
        return _decision(
            view, Action.FINISH, history, reason=sentence(view.verdict.reason, asked.why, "the job is done")
        )
    if asked.move is Move.STOP:
        return _stop(view, history, asked.why, asked.advice, kind=asked.kind)
    leave = _leave(view, asked, history)
    stay = len(view.situation.hosts) - len(leave.hosts)
    if stay + len(view.situation.spares) < view.situation.min_hosts:
        return _exhausted(view, history, leave, stay)
    if leave.move in {Move.REPLACE, Move.REPLACE_SUSPECT}:
        return _restart(view, asked, history, leave, cost=0)
    return _costly(view, asked, history, leave)


def _costly(view: View, asked: Plan, history: History, leave: _Leave) -> Decision:
    """A restart that counts: it needs a budget, and a reason to go otherwise than the last ones."""
    if leave.move is Move.IN_PLACE and history.pre_training >= 2:
        why = "the second attempt in a row that ended before the first step"
        return _stop(view, history, why, f"{why}, {LOOK_AT_LOGS}", kind=VerdictKind.STUCK_PRE_TRAINING)
    if history.used >= view.limits.max_restarts:
        return _out_of_budget(view, history, leave.why)
    return _restart(view, asked, history, leave, cost=1)


def _leave(view: View, asked: Plan, history: History) -> _Leave:
    """The lost leave in any case; the others as far as the retirement limit and the spares allow."""
    situation, limits = view.situation, view.limits
    gone = set(situation.lost)
    lost = tuple(NamedHost(host, Provenance.LOST) for host in situation.hosts if host in gone)
    judged = tuple(host for host in asked.hosts if host.name not in gone)
    if not judged:
        return _Leave(asked.move, asked.why, lost)
    if len(history.retirements) >= limits.max_retirements:
        but = f"hosts were taken out {len(history.retirements)} times within {limits.window:g} s, so nobody else is"
    elif asked.move is not Move.REPLACE and len(situation.spares) - len(lost) < len(judged):
        but = f"no spare can take the slot of {names([host.name for host in judged])}"
    else:
        return _Leave(asked.move, asked.why, lost, judged)
    return _Leave(Move.IN_PLACE, f"{asked.why}, but {but}" if asked.why else but, lost)


def _restart(view: View, asked: Plan, history: History, leave: _Leave, cost: int) -> Decision:
    situation, limits = view.situation, view.limits
    backoff = limits.backoff or (0.0,)
    delay = backoff[min(history.in_place, len(backoff) - 1)] if cost else 0.0
    out = [host.name for host in leave.hosts]
    deed = departure(out, situation, benched=leave.move is Move.ROTATE) if out else "all hosts restart in place"
    hold = _hold(view, asked, history, delay)
    wait = f" after {delay:g} s" if delay else ""
    wait += f" as soon as storage takes writes (in {hold.seconds:.0f} s at the latest)" if hold else ""
    budget = f" (restart {history.used + 1} of {limits.max_restarts} without progress)" if cost else ""
    history = msgspec.structs.replace(
        forgotten(history, out),
        used=history.used + cost,
        pending=cost,
        in_place=history.in_place + cost,
        retirements=(*history.retirements, *((history.at,) if leave.judged else ())),
        seated=len(situation.hosts) - len(out),
        storage_waited=history.storage_waited + (delay if view.verdict.cause is Cause.STORAGE else 0.0),
        chores=asked.chores,
    )
    reason = sentence(view.verdict.reason, leave.why, f"{deed}{wait}{budget}")
    return _decision(view, Action.RESTART, history, reason=reason, leave=leave, delay=delay, hold=hold)


def _hold(view: View, asked: Plan, history: History, delay: float) -> Hold | None:
    """What is left of the time that the job may wait for storage."""
    if Chore.PROBE_STORAGE not in asked.chores:
        return None
    left = view.limits.max_storage_wait - history.storage_waited - delay
    named = (_QUOTED_PATH.search(line.text) for line in view.verdict.evidence)
    return Hold(max(left, 0.0), next((found[1] for found in named if found), ""))


def _exhausted(view: View, history: History, leave: _Leave, stay: int) -> Decision:
    have, need = stay + len(view.situation.spares), view.situation.min_hosts
    left = f"{have} host{'s are' if have != 1 else ' is'} left and {need} are needed"
    why = f"{names([host.name for host in leave.hosts])} cannot be replaced, {left}"
    advice = f"{left}, ask for spares or lower {view.limits.hosts_named}"
    cause = view.verdict.cause if leave.move is Move.REPLACE else Cause.HOST_LOST
    return _stop(view, history, why, advice, kind=VerdictKind.EXHAUSTED, cause=cause, leave=leave)


def _out_of_budget(view: View, history: History, why: str) -> Decision:
    flag = f"{view.limits.flag_named}={view.limits.max_restarts}"
    spent = f"{flag} allows none" if not view.limits.max_restarts else f"{flag} is used up"
    todo = ADVICE.get(view.verdict.cause, LOOK_AT_LOGS)
    why = f"{why}, and no restart is left ({spent})" if why else f"no restart is left ({spent})"
    return _stop(view, history, why, f"no restart is left, {spent}: raise it, or {todo}")


def _stop(
    view: View,
    history: History,
    why: str,
    advice: str,
    kind: VerdictKind | None = None,
    cause: Cause | None = None,
    leave: _Leave = _NOBODY,
) -> Decision:
    kind = kind or view.verdict.kind
    told = view.situation.exit_code or (history.exit_code if view.situation.unformed else None)
    return _decision(
        view,
        Action.STOP,
        msgspec.structs.replace(history, advice=one_line(advice)[:_ADVICE_LIMIT]),
        reason=sentence(view.verdict.reason, why, "the job stops"),
        kind=kind,
        cause=cause,
        leave=leave,
        exit_code=128 - told if told and told < 0 else told or _EXIT_CODES.get(kind, 1),
    )


def _decision(
    view: View,
    action: Action,
    history: History,
    reason: str,
    kind: VerdictKind | None = None,
    cause: Cause | None = None,
    leave: _Leave = _NOBODY,
    delay: float = 0.0,
    hold: Hold | None = None,
    exit_code: int = 0,
) -> Decision:
    benched = leave.move is Move.ROTATE
    because = one_line(view.verdict.reason)[:_RETIREMENT_REASON_LIMIT]
    return Decision(
        round=view.situation.round,
        action=action,
        kind=(kind or view.verdict.kind).value,
        cause=(cause or view.verdict.cause).value,
        reason=reason,
        retired=tuple(
            Retirement(host.name, host.provenance.value, because, benched and host in leave.judged)
            for host in leave.hosts
        ),
        delay=delay,
        hold=hold,
        exit_code=exit_code,
        elapsed=view.situation.elapsed,
        restarts_left=max(view.limits.max_restarts - history.used, 0),
        verdict=msgspec.Raw(msgspec.json.encode(view.verdict)),
        ledger=msgspec.Raw(msgspec.json.encode(history)),
    )
