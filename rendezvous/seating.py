"""Who sits where in the next round, and what is written down when nobody failed: pure functions of the membership."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from rendezvous.records import Action, Decision, Member, Retirement

__all__ = ["evidence_of", "natural_order", "plan", "to_write", "without_failure"]

UNLISTED = 2**31
"""Position of a host that the hostfile does not list: behind all that it does."""

WRITERS = 2

_LONGEST_EVIDENCE = 500


def natural_order(member: Member) -> tuple[object, ...]:
    """Sort key: hostfile position first, then the host name with its numbers compared as numbers."""
    position = member.order if member.order is not None else UNLISTED
    parts = re.split(r"([0-9]+)", member.host)
    return (position, *((int(part), "") if number % 2 else (-1, part) for number, part in enumerate(parts)))


def plan(seats: Sequence[Member | None], spares: Iterable[Member], most: int) -> tuple[Member, ...]:
    """The next roster: survivors keep their slot, spares fill the emptied ones, then growth up to the maximum.

    Where spares are gone the holes are closed from the top, so that as few survivors as possible move.

    Args:
        seats: the last round's slots, ``None`` where a decision has emptied one; empty before the first round.
        spares: who stands by, in the order in which they are admitted.
        most: ``max_hosts``.
    """
    free = list(spares)
    if not seats:
        return tuple(sorted(free, key=natural_order)[:most])
    filled = [seat if seat is not None else (free.pop(0) if free else None) for seat in seats]
    while None in filled:
        last = filled.pop()
        if last is not None:
            filled[filled.index(None)] = last
    kept = [seat for seat in filled if seat is not None]
    return tuple(kept + free[: most - len(kept)])


def to_write(seats: Iterable[Member | None]) -> tuple[Member, ...]:
    """The hosts that find out whether storage takes writes again: two, so that no single mount speaks for all.

    Args:
        seats: the slots after a decision, ``None`` where it has emptied one.
    """
    return tuple(seat for seat in seats if seat is not None)[:WRITERS]


def without_failure(
    round_number: int,
    before: Decision | None,
    elapsed: float,
    reason: str,
    retired: Sequence[Retirement] = (),
) -> Decision:
    """The decision that ends a round although nothing failed: a person's order, or growth. It costs no restart.

    Args:
        round_number: the round it ends.
        before: the last decision, whose budget and ledger are carried on.
        elapsed: seconds since round 1 was opened.
        reason: one sentence.
        retired: hosts a person takes out.
    """
    return Decision(
        round=round_number,
        action=Action.RESTART,
        kind="bad_node_known" if retired else "retryable_unattributed",
        cause="unknown",
        reason=reason,
        retired=tuple(retired),
        elapsed=elapsed,
        restarts_left=before.restarts_left if before is not None else None,
        ledger=before.ledger if before is not None else msgspec.Raw(b"null"),
    )


def evidence_of(decision: Decision) -> str:
    """The evidence of a decision's verdict as one short line for the person who meets a refusal; empty without any."""
    try:
        verdict = msgspec.json.decode(decision.verdict)
        evidence = verdict.get("evidence") if isinstance(verdict, dict) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return msgspec.json.encode(evidence).decode()[:_LONGEST_EVIDENCE] if evidence else ""
