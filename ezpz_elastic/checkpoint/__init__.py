"""DCP checkpoints that survive a full target, a torn write and a restart on other hosts.

Usable from any torchrun script, and from a single process, with or without the agent.
"""

from __future__ import annotations

from ezpz_elastic.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    NoUsableCheckpoint,
    SaveFailed,
    Superseded,
)
from ezpz_elastic.checkpoint.filesystem import StripedWriter, VerifiedReader
from ezpz_elastic.checkpoint.manager import CheckpointManager

__all__ = [
    "CheckpointError",
    "CheckpointManager",
    "CorruptCheckpoint",
    "NoUsableCheckpoint",
    "SaveFailed",
    "StripedWriter",
    "Superseded",
    "VerifiedReader",
]
