"""What a classifier must be told that no evidence carries: the attempt's hosts, its ranks, its deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

__all__ = ["Context", "host_key"]


def host_key(name: str) -> str | None:
    """The part of a host's name that identifies it: the first label, lower case, without ``-hsnN``; an IP stays whole.

    Args:
        name: a host as any program spells it.

    Returns:
        the key, or ``None`` for a name that cannot be a host's (rule 9: dropped, not guessed).
    """
    text = name.strip().strip("[]").lower()
    if not text or any(c not in "abcdefghijklmnopqrstuvwxyz0123456789.-_:" for c in text):
        return None
    if ":" in text or text.replace(".", "").isdigit():
        return text
    label = text.split(".", 1)[0]
    head, _, tail = label.rpartition("-hsn")
    return head if head and tail.isdigit() else label or None


class Context(msgspec.Struct, frozen=True):
    """Everything ``classify`` may know beside the evidence.

    Args:
        hosts: the attempt's hosts in slot order, as the allocation spells them; empty if nobody told.
        roster: rank -> host, indexed by rank, where that is known for certain (the live agent knows it).
        ranks_per_host: ranks on each host, to derive rank -> host where ``roster`` is empty.
        layout: ``block`` (0..k-1 on the first host) or ``round_robin``.
        exit_code: exit code of the whole attempt; ``None`` when it has none (the live agent) or nobody told.
        remaining: seconds left in the allocation; ``None`` when nobody can tell.
        addresses: IP -> host name, resolved at the edge.
        key: the machine's host-name key (rule 9); returns ``None`` for a name of a shape never seen.
        spell: the machine's canonical spelling, for a host where no host list is given.
        last_step: the last training step the log shows; ``None`` if it shows none.
        machine_note: what the reader must know about this machine, e.g. that it has no signatures (rule 11).
        live: the evidence comes from living agents, so an attempt without a failure is not a silent one.
    """

    hosts: tuple[str, ...] = ()
    roster: tuple[str, ...] = ()
    ranks_per_host: int | None = None
    layout: str = "block"
    exit_code: int | None = None
    remaining: float | None = None
    addresses: Mapping[str, str] = {}
    key: Callable[[str], str | None] = host_key
    spell: Callable[[str], str] = str
    last_step: int | None = None
    machine_note: str = ""
    live: bool = False
