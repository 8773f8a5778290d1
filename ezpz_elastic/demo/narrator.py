"""Says what the journals say, in plain words, as it happens."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from ezpz_elastic.faults.analysis.read import Event

__all__ = ["Narrator"]


class Narrator:
    """Prints one line per thing that matters.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """One line, with the time in front."""
        line = Text(f"{self.seconds:5.1f} s  ", style="dim")
        line.append(text, style=style or "default")
        self._console.print(line, soft_wrap=True)

    def tell(self, events: Iterable[Event]) -> None:
        """What is worth a line among new events."""
        for event in events:
            said = _words(event)
            if said is not None:
                self.say(*said)


def _words(event: Event) -> tuple[str, str] | None:
    """A line and its style; ``None`` for what goes without saying."""
    fields, number, said = event.fields, event.round, None
    match event.name:
        case "round_committed":
            slots = ", ".join(f"{host} in slot {slot}" for slot, host in enumerate(fields["roster"]))
            said = f"round {number} opens: {slots}", "bold"
        case "checkpoint_restored":
            said = f"round {number} resumes from the checkpoint of step {fields['step']}", ""
        case "progress" if "validation_loss" in fields:
            said = f"round {number}, step {fields['step']}: validation loss {fields['validation_loss']:.3f}", ""
        case "verdict":
            cause = "" if fields["kind"] == "success" else f" ({fields['cause']})"
            said = f"verdict on round {number}: {fields['kind']}{cause}: {fields['reason']}", "yellow"
        case "decision":
            said = f"decision: {fields['action']}: {fields['reason']}", "cyan"
        case "host_retired":
            said = f"{fields['retired']} is retired, provenance {fields['provenance']}", "cyan"
    return said
