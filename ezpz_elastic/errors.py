"""The one exception a user can cause: what was wrong, what was expected, what to do."""

from __future__ import annotations

__all__ = ["UsageError"]


class UsageError(Exception):
    """Wrong input from a person, told in one line.

    Args:
        message: what was wrong, with the offending value.
        expected: what would have been accepted.
        hint: what to do now.
    """

    def __init__(self, message: str, *, expected: str = "", hint: str = "") -> None:
        self.message = message
        self.expected = expected
        self.hint = hint
        super().__init__(self.line())

    def line(self) -> str:
        """All of it as one line, fit for a terminal and for ``grep``."""
        parts = [self.message]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "; ".join(part.replace("\n", " ") for part in parts)
