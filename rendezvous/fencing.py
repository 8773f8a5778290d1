"""The round number as a fencing token: who belongs to a round that is over may change nothing that others share."""

from __future__ import annotations

from rendezvous.replay import decision_key, opening_key
from rendezvous.stores import RunGone, Store

__all__ = ["is_current"]


def is_current(store: Store, round_number: int) -> bool:
    """Whether a round is still running, as the store has it: begun, and neither decided nor followed by another.

    A round of which the store knows nothing is over: the last agent of a job takes everything away.

    Args:
        store: a connection; three reads.
        round_number: the token of whoever asks.

    Raises:
        StoreUnavailable: nobody can tell.
    """
    try:
        if store.get(opening_key(round_number)) is None:
            return False
        return store.get(decision_key(round_number)) is None and store.get(opening_key(round_number + 1)) is None
    except RunGone:
        return False
