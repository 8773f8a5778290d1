"""Which host is meant: spellings, addresses and ranks, resolved against the attempt's own hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ezpz_elastic.decide.context import Context

__all__ = ["HostTable"]


_LAYOUT_LINES = 4
"""How many lines must place ranks the same way before a layout is believed that nobody asked for."""


class HostTable:
    """The attempt's hosts, answering in the allocation's spelling.

    Args:
        context: hosts, roster, addresses and the machine's key.
        told: (rank, host as spelled) pairs from lines of the same log that name both.
        tasks: (task, host as spelled) pairs of a launcher whose tasks may be ranks or whole hosts (``srun``).
        tasks_are_ranks: whether nothing speaks against one task being one rank.
        ordered: whether nothing speaks against the layout that the attempt is said to have.
    """

    def __init__(
        self,
        context: Context,
        told: Iterable[tuple[int, str]] = (),
        tasks: Iterable[tuple[int, str]] = (),
        *,
        tasks_are_ranks: bool = True,
        ordered: bool = True,
    ) -> None:
        self._context = context
        self._by_key: dict[str, str] = {}
        for host in context.hosts:
            key = context.key(host)
            if key is not None:
                self._by_key.setdefault(key, host)
        self._told = self._consistent(told)
        self._layout = self._choose_layout(ordered)
        self._tasks = self._consistent(tasks)
        if tasks_are_ranks and not self._told:
            if not self._derived():
                self._told = self._tasks
            elif not self._fits(self._tasks, self._layout):
                self._layout = ""

    @property
    def known(self) -> bool:
        """Whether the attempt's hosts are known at all."""
        return bool(self._by_key)

    @property
    def count(self) -> int:
        """How many hosts the attempt has; 0 when nobody told."""
        return len(self._by_key)

    @property
    def ranks(self) -> int:
        """How many ranks the attempt has; 0 when nobody can tell."""
        return len(self._context.roster) or self.count * (self._context.ranks_per_host or 0)

    def name(self, spelled: str | None) -> str | None:
        """The allocation's spelling of a host; ``None`` for a name outside the attempt or of an unknown shape.

        An address that is no host of the list itself is looked up in the table resolved at the edge. A name in brackets
        (a tag, a heading) may be anything: only a host list can tell.
        """
        if not spelled or (spelled.startswith("[") and not self.known):
            return None
        spelled = spelled.strip("[]")
        for candidate in (spelled, self._context.addresses.get(spelled)):
            if not candidate:
                continue
            key = self._context.key(candidate)
            if key is None:
                continue
            if key in self._by_key:
                return self._by_key[key]
            if not self.known and not _is_address(key) and any(map(str.isdigit, key)):
                return self._context.spell(candidate)
        return None

    def of_rank(self, rank: int | None) -> str | None:
        """The host a rank ran on: the roster first, then lines of the log that name both, then the layout."""
        if rank is None or rank < 0:
            return None
        roster = self._context.roster
        if roster:
            return self.name(roster[rank]) if rank < len(roster) else None
        if self._derived() and not self._layout:
            return None  # the log contradicts what the attempt is said to be: neither is believed
        if rank in self._told:
            return self._told[rank]
        return self._by_layout(rank, self._layout)

    def of_task(self, task: int | None) -> str | None:
        """The host a launcher's task ran on: from lines that name both, else where task and rank must be one."""
        if task is None or task < 0:
            return None
        if task in self._tasks:
            return self._tasks[task]
        if self._context.ranks_per_host == 1 or task >= max(len(self._context.hosts), 1):
            return self.of_rank(task)
        return None

    def _derived(self) -> bool:
        return bool(self._context.roster or (self._context.hosts and self._context.ranks_per_host))

    def _by_layout(self, rank: int, layout: str) -> str | None:
        hosts, per_host = self._context.hosts, self._context.ranks_per_host
        if not layout or not hosts or not per_host or rank >= len(hosts) * per_host:
            return None
        return self.name(hosts[rank % len(hosts)] if layout == "round_robin" else hosts[rank // per_host])

    def _choose_layout(self, ordered: bool) -> str:
        """The asked-for layout unless the log contradicts it; the other one only if several lines bear it out."""
        asked = self._context.layout
        other = "round_robin" if asked == "block" else "block"
        for layout in (asked, other):
            if self._fits(self._told, layout):
                borne_out = len(self._told) >= _LAYOUT_LINES and len(set(self._told.values())) > 1
                return layout if (layout == asked and ordered) or borne_out else ""
        return ""

    def _fits(self, places: Mapping[int, str], layout: str) -> bool:
        return all(self._by_layout(rank, layout) in (host, None) for rank, host in places.items())

    def _consistent(self, pairs: Iterable[tuple[int, str]]) -> dict[int, str]:
        seen: dict[int, str | None] = {}
        for rank, spelled in pairs:
            host = self.name(spelled)
            if host is None:
                continue
            seen[rank] = host if seen.get(rank, host) == host else None
        return {rank: host for rank, host in seen.items() if host is not None}


def _is_address(key: str) -> bool:
    return ":" in key or key.replace(".", "").isdigit()
