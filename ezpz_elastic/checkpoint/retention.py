"""Which steps to keep. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["doomed"]


def doomed(steps: Iterable[int], good: Iterable[int], keep_last: int, keep_every: int | None = None) -> list[int]:
    """Steps to delete, oldest first.

    Args:
        steps: every step there is.
        good: those of them that are known to be whole.
        keep_last: keep this many of the newest good ones; at least 1.
        keep_every: also keep every good step that is a multiple of this.

    Returns:
        Only good steps older than the newest ``keep_last`` good ones: what is not whole is for quarantine, not for
        retention, and the newest good step is never in the list.
    """
    known = set(good)
    newest = sorted(known & set(steps), reverse=True)
    old = newest[max(keep_last, 1) :]
    return sorted(step for step in old if not (keep_every and step % keep_every == 0))
