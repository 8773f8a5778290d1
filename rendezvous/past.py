"""A run id whose job is over, or whose agents have all been killed: a store that outlives them may still know it.

A new job must not take it for its own: it would read there that everything is done, and end well without having done
anything, or that all its hosts are lost.
"""

from __future__ import annotations

from rendezvous.membership import Phase
from rendezvous.records import JobRecord
from rendezvous.replay import replay, survey
from rendezvous.stores import Store

__all__ = ["left_over"]


def left_over(store: Store, job: JobRecord) -> str:
    """What a run id is still taken by; empty if anybody of its job lives, or none of its rounds has begun.

    Args:
        store: a connection.
        job: the record that stands there.

    Raises:
        StoreUnavailable: the store does not answer.
        RecordError: a committed record is malformed.
    """
    if not store.durable:
        return ""
    past = replay(store, job, 0.0)
    over = past.phase is Phase.FINISHED
    active = [member.id for member in past.roster.members] if past.roster is not None else []
    if (not active and not over) or _any_alive(store, active):
        return ""
    known = survey(store)  # the spares, too, stand in the inbox, which is long
    if known is not None and _any_alive(store, list(known.members)):
        return ""
    how = "that is over" if over else f"whose agents are all gone (round {past.round} had begun)"
    why = f": {past.decision.reason}" if past.decision is not None and over else ""
    return f"run id {job.run_id!r} is taken by a job {how}, and its records are still in the store{why}"


def _any_alive(store: Store, members: list[str]) -> bool:
    return any(number is not None for number in store.leases(members))
