"""The last training step a log shows, found without matching every progress line (rule 14)."""

from __future__ import annotations

import re
from itertools import islice

__all__ = ["StepTracker", "first_step"]

_ESCAPE = re.compile(rb"\x1b\[[0-9;:?]{0,64}[@-~]")
_STEP = re.compile(
    rb"(?<![\w\-])(?<!from )(?<!at )(?<!@ )(?<!to )(?<!of )(?<!checkpoint )(?<!after )(?<!before )"
    rb"(?:global[_ ]|train(?:ing)?[_/ ])?(?:step|iter|iteration)['\"]?"
    rb"(?:[ \t]{0,4}[=:][ \t]{0,8}|[ \t]{1,12})[\[(]?(\d{1,12})(?![\d.]*[\w\-])",
    re.I,
)
_NOT_TRAINING = re.compile(rb"resum|restor|loaded|loading|saved|saving|starting|failed|error:", re.I)
_WINDOW = 768
_FURTHER_BACK = (8192, 65536, 524288)
_ANEW_STEPS = 50
"""So many steps from where the counter had fallen to are no other ranks' buffered lines: training has begun anew."""
_ANEW_BYTES, _ANEW_PLACES = 65536, 8
_SKEW = 8
"""Steps that one rank's lines may come behind another's."""
_WORD = re.compile(rb"[Ss]tep|[Ii]ter")
_WORDS = (b"step", b"iter", b"Step", b"Iter")


def first_step(data: bytes) -> int | None:
    """The first training step that some output shows; ``None`` if it shows none."""
    return next(iter(_steps(data)), None) if any(word in data for word in _WORDS) else None


class StepTracker:
    """Follows the step counter through chunks of one log.

    Attributes:
        last: the last step seen; ``None`` before the first.
        before: the one that was shown before it and differs from it; ``None`` if only one was ever seen.
        begun: the step to which the counter fell last, when training began anew; ``None`` if it never fell.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self.before: int | None = None
        self.begun: int | None = None
        self._at_end = False

    def since(self, step: int | None) -> int | None:
        """How far training came after ``step``: that step itself where only one line says that it went on.

        One progress line behind a failure was buffered, or is another rank's; the last line of a log is no better.
        Where the counter has fallen since, what was trained from there on counts as if it had gone on from ``step``.
        """
        if step is not None and self.last is not None and self.begun is not None and self.last < step:
            made = self.last - self.begun
            return step + made if made >= _ANEW_STEPS else step
        if self.last is None or self.before is None or (step is not None and self.before <= step):
            return step
        return self.before if self._at_end else max(self.before, self.last)

    def end(self, tail: bytes) -> None:
        """The log has ended with ``tail``, which was seen before: whether its last line is one of progress."""
        lines = tail.rstrip().splitlines()
        self._at_end = bool(lines and _steps(lines[-1]))

    def see(self, data: bytes, end: int, start: int = 0, *, whole: bool = False) -> bool:
        """Take note of ``data[start:end]``, which follows what was seen before; whether it shows a step.

        A ``whole`` chunk, with no line of interest in it, need not show two steps. Costs a few microseconds where
        progress lines are dense, and never more than a few passes over the bytes.
        """
        steps = _last_in(data, start, end, further=not whole)
        for step in steps:
            if step != self.last:
                if self.last is not None and step < self.last - _SKEW:
                    self.begun = min([step, *_first_in(data, start, min(end, start + _ANEW_BYTES))])
                self.before, self.last = self.last, step
        return bool(steps)


def _first_in(data: bytes, start: int, end: int) -> list[int]:
    """The first few steps, of the first few places where the word stands."""
    found: list[int] = []
    for place in islice(_WORD.finditer(data, start, end), _ANEW_PLACES):
        found += _steps(data[max(start, place.start() - 80) : min(place.end() + 64, end)])
    return found


def _last_in(data: bytes, start: int, end: int, *, further: bool) -> list[int]:
    """The last steps, two different ones if that is cheap: the last few lines, else where the word stands last."""
    top = max(start, end - _WINDOW)
    found = _steps(data[top:end])
    for _ in range(4):
        if found or top <= start:
            break
        place = max(data.rfind(word, start, top) for word in _WORDS)
        if place < 0:
            break
        low = max(start, place - _WINDOW // 2)
        found, top = _steps(data[low : min(place + 64, end)]), low
    if not further or not found or len(set(found)) > 1:
        return found
    for back in _FURTHER_BACK:  # many ranks show the same step, one after the other
        low = max(start, end - back)
        if low >= top:
            break
        earlier = _steps(data[low : min(low + _WINDOW, top)])
        if any(step != found[0] for step in earlier):
            return earlier + found
    return found


def _steps(window: bytes) -> list[int]:
    text = _ESCAPE.sub(b"", window)
    steps: list[int] = []
    for found in _STEP.finditer(text):
        start = max(text.rfind(b"\n", 0, found.start()) + 1, found.start() - 80)
        if not _NOT_TRAINING.search(text, start, found.start()):
            steps.append(int(found.group(1)))
    return steps
