"""The last training step a log shows, found without matching every progress line (rule 14)."""

from __future__ import annotations

import re

__all__ = ["StepTracker"]

_ESCAPE = re.compile(rb"\x1b\[[0-9;:?]{0,64}[@-~]")
_STEP = re.compile(
    rb"(?<![\w\-])(?<!from )(?<!at )(?<!@ )(?<!to )(?<!of )(?<!checkpoint )(?<!after )(?<!before )"
    rb"(?:global[_ ]|train(?:ing)?[_/ ])?(?:step|iter|iteration)['\"]?"
    rb"(?:[ \t]{0,4}[=:][ \t]{0,8}|[ \t]{1,12})[\[(]?(\d{1,12})(?![\d.]*[\w\-])",
    re.I,
)
_NOT_TRAINING = re.compile(rb"resum|restor|loaded|loading|saved|saving|starting", re.I)
_WINDOW = 768
_WORDS = (b"step", b"iter", b"Step", b"Iter")


class StepTracker:
    """Follows the step counter through chunks of one log.

    Attributes:
        last: the last step seen; ``None`` before the first.
    """

    def __init__(self) -> None:
        self.last: int | None = None

    def see(self, data: bytes, end: int, start: int = 0) -> bool:
        """Take note of ``data[start:end]``, which follows what was seen before; whether it shows a step.

        Costs a few microseconds where progress lines are dense, and never more than a few passes over the bytes.
        """
        found = _last_in(data, start, end)
        if found is not None:
            self.last = found
        return found is not None


def _last_in(data: bytes, start: int, end: int) -> int | None:
    """Look at the last few lines first, then where the word stands last, a few times."""
    top = max(start, end - _WINDOW)
    found = _last_step(data[top:end])
    for _ in range(4):
        if found is not None or top <= start:
            return found
        place = max(data.rfind(word, start, top) for word in _WORDS)
        if place < 0:
            return None
        low = max(start, place - _WINDOW // 2)
        found, top = _last_step(data[low : min(place + 64, end)]), low
    return found


def _last_step(window: bytes) -> int | None:
    text = _ESCAPE.sub(b"", window)
    last: int | None = None
    for found in _STEP.finditer(text):
        start = max(text.rfind(b"\n", 0, found.start()) + 1, found.start() - 80)
        if not _NOT_TRAINING.search(text, start, found.start()):
            last = int(found.group(1))
    return last
