"""A run id whose job is over: a store that outlives its agents may still know it.

A new job must not take it for its own, read there that everything is done, and end well without having done anything.
"""

from __future__ import annotations

from rendezvous.membership import Phase
from rendezvous.records import JobRecord
from rendezvous.replay import replay, survey
from rendezvous.stores import Store

__all__ = ["left_over"]


def left_over(store: Store, job: JobRecord) -> str:
    """What a run id is still taken by; empty if its job is not over, or is being ended by agents that live.

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
    if past.phase is not Phase.FINISHED or past.decision is None:
        return ""
    known = survey(store)
    members = list(known.members) if known is not None else []
    if any(number is not None for number in store.leases(members)):
        return ""
    return f"run id {job.run_id!r} is taken by a job that is over and whose records are kept ({past.decision.reason})"
