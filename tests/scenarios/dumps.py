"""What the trainer leaves of each step, one file per step, round and rank: tensors, their sums, and metrics."""

from __future__ import annotations

import hashlib
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

__all__ = ["Dump", "Key", "Metric", "Unreadable", "digest", "read", "write"]

Metric = int | float | str

_NAME = re.compile(r"step-(\d+)\.round-(\d+)\.rank-(\d+)\.pt")


class Unreadable(Exception):
    """A dump that is not what the trainer writes."""


class Key(NamedTuple):
    """Which dump."""

    step: int
    round: int
    rank: int


class Dump(NamedTuple):
    """One rank after one step.

    Args:
        tensors: by name; ``grad.``, ``param.``, ``optim.`` and ``act.`` in front say what each is. Those that are
            divided among ranks are told whole, but for activations, which have the rows of this rank.
        sums: name -> sha256 of the bytes, taken by the trainer.
        metrics: name -> value.
        rows: first, end and number of the batch's rows.
    """

    tensors: dict[str, torch.Tensor]
    sums: dict[str, str]
    metrics: dict[str, Metric]
    rows: tuple[int, int, int]


def digest(tensor: torch.Tensor) -> str:
    """sha256 of a tensor's bytes, in order."""
    flat = tensor.detach().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"").hexdigest()


def write(
    directory: Path,
    key: Key,
    tensors: Mapping[str, torch.Tensor],
    metrics: Mapping[str, Metric],
    rows: tuple[int, int, int],
) -> None:
    """Leave a dump; a reader sees all of it or nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{key.step}.round-{key.round}.rank-{key.rank}.pt"
    partial = path.with_suffix(".partial")
    # A view would bring all of what it is a view of along.
    kept = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    sums = {name: digest(tensor) for name, tensor in kept.items()}
    torch.save({"tensors": kept, "sums": sums, "metrics": dict(metrics), "rows": rows}, partial)
    partial.replace(path)


def read(directory: Path) -> dict[Key, Dump]:
    """All dumps of a directory.

    Raises:
        Unreadable: a file has another name or cannot be read.
    """
    found = {}
    for path in sorted(directory.glob("*")):
        name = _NAME.fullmatch(path.name)
        if name is None:
            raise Unreadable(f"{path} is no dump")
        try:
            data = torch.load(path, weights_only=True)
            found[Key(*map(int, name.groups()))] = Dump(
                data["tensors"], data["sums"], data["metrics"], tuple(data["rows"])
            )
        except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError, zipfile.BadZipFile) as e:
            raise Unreadable(f"{path} cannot be read: {e!r}") from e
    return found
