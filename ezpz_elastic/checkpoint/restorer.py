"""Finding the newest step that verifies, and putting it back where it came from.

One rank looks, all ranks load, and one answer is made of what they all saw: a step that any rank finds damaged is
damaged for every rank, is set aside by one of them, and all go on to the step before it.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from ezpz_elastic.checkpoint import tree
from ezpz_elastic.checkpoint.errors import CheckpointError, FailureKind, RanksFailed
from ezpz_elastic.checkpoint.peers import Peers, all_reduce
from ezpz_elastic.checkpoint.reader import VerifiedReader, decoding
from ezpz_elastic.checkpoint.tree import PerRank
from ezpz_elastic.errors import UsageError

__all__ = ["Damaged", "load_step"]


class Damaged(CheckpointError):
    """At least one rank found the step damaged.

    Args:
        reason: what the lowest such rank found.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def load_step(peers: Peers, path: Path, state: dict[str, Any]) -> None:
    """Load one step into ``state``, all ranks or none.

    Args:
        peers: the ranks.
        path: the step's directory.
        state: modules, optimizers, ``Stateful``s and tensors are loaded in place, plain values are replaced in this
            dict.

    Raises:
        Damaged: on every rank; what was loaded already stays loaded and is to be overwritten from another step.
        UsageError: on every rank; the step does not fit the state.
        RanksFailed: on every rank; the file system failed, which says nothing about the step.
    """
    loaded: list[Callable[[], None]] = []

    def local() -> None:
        loaded.append(_load(path, state, peers.rank))

    try:
        all_reduce(peers, f"loading {path}", local, lambda answers: answers)
        # Handing over runs the caller's code (hooks of load_state_dict), so it is the last thing and outside of the
        # question whether the step is damaged.
        all_reduce(peers, f"restoring from {path}", loaded[0], lambda answers: answers)
    except RanksFailed as failed:
        for failure in failed.failures:
            if failure.kind is FailureKind.CORRUPT:
                raise Damaged(f"{failure.text} (found by rank {failure.rank})") from failed
        for failure in failed.failures:
            if failure.kind is FailureKind.USAGE:
                raise UsageError(failure.text) from failed
        raise


def _load(path: Path, state: dict[str, Any], rank: int) -> Callable[[], None]:
    """Read everything; the returned call hands it to its owners."""
    if not path.is_dir():
        # Not to be taken for a damaged step: on this rank every step would look like that.
        raise UsageError(
            f"rank {rank} on {socket.gethostname()} does not see {path}, which rank 0 found",
            expected="a checkpoint directory on a file system that all ranks share",
        )
    reader = VerifiedReader(path)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, rank == 0)
    values: dict[str, Any] = {}
    wanted: dict[str, Any] = {}
    for key, given in state.items():
        value = given.value if isinstance(given, PerRank) else given
        name = _name_of(metadata, key, given, rank)
        outline = _outline(reader, metadata, name, value) if name is not None else None
        if name is None or outline is None:
            if _is_empty(value):
                continue  # an empty container leaves nothing in a plain DCP directory
            raise UsageError(
                f"{path} has nothing saved under {key!r}", hint="restore with the keys that were saved, or leave it out"
            )
        wanted[key] = outline
        values.update(_targets(path, metadata, name, value, outline))
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(values, metadata, rank == 0)
    plan = planner.finish_plan(planner.create_global_plan([planner.create_local_plan()])[0])
    reader.read_data(reader.prepare_local_plan(plan), planner).wait()

    def hand_over() -> None:
        for key, outline in wanted.items():
            _give(state, key, tree.rebuild(outline, values))

    return hand_over


def _give(state: dict[str, Any], key: str, value: Any) -> None:
    given = state[key]
    owner = given.value if isinstance(given, PerRank) else given
    if isinstance(owner, Stateful):
        owner.load_state_dict(value)
    elif isinstance(given, PerRank):
        given.value = value
    else:
        state[key] = value


