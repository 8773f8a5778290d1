"""What the policy remembers from one decision to the next. It travels in every decision record, so it stays small."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import Enum

import msgspec

from ezpz_elastic.decide.situation import Limits, Situation
from ezpz_elastic.decide.verdict import Cause, Verdict

__all__ = ["Chore", "History", "Mark", "Place", "Weight", "arrived", "digest", "load_history", "place_of"]

KEPT_HOSTS = 32  # hosts remembered in each list: more names than that single out nobody
KEPT_PLACES = 8  # failures remembered by fingerprint and step


class Chore(str, Enum):
    """What agents are asked to do between this decision and the next round."""

    PROBE_HOSTS = "probe_hosts"  # a health sweep on every host, and a pairwise collective check on two free ones
    PROBE_STORAGE = "probe_storage"  # two hosts write and fsync a small file until that works or ``delay`` is over
    PRUNE_CHECKPOINTS = "prune_checkpoints"  # delete old checkpoints, where that is allowed
    CLEAN_SHM = "clean_shm"  # remove shared-memory segments that dead workers left


class Weight(msgspec.Struct, frozen=True):
    """How suspect a host is: the decayed sum of weak hints, as of ``History.at``."""

    host: str
    weight: float


class Mark(msgspec.Struct, frozen=True):
    """A failure since the last progress, at a host and in its slot; no host (``""``) if none could be told."""

    cause: Cause
    host: str
    slot: int
    at: float


class Place(msgspec.Struct, frozen=True):
    """Where a program error happened: what, at which step, on which hosts (digests, so that they stay small)."""

    what: str
    step: int | None
    hosts: str


class History(msgspec.Struct, frozen=True):
    """The policy's memory.

    Args:
        at: seconds since round 1 at the last decision.
        seated: hosts that kept their slot in the last decision.
        used: restarts so far that made no progress.
        pending: what the last restart cost; given back if its round makes progress.
        in_place: restarts that cost something since the last round that trained; picks the backoff.
        step: the highest training step any round reached; ``None`` if none was ever told.
        durable: the highest step of a complete checkpoint; ``None`` if none is known.
        blind: blind failures since the last progress.
        absent: hosts that stood by, and not in a slot, during a blind failure since the last progress.
        suspicion: weak hints against hosts.
        marks: failures at hosts since the last progress.
        places: where program errors happened.
        retirements: when hosts were taken out by judgement, within the window.
        pre_training: rounds in a row that ended before their first step and that nothing else explains.
        storage_waited: seconds waited for storage since the last progress.
        exit_code: the last exit code a worker told, for a job that ends without one.
        chores: what agents are asked to do before the next round.
        advice: what a person should do about a stop.
    """

    at: float = 0.0
    seated: int = 0
    used: int = 0
    pending: int = 0
    in_place: int = 0
    step: int | None = None
    durable: int | None = None
    blind: int = 0
    absent: tuple[str, ...] = ()
    suspicion: tuple[Weight, ...] = ()
    marks: tuple[Mark, ...] = ()
    places: tuple[Place, ...] = ()
    retirements: tuple[float, ...] = ()
    pre_training: int = 0
    storage_waited: float = 0.0
    exit_code: int | None = None
    chores: tuple[Chore, ...] = ()
    advice: str = ""
    version: int = 1

    @property
    def trained(self) -> bool:
        """Whether any round so far is known to have trained: a step was told, or a checkpoint was completed."""
        return self.step is not None or self.durable is not None


def load_history(ledger: msgspec.Raw, round: int) -> tuple[History, str]:
    """Read the memory back from the last decision.

    Args:
        ledger: what that decision carried; ``null`` before the first one.
        round: the round that has just ended.

    Returns:
        the memory, and a note if it could not be read. Then every earlier round is counted as a restart without
        progress: an unreadable memory may cost a job its budget but never makes it restart for ever.
    """
    if bytes(ledger) == b"null":
        return History(), ""
    try:
        return msgspec.json.decode(ledger, type=History), ""
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return History(used=round - 1), f"the ledger of round {round - 1} cannot be read ({error})"


def arrived(history: History, situation: Situation, limits: Limits) -> History:
    """The memory as it stands when a round has ended, before anything is decided about it.

    Progress is a *new* durable checkpoint and nothing else. A step counter that went further than before is not: a job
    without checkpoints starts over each time, and would give itself its restarts back whenever it was a little luckier.
    """
    now = max(situation.elapsed, history.at)
    half_lives = (now - history.at) / limits.suspicion_half_life
    faded = ((item.host, item.weight * 0.5**half_lives) for item in history.suspicion)
    history = msgspec.structs.replace(
        history,
        at=now,
        step=_highest(history.step, situation.step),
        suspicion=tuple(Weight(host, round(weight, 4)) for host, weight in faded if weight >= 0.01),
        retirements=tuple(time for time in history.retirements if now - time < limits.window),
        exit_code=history.exit_code if situation.exit_code is None else situation.exit_code,
        chores=(),
        advice="",
    )
    progressed = _highest(history.durable, situation.durable_step) != history.durable
    if not progressed:
        return history
    return msgspec.structs.replace(
        history,
        durable=situation.durable_step,
        used=history.used - history.pending,
        pending=0,
        in_place=0,
        blind=0,
        absent=(),
        marks=(),
        places=tuple(place for place in history.places if place.step is not None),
        pre_training=0,
        storage_waited=0.0,
    )


def place_of(verdict: Verdict, situation: Situation) -> Place:
    """Where this failure happened, to recognise it when it comes again."""
    what = f"{verdict.cause.value}|{situation.exit_code}"
    if verdict.cause is Cause.OOM_DEVICE:
        what = verdict.cause.value  # the message tells amounts of memory, which need not be equal
    elif verdict.fingerprint:
        what = verdict.fingerprint
    step = situation.step if verdict.step is None else verdict.step
    return Place(digest((what,)), step, digest(sorted(situation.hosts)))


def digest(words: Iterable[str]) -> str:
    """A short name for any number of words, the same on every host."""
    return hashlib.blake2b("\0".join(words).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _highest(known: int | None, told: int | None) -> int | None:
    if known is None or told is None:
        return told if known is None else known
    return max(known, told)
