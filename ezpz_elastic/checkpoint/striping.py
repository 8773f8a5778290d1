"""Which storage target each shard goes to. Pure: sizes and a table in, a placement out; no clock, no I/O, no torch.

A file system at 10 % can be out of space for a job: a shard with stripe count 1 lies wholly on one target, and that one
may be full. So every shard is placed by name, before its first byte, on a target that can hold it with a margin.

- Shards up to ``widen_above`` get stripe count 1. They are spread so that the fullest target, measured in shard bytes
  per free byte, is as empty as can be (``balance.py``).
- Larger shards are widened over as many targets as the threshold goes into their size.
- Targets that are inactive, excluded by the caller (they just failed), or fuller than the margin allows, get nothing.

The same arguments give the same placement on every rank; the order of targets in the table does not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from ezpz_elastic.checkpoint.balance import Loads, balance

__all__ = ["NoRoom", "Ost", "Placement", "Policy", "healthy", "place", "replacement", "usable"]

GB = 10**9


class Ost(msgspec.Struct, frozen=True):
    """One object storage target.

    Args:
        index: as Lustre numbers it.
        total: bytes.
        free: bytes available to this user.
        inodes_free: objects it can still hold; ``None`` if not known.
        active: whether it takes new objects.
        name: e.g. ``tegu-OST0002_UUID``; empty if not known.
    """

    index: int
    total: int
    free: int
    inodes_free: int | None = None
    active: bool = True
    name: str = ""


class Policy(msgspec.Struct, frozen=True):
    """How to place.

    Args:
        count: stripe count for every shard; 0 chooses it by size.
        stripe_size: bytes per stripe of a widened shard.
        widen_above: shards larger than this, bytes, are striped over several targets, one per so many bytes. 100 GB is
            TACC's rule; OLCF's default layout goes from one stripe to eight at 128 GB (docs/checkpoints.md).
        margin: share of a target that is left free, because others write there too.
        margin_bytes: and at least so many bytes, though never more than a twentieth of the target.
    """

    count: int = 0
    stripe_size: int = 16 << 20
    widen_above: int = 100 * GB
    margin: float = 0.01
    margin_bytes: int = 64 << 20


class Placement(msgspec.Struct, frozen=True):
    """Where one file goes.

    Args:
        osts: target indices, as many as its stripe count; empty for the directory's default layout.
        stripe_size: bytes; 0 for the file system's default.
    """

    osts: tuple[int, ...] = ()
    stripe_size: int = 0


class NoRoom(Exception):
    """Nothing fits; raised before the first byte.

    Args:
        needed: bytes of the shard that found no place.
        free: target index -> bytes usable there, after what was placed already.
    """

    def __init__(self, needed: int, free: dict[int, int]) -> None:
        self.needed = needed
        self.free = free
        table = ", ".join(f"OST {index}: {room} B" for index, room in sorted(free.items()))
        super().__init__(f"a shard of {needed} B fits on no target ({table or 'no target is usable'})")


def usable(osts: Sequence[Ost], policy: Policy, exclude: Collection[int] = ()) -> dict[int, int]:
    """Bytes that may be placed on each target, by index; targets without room are not in it."""
    room = {}
    for ost in osts:
        if not ost.active or ost.index in exclude or ost.inodes_free == 0:
            continue
        left = ost.free - max(int(ost.total * policy.margin), min(policy.margin_bytes, ost.total // 20))
        if left > 0:
            room[ost.index] = left
    return dict(sorted(room.items()))


def healthy(osts: Sequence[Ost], policy: Policy, exclude: Collection[int] = ()) -> tuple[Placement, ...]:
    """For ``.metadata`` and the manifest: the targets with room, lowest number first.

    Raises:
        NoRoom: there is none.
    """
    room = usable(osts, policy, exclude)
    if not room:
        raise NoRoom(0, {})
    return tuple(Placement((index,), policy.stripe_size) for index in room)


def place(
    sizes: Sequence[int], osts: Sequence[Ost], policy: Policy, exclude: Collection[int] = ()
) -> tuple[Placement, ...]:
    """A target for every shard.

    Args:
        sizes: bytes of each shard, in rank order.
        osts: the table.
        policy: how.
        exclude: indices that are not to be used, because they just failed.

    Returns:
        A placement per shard, in rank order.

    Raises:
        NoRoom: some shard fits nowhere; nothing is placed.
    """
    room = usable(osts, policy, exclude)
    counts = [_count(size, policy, len(room)) for size in sizes]
    loads = Loads(room)
    chosen: dict[int, tuple[int, ...]] = {}
    # Longest first: what is hard to place is placed while there is room; rank breaks ties.
    order = sorted(range(len(sizes)), key=lambda rank: (-sizes[rank], rank))
    for rank in order:
        part = -(-sizes[rank] // counts[rank])
        chosen[rank] = loads.emptiest(part, counts[rank])
        if len(chosen[rank]) < counts[rank]:
            raise NoRoom(sizes[rank], loads.left())
        loads.add(chosen[rank], part)
    if all(count == 1 for count in counts):
        single = {rank: osts_[0] for rank, osts_ in chosen.items()}
        balance(sizes, order, single, loads)
        chosen = {rank: (index,) for rank, index in single.items()}
    return tuple(Placement(chosen[rank], policy.stripe_size) for rank in range(len(sizes)))


def replacement(rank: int, size: int, osts: Sequence[Ost], policy: Policy, exclude: Collection[int]) -> Placement:
    """Another target for a shard whose target just failed; needs no word with the other ranks.

    Ranks start at different targets, so that the refugees of one full target do not all fill the next one.

    Raises:
        NoRoom: there is none.
    """
    room = {index: left for index, left in usable(osts, policy, exclude).items() if left >= size}
    if not room:
        raise NoRoom(size, usable(osts, policy, exclude))
    by_room = sorted(room, key=lambda index: (-room[index], index))
    # Only targets with at least half the room of the best are worth spreading over.
    roomy = [index for index in by_room if 2 * room[index] >= room[by_room[0]]]
    return Placement((roomy[rank % len(roomy)],), policy.stripe_size)


def _count(size: int, policy: Policy, targets: int) -> int:
    if policy.count:
        return min(policy.count, max(targets, 1))
    if size <= policy.widen_above:
        return 1
    return min(-(-size // policy.widen_above), max(targets, 1))
