"""The state of a job from what stands in its store: the same for a coordinator that takes over and for a person.

Committed records come first, in the order of the rounds; the inbox follows from its beginning. What is in it about
rounds that are over changes nothing any more.
"""

from __future__ import annotations

from rendezvous.membership import Event, Membership, Phase
from rendezvous.records import JobRecord, RecordError, decode, decode_decision, decode_message, decode_opening
from rendezvous.stores import Store

__all__ = ["decision_key", "opening_key", "refusal_key", "replay", "survey"]


def opening_key(round_number: int) -> str:
    """Where a round's opening stands."""
    return f"round/{round_number}/opening"


def decision_key(round_number: int) -> str:
    """Where a round's decision stands."""
    return f"round/{round_number}/decision"


def refusal_key(member_id: str) -> str:
    """Where a member finds out that it is not admitted."""
    return f"refused/{member_id}"


def replay(store: Store, job: JobRecord, now: float) -> Membership:
    """A membership that stands where the committed records do; the inbox is still to be read.

    Args:
        store: where the records are.
        job: what all agents agreed on.
        now: seconds on the caller's monotonic clock.

    Raises:
        StoreUnavailable: the store does not answer.
        RecordError: a committed record is malformed.
    """
    membership = Membership(job)
    while membership.phase is not Phase.FINISHED:
        running = membership.phase is Phase.RUNNING
        key = (decision_key if running else opening_key)(membership.round)
        data = store.get(key)
        if data is None:
            break
        event: Event = (decode_decision if running else decode_opening)(data, membership.round, key)
        membership.apply(event, now, more=True)
    return membership


def survey(store: Store) -> Membership | None:
    """What a bystander can read: members, slots, spares, retired hosts; ``None`` if no job has begun there.

    Raises:
        StoreUnavailable: the store does not answer.
        RecordError: a committed record is malformed.
    """
    data = store.get("job")
    if data is None:
        return None
    membership = replay(store, decode(data, JobRecord, "job"), 0.0)
    for key, message in store.read(0, 0.0)[0]:
        try:
            membership.apply(decode_message(message, key), 0.0, more=True)
        except RecordError:
            continue  # the coordinator has told of it
    return membership
