"""The picture of a run: how far each attempt came, what it did again, and who was retired on what grounds."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes  # a backend without a display has to be chosen first
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ezpz_elastic.errors import UsageError
from ezpz_elastic.faults.record import AttemptRecord, read_records

__all__ = ["draw"]

_NEW, _AGAIN = "#4c78a8", "#f2a65a"
_PROVENANCE = {
    "scraped": "#c0392b",
    "lost": "#8e44ad",
    "inferred": "#d35400",
    "accused": "#2c3e50",
    "probed": "#16a085",
    "blind": "#7f8c8d",
}
"""Evidence in strong colours, a guess in grey."""


def draw(records: Path, out: Path) -> None:
    """Draw what ``run --out`` has written.

    Args:
        records: one JSON object per attempt.
        out: the picture; its suffix chooses the format.

    Raises:
        UsageError: there is nothing to draw, or the picture cannot be written.
    """
    try:
        attempts = read_records(records)
    except (OSError, ValueError) as error:
        raise UsageError(f"{records}: {error}", expected="what run --out has written") from error
    if not attempts:
        raise UsageError(f"{records} holds no attempt", expected="what run --out has written")
    figure = Figure(figsize=(9.0, 1.2 + 0.75 * len(attempts)), layout="constrained")
    _bars(figure.subplots(), attempts)
    try:
        figure.savefig(out, dpi=150)
    except (OSError, ValueError) as error:
        raise UsageError(f"{out}: {error}", expected="a .png, .svg or .pdf in a directory that exists") from error


def _bars(axes: Axes, attempts: tuple[AttemptRecord, ...]) -> None:
    furthest = max(item.reached or 0 for item in attempts)
    for row, item in enumerate(attempts):
        begin, end = item.resumed_from or 0, item.reached or 0
        fresh = begin + item.redone
        axes.barh(row, min(fresh, end) - begin, left=begin, color=_AGAIN, height=0.5)
        axes.barh(row, max(end - fresh, 0), left=fresh, color=_NEW, height=0.5)
        text = f"{item.redone} steps again" if item.redone else ""
        axes.text(begin, row - 0.32, text, fontsize=8, va="bottom", color="#a8651a")
        if item.fault:
            axes.plot(end, row, marker="X", markersize=9, color="black", zorder=3)
        _retirements(axes, row, end, item, furthest)
    axes.set_yticks(range(len(attempts)), [f"attempt {item.attempt}" for item in attempts])
    axes.set_xlim(0, furthest * 1.45)
    axes.set_ylim(len(attempts) - 0.45, -0.65)
    axes.set_xlabel("training step")
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= furthest])
    axes.spines[["top", "right"]].set_visible(False)
    shown = dict.fromkeys(out.provenance for item in attempts for out in item.retired)
    axes.legend(
        handles=[
            Patch(color=_NEW, label="new work"),
            Patch(color=_AGAIN, label="done again"),
            Line2D([], [], linestyle="", marker="X", color="black", label="fault"),
            *(
                Line2D([], [], linestyle="", marker="s", color=_PROVENANCE.get(name, "black"), label=f"retired: {name}")
                for name in shown
            ),
        ],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=6,
        fontsize=8,
        frameon=False,
    )


def _retirements(axes: Axes, row: int, end: int, item: AttemptRecord, furthest: int) -> None:
    left = end + furthest * 0.025
    if not item.fault:
        axes.text(left, row, f"{item.kind}", fontsize=8, va="center")
        return
    axes.text(left, row - 0.02, f"{item.fault}: {item.kind}", fontsize=8, va="bottom")
    for out in item.retired:
        colour = _PROVENANCE.get(out.provenance, "black")
        axes.plot(left + furthest * 0.008, row + 0.15, marker="s", markersize=5, color=colour)
        label = f"{out.host.partition('.')[0]} {out.provenance}{', to the spares' * out.benched}"
        axes.text(left + furthest * 0.025, row + 0.15, label, fontsize=8, va="center", color=colour)
    if not item.retired and item.kind not in {"success", "walltime"}:
        axes.text(left, row + 0.15, "same hosts again", fontsize=8, va="center", color="#555555")
