"""DCP checkpoints that survive a full target, a torn write and a restart on other hosts.

Usable from any torchrun script, and from a single process, with or without the agent. The names are loaded on first
use, so that looking after a directory (``ezpz-elastic checkpoint ls``) does not pay for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ezpz_elastic.checkpoint.background import SaveHandle
    from ezpz_elastic.checkpoint.errors import (
        CheckpointError,
        CorruptCheckpoint,
        NoUsableCheckpoint,
        SaveFailed,
        Superseded,
    )
    from ezpz_elastic.checkpoint.filesystem import StripedWriter
    from ezpz_elastic.checkpoint.manager import CheckpointManager
    from ezpz_elastic.checkpoint.reader import VerifiedReader
    from ezpz_elastic.checkpoint.tree import PerRank

__all__ = [
    "CheckpointError",
    "CheckpointManager",
    "CorruptCheckpoint",
    "NoUsableCheckpoint",
    "PerRank",
    "SaveFailed",
    "SaveHandle",
    "StripedWriter",
    "Superseded",
    "VerifiedReader",
]

_HOMES = {
    "CheckpointError": "errors",
    "CheckpointManager": "manager",
    "CorruptCheckpoint": "errors",
    "NoUsableCheckpoint": "errors",
    "PerRank": "tree",
    "SaveFailed": "errors",
    "SaveHandle": "background",
    "StripedWriter": "filesystem",
    "Superseded": "errors",
    "VerifiedReader": "reader",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
