"""The demo's closing tables: what became of each round, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from ezpz_elastic.demo.checks import redone
from ezpz_elastic.demo.story import Round

__all__ = ["rounds_table", "spans_table"]

_BEGINNING = ("standby", "rendezvous", "spawn", "import", "init_process_group", "build", "load", "first_step")
_END = ("detect", "settle", "decide", "stop")
_NONE = "–"


def rounds_table(lives: Sequence[Round]) -> Table:
    """One row per round; fits into 80 columns.

    Args:
        lives: the rounds, from the journals.
    """
    made = Table(title="What became of each round (from the journals)", box=box.SIMPLE_HEAVY, title_justify="left")
    made.pad_edge, made.padding = False, (0, 1, 0, 0)
    for name in ("round", "resumed from", "died at", "redone steps"):
        made.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    for name in ("hosts\nby slot", "verdict", "retired"):
        made.add_column(name, no_wrap=True)
    for life, after in zip(lives, [*lives[1:], None], strict=True):
        again = redone(life, after) if after is not None else None
        made.add_row(
            str(life.number),
            _NONE if life.resumed_from is None else str(life.resumed_from),
            _NONE if after is None or life.reached is None else str(life.reached),
            _NONE if again is None else str(again),
            "\n".join(life.hosts),
            life.kind if life.kind == "success" else f"{life.kind}\n{life.cause}",
            "\n".join(f"{item.host}\n{item.provenance}" for item in life.retired) or _NONE,
        )
    return made


def spans_table(lives: Sequence[Round]) -> Table:
    """Seconds per span: those of a round's beginning, and from ``detect`` on those of its end.

    Args:
        lives: the rounds, from the journals.
    """
    made = Table(title="Seconds per span", box=box.SIMPLE_HEAVY, title_justify="left")
    made.add_column("span")
    for life in lives:
        made.add_column(f"round {life.number}", justify="right")
    for name in (*_BEGINNING, *_END):
        if any(name in life.spans for life in lives):
            made.add_row(name, *(f"{life.spans[name]:.2f}" if name in life.spans else _NONE for life in lives))
    return made
