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

    def see(self, chunk: bytes, end: int) -> bool:
        """Take note of a chunk up to ``end``, in order; whether it shows a step.

        Costs a few microseconds where progress lines are dense.
        """
        found = self._last_in(chunk, end)
        if found is not None:
            self.last = found
        return found is not None

    def before(self, buffer: bytes, at: int) -> int | None:
        """The last step shown before position ``at`` of ``buffer``, the chunks before it included."""
        found = self._last_in(buffer, at)
        return self.last if found is None else found

    def _last_in(self, data: bytes, end: int) -> int | None:
        """Look at the last few lines first, then where the word stands last, a few times."""
        found = _last_step(data[max(0, end - _WINDOW) : end])
        top = end - _WINDOW
        for _ in range(4):
            if found is not None or top <= 0:
                return found
            place = max(data.rfind(word, 0, top) for word in _WORDS)
            if place < 0:
                return None
            found = _last_step(data[max(0, place - _WINDOW // 2) : place + 64])
            top = place - _WINDOW // 2
        return found


def _last_step(window: bytes) -> int | None:
    text = _ESCAPE.sub(b"", window)
    last: int | None = None
    for found in _STEP.finditer(text):
        start = max(text.rfind(b"\n", 0, found.start()) + 1, found.start() - 80)
        if not _NOT_TRAINING.search(text, start, found.start()):
            last = int(found.group(1))
    return last
