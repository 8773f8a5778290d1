"""The agent that serves the embedded store leaves last: the others have to read how the job ended."""

from __future__ import annotations

import time

from rendezvous.liveness import refused
from rendezvous.records import Gone, Joined, Member, RecordError, decode_message
from rendezvous.stores import Store

__all__ = ["wait_for_the_others"]

PATIENCE = 5.0
"""Seconds it stays for them at most."""

LOOK = 0.25
"""Seconds between two looks at who is still there."""


def wait_for_the_others(store: Store, member_id: str) -> None:
    """Wait until every other agent has said goodbye or its port refuses.

    Args:
        store: a connection.
        member_id: the agent that waits.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    deadline = time.monotonic() + PATIENCE
    cursor, there = 0, dict[str, Member]()
    while (left := deadline - time.monotonic()) > 0:
        messages, cursor = store.read(cursor, min(left, LOOK))
        for key, data in messages:
            try:
                message = decode_message(data, key)
            except RecordError:
                continue  # the coordinator has told of it
            if isinstance(message, Joined):
                there[message.member.id] = message.member
            elif isinstance(message, Gone):
                there.pop(message.member_id, None)
        if not messages:
            for member in refused(list(there.values()), LOOK):
                there.pop(member.id, None)
        there.pop(member_id, None)
        if not there and not messages:
            return
