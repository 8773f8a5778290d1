"""The table of the law: what each verdict asks for, before budgets, spares and limits have their say."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from ezpz_elastic.decide.history import Chore, History, Mark, place_of
from ezpz_elastic.decide.situation import Limits, OnBlind, Situation
from ezpz_elastic.decide.suspicion import most_suspect
from ezpz_elastic.decide.verdict import Cause, NamedHost, Provenance, Verdict, VerdictKind
from ezpz_elastic.decide.wording import ADVICE, DIRECT, LOOK_AT_LOGS, NAMELESS

__all__ = ["Move", "Plan", "View", "culprits", "plan"]


# A host that is gone is gone, and rule 10 has its own standard of proof: the doubt of a line does not matter there.
_CONVICTING = frozenset({Cause.HOST_LOST, Cause.NETWORK})


class Move(Enum):
    """What a row of the table asks for."""

    FINISH = "finish"
    STOP = "stop"
    IN_PLACE = "in_place"  # the same hosts again
    REPLACE = "replace"  # evidence: these hosts leave, with or without a spare
    REPLACE_SUSPECT = "replace_suspect"  # suspicion: these hosts leave if spares can take their slots
    ROTATE = "rotate"  # a guess: the host goes to the back of the spare queue if a spare can take its slot


class Plan(msgspec.Struct, frozen=True):
    """What one row asks for.

    Args:
        move: what to do.
        why: half a sentence that goes on after the verdict's own; may be empty.
        hosts: hosts to take out, with provenance.
        kind: the kind of a stop, where it differs from the verdict's.
        advice: what a person should do about a stop.
        chores: what agents are asked to do before the next round.
    """

    move: Move
    why: str = ""
    hosts: tuple[NamedHost, ...] = ()
    kind: VerdictKind | None = None
    advice: str = ""
    chores: tuple[Chore, ...] = ()


class View(msgspec.Struct, frozen=True):
    """All that a row may look at. ``history`` does not yet contain this failure."""

    verdict: Verdict
    history: History
    situation: Situation
    limits: Limits

    def marks(self, host: str | None = None) -> tuple[Mark, ...]:
        """Failures of this cause since the last progress (at one host)."""
        cause = self.verdict.cause
        return tuple(m for m in self.history.marks if m.cause is cause and host in {None, m.host})

    def repeated(self) -> bool:
        """Whether this very error already happened at this very step. Two unknown steps are the same step."""
        here = place_of(self.verdict, self.situation)
        return any(place.what == here.what and place.step == here.step for place in self.history.places)

    def stop(self, why: str, kind: VerdictKind | None = None, advice: str = "") -> Plan:
        """End the job."""
        return Plan(Move.STOP, why, kind=kind, advice=advice or ADVICE.get(self.verdict.cause, LOOK_AT_LOGS))


def culprits(verdict: Verdict, situation: Situation) -> tuple[NamedHost, ...]:
    """The hosts at which this failure happened, to count recurrences by: the named ones, else direct suspects."""
    here = set(situation.hosts)
    if verdict.kind is VerdictKind.BAD_NODE_KNOWN:
        return tuple({host.name: host for host in reversed(verdict.hosts) if host.name in here}.values())[::-1]
    found = dict.fromkeys(s.name for s in verdict.suspects if s.weight >= DIRECT and s.name in here)
    return tuple(NamedHost(name, Provenance.INFERRED) for name in found)


def plan(view: View) -> Plan:
    """Look the verdict up in the table.

    Args:
        view: the verdict, and what it is judged against.

    Returns:
        what its row asks for.
    """
    if view.situation.unformed:
        return _exhausted(view)
    return _BY_KIND[view.verdict.kind](view)


# -- ends ----------------------------------------------------------------------------------------------------------


def _finish(_: View) -> Plan:
    return Plan(Move.FINISH)


def _over(view: View) -> Plan:
    step = view.history.durable
    again = "start again" if view.verdict.kind is VerdictKind.INTERRUPTED else "submit the job again"
    resume = "" if step is None else f", it resumes from step {step}"
    return view.stop("", advice=again + resume)


def _exhausted(view: View) -> Plan:
    advice = f"add hosts, or lower the minimum of --nnodes from {view.situation.min_hosts}"
    return view.stop("", VerdictKind.EXHAUSTED, advice)


def _stuck(view: View) -> Plan:
    return view.stop("", advice=LOOK_AT_LOGS)


# -- hosts by name -------------------------------------------------------------------------------------------------


def _known(view: View) -> Plan:
    verdict, situation = view.verdict, view.situation
    named = culprits(verdict, situation)
    if not named and not situation.lost:
        return Plan(Move.IN_PLACE, "but it names only hosts that hold no slot, which is stale and blames nobody")
    if verdict.cause is Cause.OOM_DEVICE:
        return _oom_device(view)
    if verdict.cause is Cause.HANG:
        return _again_at_one_host(view, window=None)
    if verdict.cause not in _CONVICTING and not verdict.certain:
        return _again_at_one_host(view, window=view.limits.window)
    return Plan(Move.REPLACE, hosts=named)


def _again_at_one_host(view: View, window: float | None) -> Plan:
    """In place the first time; the second time at the same host without a new checkpoint in between is suspicion.

    A failure that hits several hosts again at once is no single host's. Nor is one that the slot had on another host
    before: it moved with the rank, so it is the program's, and no further spare is spent on it.
    """
    now, at = view.history.at, culprits(view.verdict, view.situation)
    again = [c for c in at if any(window is None or now - m.at <= window for m in view.marks(c.name))]
    if not again:
        return Plan(Move.IN_PLACE)
    if len(again) > 1:
        return Plan(Move.IN_PLACE, f"which recurs at {len(again)} hosts at once and so is not one host's fault")
    name = again[0].name
    slot = view.situation.hosts.index(name)
    before = next((mark.host for mark in view.marks() if mark.slot == slot and mark.host != name), None)
    if before is not None:
        return Plan(Move.IN_PLACE, f"which slot {slot} already had on {before}, so it is not the host's fault")
    within = "" if window is None else f" within {window:g} s"
    return Plan(Move.REPLACE_SUSPECT, f"the second time at {name}{within} without a new checkpoint", tuple(again))


# -- blind ---------------------------------------------------------------------------------------------------------


def _blind(view: View) -> Plan:
    """Guess as late as possible. The sweep is asked for at the first failure, so that it is done before any guess."""
    if view.verdict.cause is Cause.OOM_DEVICE and (error := _oom_elsewhere(view)) is not None:
        return error
    sweep = (Chore.PROBE_HOSTS,)
    if view.verdict.stale:
        return Plan(Move.IN_PLACE, "which blames nobody", chores=sweep)
    if view.limits.on_blind is OnBlind.NEVER:
        return Plan(Move.IN_PLACE, f"{NAMELESS}, and guessing is off", chores=sweep)
    if view.limits.on_blind is OnBlind.SUSPECT and view.history.blind == 0:
        return Plan(Move.IN_PLACE, NAMELESS, chores=sweep)
    pick = most_suspect(view.history, view.situation.hosts)
    if pick is None or view.situation.lost:
        return Plan(Move.IN_PLACE, "the hosts that are gone may explain it", chores=sweep)
    hinted = any(item.host == pick for item in view.history.suspicion)
    why = f"{NAMELESS}, {pick} is {'the most suspect' if hinted else 'as suspect as any other'}"
    return Plan(Move.ROTATE, why, (NamedHost(pick, Provenance.BLIND),), chores=sweep)


# -- a whole-job or passing cause ----------------------------------------------------------------------------------


def _retryable(view: View) -> Plan:
    return _BY_CAUSE.get(view.verdict.cause, _in_place)(view)


def _in_place(_: View) -> Plan:
    return Plan(Move.IN_PLACE)


def _recurrence(view: View) -> Plan:
    return _again_at_one_host(view, window=view.limits.window)


def _oom_host(view: View) -> Plan:
    before = {mark.host for mark in view.marks()}
    if not before:
        return Plan(Move.IN_PLACE)
    hosts = (before | {host.name for host in culprits(view.verdict, view.situation)}) - {""}
    if len(hosts) > 1:
        return view.stop(f"the second time without a new checkpoint, on {len(hosts)} hosts", VerdictKind.USER_ERROR)
    return _again_at_one_host(view, window=None)


def _oom_device(view: View) -> Plan:
    return _oom_elsewhere(view) or _again_at_one_host(view, window=view.limits.window)


def _oom_elsewhere(view: View) -> Plan | None:
    here = place_of(view.verdict, view.situation)
    for place in view.history.places:
        if place.what == here.what and place.step == here.step and place.hosts != here.hosts:
            where = "before the first step" if here.step is None else f"at step {here.step}"
            return view.stop(f"again {where}, on other hosts", VerdictKind.USER_ERROR)
    return None


def _storage(view: View) -> Plan:
    if view.history.storage_waited >= view.limits.max_storage_wait:
        return view.stop(f"storage did not recover in {view.history.storage_waited:.0f} s of waiting")
    return Plan(Move.IN_PLACE, "no host is to blame", chores=(Chore.PROBE_STORAGE,))


def _one_more_try(chore: Chore) -> Callable[[View], Plan]:
    def row(view: View) -> Plan:
        if view.marks():
            return view.stop("the second time without a new checkpoint", VerdictKind.USER_ERROR)
        return Plan(Move.IN_PLACE, "it is tried once more", chores=(chore,))

    return row


def _worker_exit(view: View) -> Plan:
    if view.verdict.fingerprint and view.repeated():
        return view.stop(f"the same error {_where(view)}", VerdictKind.USER_ERROR, ADVICE[Cause.USER_EXCEPTION])
    return Plan(Move.IN_PLACE)


# -- the program's own fault ---------------------------------------------------------------------------------------


def _user_error(view: View) -> Plan:
    if view.repeated():
        return view.stop(f"the same error {_where(view)}")
    everywhere = view.situation.everywhere
    at_once = everywhere or (everywhere is None and view.verdict.cause is Cause.LAUNCH_ERROR)
    if at_once and not view.history.trained:
        return view.stop("it happened before any training, on all ranks at once")
    return Plan(Move.IN_PLACE, "it is tried once more")


def _where(view: View) -> str:
    step = place_of(view.verdict, view.situation).step
    return "twice, both times before a step was told" if step is None else f"twice at step {step}"


_BY_KIND: dict[VerdictKind, Callable[[View], Plan]] = {
    VerdictKind.SUCCESS: _finish,
    VerdictKind.BAD_NODE_KNOWN: _known,
    VerdictKind.BAD_NODE_BLIND: _blind,
    VerdictKind.RETRYABLE_UNATTRIBUTED: _retryable,
    VerdictKind.USER_ERROR: _user_error,
    VerdictKind.STUCK_PRE_TRAINING: _stuck,
    VerdictKind.WALLTIME: _over,
    VerdictKind.PREEMPTED: _over,
    VerdictKind.INTERRUPTED: _over,
    VerdictKind.EXHAUSTED: _exhausted,
}

_BY_CAUSE: dict[Cause, Callable[[View], Plan]] = {
    Cause.DEVICE_FAULT: _recurrence,
    Cause.WORKER_KILLED: _recurrence,
    Cause.OOM_HOST: _oom_host,
    Cause.OOM_DEVICE: _oom_device,
    Cause.STORAGE: _storage,
    Cause.QUOTA: _one_more_try(Chore.PRUNE_CHECKPOINTS),
    Cause.SHM_FULL: _one_more_try(Chore.CLEAN_SHM),
    Cause.USER_EXCEPTION: _worker_exit,
    Cause.WORKER_EXIT: _worker_exit,
    Cause.UNKNOWN: _worker_exit,
}
