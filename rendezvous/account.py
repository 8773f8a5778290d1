"""What people read is written down by whoever committed it, and by somebody else if that one died before it could.

A committed record is settled (a mark beside it in the store) once it has been written down. A leader that takes over
writes what its predecessor left unsettled; that is the last record at most, because nothing is committed before the one
before it is settled. The decision that ends the job has no next leader: every agent that obeys it waits for its mark
before it leaves. So no death loses anything; one that falls between the writing and the mark has it written twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from rendezvous.membership import Membership, Phase
from rendezvous.records import Case, Decision, Opening, Retirement, Roster, decode_opening
from rendezvous.replay import decision_key, opening_key, survey
from rendezvous.stores import Store

__all__ = ["Ledger", "catch_up", "retired_before", "see_the_end_settled", "settle"]

logger = logging.getLogger(__name__)

PATIENCE = 3.0
"""Seconds in which a leader that lives has written its last decision down; a busy file system may need one or two."""

HEIRS = 3
"""How many agents in turn try to write the last decision down: each may die of it, too."""


class Ledger(Protocol):
    """Told about every record this agent has to write down, in order; writes what people read afterwards."""

    def opened(self, opening: Opening, before: Roster | None) -> None:
        """A round was opened; ``before`` is the last round's roster."""

    def decided(self, case: Case | None, decision: Decision, retired: Sequence[Retirement]) -> None:
        """A round was ended.

        Args:
            case: what was decided on; ``None`` if whoever decided is gone.
            decision: the decision.
            retired: the hosts that were out of the job before.
        """

    def ended(self, decision: Decision, retired: Sequence[Retirement]) -> None:
        """The job was ended and the store is gone with whoever served it: how it ended must not be unknown for that.

        Args:
            decision: the last one.
            retired: the hosts that were out of the job before, as far as this agent has heard.
        """


def settled_key(key: str) -> str:
    """Where it stands that the record at ``key`` has been written down."""
    return f"{key}/settled"


def settle(store: Store, key: str, member_id: str, written: set[str]) -> None:
    """Mark a record as written down.

    Args:
        store: a connection.
        key: where the record stands.
        member_id: who has written it down.
        written: what this agent has written down: a store that was away is no reason to do it again.

    Raises:
        StoreUnavailable: it has been written down, and nobody else knows.
    """
    written.add(key)
    store.create(settled_key(key), member_id.encode())


def retired_before(membership: Membership, decision: Decision) -> tuple[Retirement, ...]:
    """The hosts that were out of the job before a decision, whether the membership knows of that decision or not."""
    return tuple(item for key, item in membership.retired.items() if membership.retired_in[key] < decision.round)


def catch_up(store: Store, membership: Membership, ledger: Ledger, member_id: str, written: set[str]) -> None:
    """Write down what a predecessor has committed and has not lived to write down.

    Args:
        store: a connection.
        membership: as the committed records make it; nothing has been committed since.
        ledger: told.
        member_id: who writes.
        written: as of ``settle``.

    Raises:
        StoreUnavailable: the store does not answer.
        RecordError: a committed record is malformed.
    """
    decision = membership.decision
    running = membership.phase not in {Phase.FORMING, Phase.FINISHED}
    if not running and decision is None:
        return
    key = opening_key(membership.round) if running or decision is None else decision_key(decision.round)
    if store.get(settled_key(key)) is not None:
        return
    if key not in written:
        logger.info("what stands at %s was not written down by whoever committed it", key)
        if running and membership.roster is not None:
            ledger.opened(Opening(membership.round, roster=membership.roster), _roster_before(store, membership.round))
        elif decision is not None:
            ledger.decided(None, decision, _retired_before(store, decision))
    settle(store, key, member_id, written)


def _retired_before(store: Store, decision: Decision) -> tuple[Retirement, ...]:
    membership = survey(store)  # with the inbox: a person may have readmitted a host
    return retired_before(membership, decision) if membership is not None else ()


def _roster_before(store: Store, round_number: int) -> Roster | None:
    for number in range(round_number - 1, 0, -1):
        key = opening_key(number)
        data = store.get(key)
        roster = decode_opening(data, number, key).roster if data is not None else None
        if roster is not None:
            return roster
    return None


def see_the_end_settled(store: Store, ledger: Ledger, decision: Decision, member_id: str) -> None:
    """Wait until the decision that ends the job has been written down; do it if nobody else does.

    Args:
        store: a connection.
        ledger: told, if it falls to this agent.
        decision: the last one.
        member_id: this agent.

    Raises:
        StoreUnavailable: the store does not answer.
        RecordError: a committed record is malformed.
    """
    key = decision_key(decision.round)
    for turn in range(HEIRS):
        if store.wait(settled_key(key), PATIENCE) is not None:
            return
        if store.create(f"{key}/heir/{turn}", member_id.encode()) == member_id.encode():
            ledger.decided(None, decision, _retired_before(store, decision))
            settle(store, key, member_id, set())
            return
