"""What a job's output tells of its progress while it passes by: where it resumed, and what it has saved.

It only ever gives a restart its budget back, and blames nobody. Three sources, none of which needs the others: a
checkpoint directory of ours if one is named, a line that says that a checkpoint was saved, and the first step that an
attempt shows: one that begins at step 51 has read a checkpoint of step 50.
"""

from __future__ import annotations

import re
from pathlib import Path

from ezpz_elastic.checkpoint import layout
from ezpz_elastic.observe.steps import first_step

__all__ = ["StepEye", "newest_checkpoint"]

_SAVED = re.compile(rb"(?i)(?:saved (?:a )?checkpoint|checkpoint saved)[^\n]{0,400}?step[-_ =:]{0,3}(\d{1,12})(?!\d)")
_CARRY = 64 << 10
"""Bytes of an unfinished line that are kept until its end comes; of a longer one only the last are looked at."""

_START = 64 << 20
"""Bytes of output in which the first step has to come; whoever is silent for longer shows none."""


class StepEye:
    """Watches one attempt's output.

    Attributes:
        first: the first step shown; ``None`` before it.
        saved: the highest step of which the program says that it is saved; ``None`` if it says so of none.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.saved: int | None = None
        self._carry = b""
        self._seen = 0

    def see(self, data: bytes) -> None:
        """A piece of output, in order; numbers are read when their line is whole."""
        text = self._carry + data
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._carry = text[end:][-_CARRY:]
        self._read(text[:end])

    def finish(self) -> None:
        """Nothing more comes: the last line needs no end."""
        self._read(self._carry)
        self._carry = b""

    def _read(self, text: bytes) -> None:
        self._seen += len(text)
        if self.first is None and self._seen <= _START:
            self.first = first_step(text)
        if b"aved" in text:
            for found in _SAVED.finditer(text):
                self.saved = max(int(found.group(1)), self.saved or 0)


def newest_checkpoint(directory: Path | None) -> int | None:
    """The newest complete step in a checkpoint directory; ``None`` if there is none, or it cannot be read now."""
    if directory is None:
        return None
    try:
        steps = layout.steps(directory)
    except OSError:
        return None
    return next((step for step, path in steps if (path / layout.COMPLETE).exists()), None)