def _name_of(metadata: Metadata, key: str, given: Any, rank: int) -> str | None:
    if not isinstance(given, PerRank):
        return key
    whose = tree.rank_with(metadata, key, rank)
    return tree.rank_name(key, whose) if whose is not None else None


def _is_empty(value: Any) -> bool:
    return isinstance(value, Mapping) and not value


def _outline(reader: VerifiedReader, metadata: Metadata, name: str, value: Any) -> Any:
    saved = tree.outline_name(name)
    if saved not in metadata.state_dict_metadata:
        return tree.metadata_tree(metadata, name, integer_keys=isinstance(value, torch.optim.Optimizer))
    info = metadata.storage_data[MetadataIndex(saved)]
    shard = reader.open(info.relative_path)
    try:
        raw = shard.read(info.offset, info.length)
    finally:
        shard.close()
    with decoding(shard.path, saved, shard.summed):
        (outline,) = torch.load(io.BytesIO(raw), weights_only=False)
    return outline


def _targets(path: Path, metadata: Metadata, key: str, value: Any, outline: Any) -> dict[str, Any]:
    """Where to load each leaf of one of the caller's values."""
    names = tree.leaves_of(outline)
    existing: dict[str, Any] = {}
    current = tree.state_dict_of(value)
    tree.find(current, outline, existing)
    if isinstance(value, torch.nn.Module):
        _check_module(path, key, current, names, metadata)
    elif isinstance(value, torch.optim.Optimizer):
        existing.update(_like_parameters(value, outline, existing, metadata))
    elif isinstance(value, torch.Tensor):
        _check_tensor(path, key, value, metadata)
    return {name: tree.placeholder(metadata, name, existing.get(name)) for name in names}


def _check_module(path: Path, key: str, current: Mapping[str, Any], names: list[str], metadata: Metadata) -> None:
    """A module that does not fit is the caller's mistake, and is told before the first byte is loaded."""
    mine = {f"{key}.{name}": value for name, value in current.items() if isinstance(value, torch.Tensor)}
    saved = {n for n in names if isinstance(metadata.state_dict_metadata[n], TensorStorageMetadata)}
    trouble = [f"missing {name}" for name in sorted(mine.keys() - saved)]
    trouble += [f"unexpected {name}" for name in sorted(saved - mine.keys())]
    for name in sorted(mine.keys() & saved):
        size = metadata.state_dict_metadata[name].size
        if size != mine[name].size():
            trouble.append(f"{name} is {tuple(mine[name].size())} here and {tuple(size)} there")
    if trouble:
        shown = ", ".join(trouble[:5]) + (f" and {len(trouble) - 5} more" if len(trouble) > 5 else "")
        raise UsageError(f"{path} does not fit {key!r}: {shown}", expected="the model that was saved")


def _check_tensor(path: Path, key: str, value: torch.Tensor, metadata: Metadata) -> None:
    stored = metadata.state_dict_metadata.get(key)
    size = getattr(stored, "size", None)
    if size != value.size():
        there = tuple(size) if size is not None else "no tensor"
        raise UsageError(f"{path} does not fit {key!r}: it is {tuple(value.size())} here and {there} there")


def _like_parameters(
    optimizer: torch.optim.Optimizer, outline: Any, existing: Mapping[str, Any], metadata: Metadata
) -> dict[str, Any]:
    """Targets for the state of an optimizer that has made no step yet: laid out, and sharded, as its parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    made: dict[str, Any] = {}
    states = outline.get("state", {}) if isinstance(outline, Mapping) else {}
    for index, entries in states.items():
        if not isinstance(index, int) or index >= len(parameters) or not isinstance(entries, Mapping):
            continue
        parameter = parameters[index]
        for leaf in entries.values():
            if not isinstance(leaf, tuple) or existing.get(leaf[0]) is not None:
                continue
            stored = metadata.state_dict_metadata[leaf[0]]
            if isinstance(stored, TensorStorageMetadata) and stored.size == parameter.size():
                like = parameter if isinstance(parameter, DTensor) else parameter.detach()
                made[leaf[0]] = torch.empty_like(like, dtype=stored.properties.dtype, requires_grad=False)
    return made
