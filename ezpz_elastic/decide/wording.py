"""The policy's words for people: what is done, what they should do, and the one line of a stop."""

from __future__ import annotations

import msgspec

from ezpz_elastic.decide.history import Chore, History
from ezpz_elastic.decide.situation import Situation
from ezpz_elastic.decide.verdict import Cause, Verdict, VerdictKind
from rendezvous.records import Action, Decision

__all__ = [
    "ADVICE",
    "DIRECT",
    "LOOK_AT_LOGS",
    "NAMELESS",
    "chores",
    "departure",
    "names",
    "one_line",
    "sentence",
    "stop_line",
]

NAMELESS = "nothing says which host"
LOOK_AT_LOGS = "look at the first error in the workers' logs"

ADVICE: dict[Cause, str] = {
    Cause.HOST_LOST: "ask the scheduler what became of the host",
    Cause.DEVICE_FAULT: "have the device looked at",
    Cause.WORKER_KILLED: "find out who sends SIGKILL",
    Cause.OOM_HOST: "use less memory per host",
    Cause.OOM_DEVICE: "use less device memory, e.g. a smaller batch",
    Cause.NETWORK: "have the links of these hosts looked at",
    Cause.HANG: "look at what the ranks did last, in their logs and where agents ran in rounds/*/*/stacks.txt",
    Cause.STORAGE: "look at the file system per OST and at the quota",
    Cause.QUOTA: "free space, raise the quota or give write permission",
    Cause.SHM_FULL: "give the job a larger /dev/shm or use fewer loader workers",
    Cause.CHECKPOINT_CORRUPT: "verify the checkpoint directory",
    Cause.USER_EXCEPTION: "fix the program: its traceback is in the workers' logs",
    Cause.LAUNCH_ERROR: "fix the command line or the program's start-up",
    Cause.PORT_IN_USE: "find out what holds the port",
}

DIRECT = 0.5  # a suspect's weight from which a failure counts as having happened at that host

# Causes that are the world's or the program's: a host that is mentioned beside them has nothing to do with them.
_NOT_A_HOSTS = frozenset(
    {Cause.STORAGE, Cause.QUOTA, Cause.CHECKPOINT_CORRUPT, Cause.USER_EXCEPTION, Cause.LAUNCH_ERROR}
)

_NAMED_IN_LINE = 8  # more names than that hide the rest of the line
_REASON_LIMIT = 1000  # characters; a verdict may quote a log line


def stop_line(decision: Decision) -> str:
    """The one line that a person can search for when a job has ended.

    Args:
        decision: a ``STOP`` or a ``FINISH``.

    Returns:
        ``FAILOVER STOP: <kind> (<cause>; <hosts>; <what to do>)``, always a single line.
    """
    if decision.action is Action.FINISH:
        return f"FAILOVER STOP: {decision.kind} (none; no host; nothing to do)"
    verdict = msgspec.json.decode(decision.verdict, type=Verdict | None)
    hosts = [retirement.host for retirement in decision.retired] or _blamed(decision.kind, verdict)
    history = msgspec.json.decode(decision.ledger, type=History | None)
    advice = history.advice if history is not None else ""
    parts = (decision.cause, names(hosts), advice or LOOK_AT_LOGS)
    return f"FAILOVER STOP: {decision.kind} ({'; '.join(one_line(part).replace(';', ',') for part in parts)})"


def _blamed(kind: str, verdict: Verdict | None) -> list[str]:
    """The hosts a verdict blames; a suspect is called one, so that nobody takes a hint for a finding."""
    if verdict is None or verdict.cause in _NOT_A_HOSTS or kind == VerdictKind.USER_ERROR.value:
        return []
    if verdict.kind is VerdictKind.BAD_NODE_KNOWN:
        return [host.name for host in verdict.hosts]
    return [f"suspect {hint.name}" for hint in verdict.suspects if hint.weight >= DIRECT]


def chores(decision: Decision) -> tuple[Chore, ...]:
    """What agents are asked to do between this decision and the next round; best effort, nothing depends on it."""
    history = msgspec.json.decode(decision.ledger, type=History | None)
    return history.chores if history is not None else ()


def sentence(what: str, why: str, deed: str) -> str:
    """What happened, why it is treated as it is, and what is done, as one sentence on one line."""
    if why.startswith(NAMELESS):
        what = what.removesuffix("; nothing tells which host")  # once is enough
    head = ", ".join(part.rstrip(". ") for part in (what[: _REASON_LIMIT // 2], why) if part)
    return one_line(f"{head}: {deed}" if head else deed)[:_REASON_LIMIT]


def departure(out: list[str], situation: Situation, benched: bool) -> str:
    """Who leaves and who takes the slots, in words.

    Args:
        out: the hosts that lose their slot.
        situation: who stands by.
        benched: the host that leaves is only rotated.
    """
    spares = list(situation.spares[: len(out)])
    verb = "is" if len(out) == 1 else "are"
    left = f"{names(out)} {verb} {'moved to the back of the spare queue' if benched else 'retired'}"
    size = len(situation.hosts) - len(out) + len(spares)
    if len(spares) == len(out):
        return f"{left} and {names(spares)} {'takes the slot' if len(out) == 1 else 'take the slots'}"
    return f"{left} and the job goes on with {size} host{'' if size == 1 else 's'}"


def names(hosts: list[str]) -> str:
    """Hosts as a person reads them: at most a few, and how many more."""
    if not hosts:
        return "no host"
    more = len(hosts) - _NAMED_IN_LINE
    return ", ".join(hosts[:_NAMED_IN_LINE]) + (f" and {more} more" if more > 0 else "")


def one_line(text: str) -> str:
    """The text without line breaks and control characters, so that a line stays a line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
