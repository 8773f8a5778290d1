"""The table and the plot of ``rendezvous_scale.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Row:
    """One measurement.

    Args:
        store: ``tcp``, ``etcd`` or ``torch``.
        agents: N.
        form, replace: seconds; ``None`` if it was not reached.
        operations, requests, sent: per agent, for the first round: calls, wire requests, bytes written and read.
    """

    store: str
    agents: int
    form: float | None = None
    replace: float | None = None
    operations: float | None = None
    requests: float | None = None
    sent: float | None = None


def shown(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def tables(rows: Sequence[Row], core: Sequence[tuple[int, float, float, int]]) -> str:
    """Everything as Markdown."""
    lines = [
        "| store | agents | round formed (s) | host replaced (s) | operations/agent | requests/agent | bytes/agent |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        numbers = [shown(row.form, 2), shown(row.replace, 2), shown(row.operations, 1), shown(row.requests, 1)]
        lines.append(f"| {row.store} | {row.agents:,} | " + " | ".join([*numbers, shown(row.sent, 0)]) + " |")
    lines += ["", "| pure core: hosts | µs/event | slowest event (ms) | bytes of the roster |", "|---:|---:|---:|---:|"]
    lines += [f"| {hosts:,} | {mean:.1f} | {worst / 1e3:.0f} | {size:,} |" for hosts, mean, worst, size in core]
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row]) -> str:
    """Seconds to a committed round over the number of agents, both logarithmic, as SVG."""
    points = [(row.store, row.agents, row.form) for row in rows if row.form]
    width, height, margin = 560, 340, 50
    low_x, high_x = (f(math.log2(agents) for _, agents, _ in points) for f in (min, max))
    low_y, high_y = (f(math.log10(seconds) for _, _, seconds in points) for f in (min, max))

    def at(agents: int, seconds: float) -> tuple[float, float]:
        x = margin + (math.log2(agents) - low_x) / max(high_x - low_x, 1e-9) * (width - 2 * margin)
        y = height - margin - (math.log10(seconds) - low_y) / max(high_y - low_y, 1e-9) * (height - 2 * margin)
        return round(x, 1), round(y, 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"']
    parts[0] += ' font-size="12"><rect width="100%" height="100%" fill="white"/>'
    parts.append(f'<text x="{margin}" y="20">seconds until a round is committed, by number of agents</text>')
    for number, (store, colour) in enumerate((("tcp", "#0072b2"), ("etcd", "#009e73"), ("torch", "#d55e00"))):
        own = [(agents, seconds) for name, agents, seconds in points if name == store]
        places = [at(*point) for point in own]
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{" ".join(f"{x},{y}" for x, y in places)}"/>')
        for (agents, seconds), (x, y) in zip(own, places, strict=True):
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
            parts.append(f'<text x="{x - 12}" y="{y - 8}" fill="{colour}">{seconds:.2f}</text>')
            parts.append(f'<text x="{x - 12}" y="{height - margin + 20}">{agents}</text>')
        parts.append(f'<text x="{width - 110}" y="{50 + 18 * number}" fill="{colour}">{store}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
