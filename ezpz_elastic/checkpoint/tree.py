"""From the caller's state to DCP's flat one, and back without loss.

DCP flattens nested containers to dotted names and forgets what they were: integer keys come back as strings, empty
containers and subclasses of ``dict`` (a scheduler's ``Counter``, say) do not come back at all. So an *outline* of the
state is saved beside the leaves, under names that plain ``dcp.load`` never asks for; with it,
what comes back equals what went in. A directory without an outline (plain DCP) is rebuilt from DCP's own paths.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.stateful import Stateful

__all__ = [
    "PerRank",
    "describe",
    "find",
    "leaves_of",
    "metadata_tree",
    "outline_name",
    "placeholder",
    "rank_name",
    "rank_with",
    "rebuild",
    "state_dict_of",
]

OUTLINE = "__ezpz_outline__"

# A leaf of an outline is the name that DCP stores it under, as a tuple of one. DCP never opens a tuple, so there are no
# others in an outline; and a builtin, unlike a class of ours, can be unpickled where this package is not installed.


def state_dict_of(value: Any) -> Any:
    """What DCP is to store for one of the caller's values."""
    return value.state_dict() if isinstance(value, Stateful) else value


def _is_leaf(value: Any) -> bool:
    """DCP's own rule for where flattening stops: lists are opened only for tensors and mappings inside."""
    if isinstance(value, Mapping):
        return False
    if not isinstance(value, list):
        return True
    return all(not isinstance(entry, torch.Tensor) and _is_leaf(entry) for entry in value)


def _outline(value: Any, name: str) -> Any:
    if _is_leaf(value):
        return (name,)
    if isinstance(value, list):
        return [_outline(entry, f"{name}.{index}") for index, entry in enumerate(value)]
    if isinstance(value, MutableMapping):
        same = copy.copy(value)
        for key, entry in value.items():
            same[key] = _outline(entry, f"{name}.{key}")
        return same
    return {key: _outline(entry, f"{name}.{key}") for key, entry in value.items()}


class PerRank:
    """Marks a value of the state that differs from rank to rank: a random state, a position in the data.

    DCP takes values of the same name for the same value and keeps one; these are kept under a name per rank. On another
    number of ranks, a rank that has none of its own gets one of those there are, in turn.

    Args:
        value: what ``save`` takes; replaced by ``restore`` unless it is loaded in place.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


def rank_name(key: str, rank: int) -> str:
    """The name under which rank ``rank`` keeps its ``PerRank`` value."""
    return f"{key}@{rank}"


def outline_name(key: str) -> str:
    """The name under which the outline of ``key`` is kept."""
    return f"{OUTLINE}.{key}"


def describe(state: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The state as DCP takes it, outlines included.

    Args:
        state: the caller's: modules, optimizers, ``Stateful``s, tensors, plain values, any of them ``PerRank``.
        rank: of this process.
    """
    described = {}
    for key, value in state.items():
        if isinstance(value, PerRank):
            described[rank_name(key, rank)] = state_dict_of(value.value)
        else:
            described[key] = state_dict_of(value)
    # Tuples, because DCP stores one as it is while it would open a dict.
    outlines = {outline_name(key): (_outline(value, key),) for key, value in described.items()}
    return {**described, **outlines}


def rank_with(metadata: Metadata, key: str, rank: int) -> int | None:
    """Whose ``PerRank`` value ``rank`` is to get; ``None`` if there is none."""
    start = outline_name(f"{key}@")
    there = sorted(int(n.removeprefix(start)) for n in metadata.state_dict_metadata if n.startswith(start))
    if not there:
        return None
    return rank if rank in there else there[rank % len(there)]


def leaves_of(outline: Any) -> list[str]:
    """Names of the leaves an outline asks for, in order."""
    if isinstance(outline, tuple):
        return [outline[0]]
    if isinstance(outline, Mapping):
        return [name for entry in outline.values() for name in leaves_of(entry)]
    if isinstance(outline, list):
        return [name for entry in outline for name in leaves_of(entry)]
    return []


def rebuild(outline: Any, values: Mapping[str, Any]) -> Any:
    """An outline with its leaves filled in."""
    if isinstance(outline, tuple):
        return values[outline[0]]
    if isinstance(outline, list):
        return [rebuild(entry, values) for entry in outline]
    if isinstance(outline, MutableMapping):
        same = copy.copy(outline)
        for key, entry in outline.items():
            same[key] = rebuild(entry, values)
        return same
    return outline


def metadata_tree(metadata: Metadata, key: str, *, integer_keys: bool) -> Any:
    """An outline made from DCP's paths, for a directory that has none.

    Args:
        metadata: of the directory.
        key: name in the caller's state.
        integer_keys: read digits in paths as integers, as optimizers number their parameters.

    Returns:
        The outline; ``None`` if the directory has nothing under ``key``.
    """
    paths = metadata.planner_data or {}
    root: dict[Any, Any] = {}
    for name in metadata.state_dict_metadata:
        path = paths.get(name, (name,))
        if str(path[0]) != key:
            continue
        if len(path) == 1:
            return (name,)
        node = root
        for part in path[1:-1]:
            node = node.setdefault(_key(part, integer_keys), {})
        node[_key(path[-1], integer_keys)] = (name,)
    return _lists(root, paths_with_lists(paths, key), (key,)) if root else None


def paths_with_lists(paths: Mapping[str, Any], key: str) -> set[tuple[str, ...]]:
    """The prefixes under ``key`` that are lists: DCP writes list indices as ``int`` and keys as ``str``."""
    return {
        tuple(str(part) for part in path[:at])
        for path in paths.values()
        if str(path[0]) == key
        for at in range(1, len(path))
        if isinstance(path[at], int)
    }


def _key(part: Any, integer_keys: bool) -> Any:
    if isinstance(part, int):
        return part
    return int(part) if integer_keys and part.isdigit() else part


def _lists(node: Any, lists: set[tuple[str, ...]], at: tuple[str, ...]) -> Any:
    if isinstance(node, tuple):
        return node
    children = {key: _lists(child, lists, (*at, str(key))) for key, child in node.items()}
    if at in lists:
        return [children[index] for index in sorted(children)]
    return children


def placeholder(metadata: Metadata, name: str, existing: Any) -> Any:
    """What to load ``name`` into: the tensor that is there if it fits, else a new one on the host, else anything.

    Args:
        metadata: of the directory.
        name: DCP's name.
        existing: what the caller has at that place now, or ``None``.
    """
    stored = metadata.state_dict_metadata[name]
    if not isinstance(stored, TensorStorageMetadata):
        return None
    if isinstance(existing, torch.Tensor) and existing.size() == stored.size:
        return existing
    return torch.empty(stored.size, dtype=stored.properties.dtype)


def find(value: Any, outline: Any, found: dict[str, Any]) -> None:
    """Collect into ``found`` what ``value`` has where ``outline`` has leaves."""
    if isinstance(outline, tuple):
        found[outline[0]] = value
    elif isinstance(outline, Mapping) and isinstance(value, Mapping):
        for key, entry in outline.items():
            if key in value:
                find(value[key], entry, found)
    elif isinstance(outline, list) and isinstance(value, list):
        for entry, child in zip(outline, value, strict=False):
            find(child, entry, found)
