"""A person's hand on the job: retire a host, readmit it. Orders lie in the inbox; the coordinator carries them out."""

from __future__ import annotations

import time
import uuid

from rendezvous.membership import Membership, Phase
from rendezvous.records import Readmit, Retire, encode
from rendezvous.replay import survey
from rendezvous.stores import Store

__all__ = ["NotPossible", "readmit", "retire"]

LOOK = 0.1
"""Seconds between two looks at whether an order has been carried out."""


class NotPossible(Exception):
    """The order makes no sense for this job as it stands; the message says why."""


def retire(store: Store, host: str, reason: str, timeout: float) -> Membership:
    """Take a host out of the job. If it holds a slot the running round ends and a spare takes over.

    Args:
        store: a connection.
        host: as the allocation spells it, or its key.
        reason: for the records and for the host itself.
        timeout: seconds to wait until the coordinator has carried it out.

    Returns:
        The job as it stands afterwards.

    Raises:
        NotPossible: there is no such host, it is retired already, the job would fall below its minimum, or nobody
            carried the order out in time.
        StoreUnavailable: the store does not answer.
    """
    job = _running(store)
    key = _key(job, host)
    if key in job.retired:
        raise NotPossible(f"{host} was retired already ({job.retired[key].provenance}: {job.retired[key].reason})")
    member = next((item for item in job.members.values() if item.key == key), None)
    seated = member is not None and job.roster is not None and job.roster.slot_of(member.id) is not None
    if seated and job.roster is not None:
        left = len(job.roster.members) - 1 + len(job.queue)
        if left < job.job.min_hosts:
            raise NotPossible(f"{left} hosts would be left, and the job needs {job.job.min_hosts}")
    member_id = member.id if member is not None else None
    store.append(encode(Retire(uuid.uuid4().hex, host, key, member_id, job.round, reason)))
    deadline = time.monotonic() + timeout
    while key not in (job := _running(store)).retired:
        if time.monotonic() >= deadline:
            raise NotPossible(f"nobody retired {host} within {timeout:g} s; is a coordinator alive?")
        store.wait(f"round/{job.round}/decision", LOOK)
    return job


def readmit(store: Store, host: str) -> int:
    """Let a retired host in again; its agent has to be started anew.

    Args:
        store: a connection.
        host: as the allocation spells it, or its key.

    Returns:
        The round in which it was retired.

    Raises:
        NotPossible: it is not retired.
        StoreUnavailable: the store does not answer.
    """
    job = _running(store)
    key = _key(job, host)
    if key not in job.retired:
        raise NotPossible(f"{host} is not retired")
    round_number = job.retired_in[key]
    store.append(encode(Readmit(uuid.uuid4().hex, job.retired[key].host, key, round_number)))
    return round_number


def _running(store: Store) -> Membership:
    job = survey(store)
    if job is None:
        raise NotPossible("no job has begun there")
    if job.phase is Phase.FINISHED:
        raise NotPossible("the job is over")
    return job


def _key(job: Membership, host: str) -> str:
    known = {name: key for key, item in job.retired.items() for name in (key, item.host)}
    known |= {name: item.key for item in job.members.values() for name in (item.key, item.host)}
    if host not in known:
        hosts = sorted({item.host for item in job.members.values()} | {item.host for item in job.retired.values()})
        raise NotPossible(f"no host {host!r} in this job; there are {', '.join(hosts)}")
    return known[host]
