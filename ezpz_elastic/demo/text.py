"""Real text that every machine with Python has: the standard library's own sources, as bytes."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch

__all__ = ["Corpus", "read_corpus"]

VALIDATION_EVERY = 8
"""Every eighth file is for validation; the others are for training."""

LIMIT = 4 << 20
"""Bytes to read at most; more would not be seen in a short run."""


class Corpus(NamedTuple):
    """Bytes as one-dimensional uint8 tensors."""

    train: torch.Tensor
    validation: torch.Tensor


def read_corpus(directory: Path | None = None, limit: int = LIMIT) -> Corpus:
    """Read the sources in a fixed order, so that every rank and every round sees the same text.

    Args:
        directory: where ``*.py`` files are; the standard library by default.
        limit: bytes to read at most.

    Raises:
        FileNotFoundError: there are too few files to train and to validate on.
    """
    root = directory if directory is not None else Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    total = 0
    for number, path in enumerate(sorted(root.glob("*.py"))):
        if total >= limit:
            break
        data = path.read_bytes()
        total += len(data)
        parts[number % VALIDATION_EVERY == VALIDATION_EVERY - 1].append(data)
    if not all(parts):
        raise FileNotFoundError(f"{root} holds fewer than {VALIDATION_EVERY} Python sources")
    train, validation = (torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8) for part in parts)
    return Corpus(train, validation)
