"""Weak hints add up: who is most suspect when something must be tried and nothing says where.

Suspicion convicts nobody. It only orders the hosts for the blind policy, which takes one out of its slot while a spare
can take its place and puts it at the back of the spare queue.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ezpz_elastic.decide.history import KEPT_HOSTS, History, Weight
from ezpz_elastic.decide.situation import Situation
from ezpz_elastic.decide.verdict import Verdict, VerdictKind

__all__ = ["forgotten", "most_suspect", "suspected"]


def suspected(history: History, verdict: Verdict, situation: Situation) -> History:
    """Add a verdict's hints to the memory.

    Hosts that stand by during a blind failure cannot have caused it. They are remembered as absent, so that a tie is
    broken against those who were there every time.

    Args:
        history: the memory, already faded to now.
        verdict: named hosts count as one direct witness (1.0), suspects as their weight says.
        situation: who was there.
    """
    here = set(situation.hosts)
    hints = [(host.name, 1.0) for host in verdict.hosts] + [(hint.name, hint.weight) for hint in verdict.suspects]
    weights = {item.host: item.weight for item in history.suspicion}
    for host, weight in hints:
        if host in here and weight > 0:
            weights[host] = weights.get(host, 0.0) + min(weight, 1.0)
    heaviest = sorted(weights.items(), key=lambda item: -item[1])[:KEPT_HOSTS]
    absent = history.absent
    if verdict.kind is VerdictKind.BAD_NODE_BLIND:
        absent = tuple(dict.fromkeys((*absent, *situation.spares)))[:KEPT_HOSTS]
    return msgspec.structs.replace(
        history, suspicion=tuple(Weight(host, round(weight, 4)) for host, weight in heaviest), absent=absent
    )


def most_suspect(history: History, hosts: Iterable[str]) -> str | None:
    """The host to take out of its slot when one must be picked.

    Args:
        history: the memory.
        hosts: those to choose from, in slot order.

    Returns:
        the host with the most suspicion; in a tie one that was in its slot at every blind failure since the last
        progress; among those the one in the highest slot, because moving slot 0 moves rank 0 and the master address
        as well. ``None`` if there is nobody to choose from.
    """
    weights = {item.host: item.weight for item in history.suspicion}
    absent = set(history.absent)
    ordered = list(enumerate(hosts))
    if not ordered:
        return None
    return max(ordered, key=lambda item: (weights.get(item[1], 0.0), item[1] not in absent, item[0]))[1]


def forgotten(history: History, hosts: Iterable[str]) -> History:
    """Forget the suspicion against hosts that hold no slot any more."""
    out = set(hosts)
    return msgspec.structs.replace(history, suspicion=tuple(item for item in history.suspicion if item.host not in out))
