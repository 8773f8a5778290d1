"""A slot held in a round, and the record by which its agents learn where the workers of that round meet."""

from __future__ import annotations

from dataclasses import dataclass

from rendezvous.records import RecordError, Roster

__all__ = ["NotServed", "Seat", "meeting_place", "seat_at"]

LAST_PORT = 65535


class NotServed(OSError):
    """Slot 0's agent cannot serve the round's own store."""


@dataclass(frozen=True)
class Seat:
    """A slot held in a round.

    Args:
        roster: the round's roster.
        slot: this agent's group rank.
        master_addr, master_port: where workers reach the round's own fresh store, which slot 0's agent serves.
        problem: why this agent, in slot 0, could not serve it; then nobody's workers can start.
    """

    roster: Roster
    slot: int
    master_addr: str
    master_port: int
    problem: NotServed | None = None


def meeting_place(addr: str, port: int) -> bytes:
    """The record of slot 0: the address and the port of the round's own store."""
    return f"{addr} {port}".encode()


def seat_at(place: bytes, roster: Roster, slot: int, key: str) -> Seat:
    """A seat, from the record of the meeting place.

    Args:
        place: the record.
        roster: the round's roster.
        slot: the agent's group rank.
        key: where the record stands.

    Raises:
        RecordError: it is no address and port.
    """
    addr, _, port = place.decode(errors="replace").rpartition(" ")
    if not addr or not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
        raise RecordError(f"malformed record at {key!r}: expected an address and a port")
    return Seat(roster, slot, addr, int(port))
