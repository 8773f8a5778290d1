"""Look after checkpoint directories; the interval between saves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Look after checkpoint directories; the interval between saves.",
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="the checkpoint directory: step-<N> lie in it")]


@app.command()
def ls(directory: Directory) -> None:
    """List the steps: size, age, layout, and whether names and sizes are right."""
    _print(directory, sums=False)


@app.command()
def verify(directory: Directory) -> None:
    """Read every byte of every step and compare the sums; exit code 1 if a step does not verify."""
    if _print(directory, sums=True):
        raise typer.Exit(1)


@app.command()
def prune(
    directory: Directory,
    keep_last: Annotated[int, typer.Option(min=1, help="newest whole steps to keep")] = 2,
    keep_every: Annotated[int | None, typer.Option(min=1, help="also keep multiples of this step")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would go")] = False,
) -> None:
    """Remove old steps, old quarantined steps and leftovers; refuses while a job writes there."""
    from ezpz_elastic.checkpoint import care

    gone = care.prune(directory, keep_last, keep_every, dry=dry_run)
    for name in gone:
        typer.echo(f"{name}: {'would go' if dry_run else 'removed'}")
    if not gone:
        typer.echo("nothing to remove")


@app.command()
def repair(directory: Directory) -> None:
    """Put right what needs no guess; exit code 1 if no step is usable afterwards."""
    from ezpz_elastic.checkpoint import care

    for line in care.repair(directory) or ["nothing to repair"]:
        typer.echo(line)
    rows = care.survey(directory)
    if rows and not any(row.state in {"sizes match", "plain DCP, unverified"} for row in rows):
        typer.echo("no step is usable")
        raise typer.Exit(1)


@app.command()
def interval(
    mtbf: Annotated[str, typer.Option(help="mean time between failures of the whole job, e.g. 1h")],
    save: Annotated[str, typer.Option(help="what one save holds the training up, e.g. 24s")],
    restart: Annotated[str, typer.Option(help="from a failure to the first new step, e.g. 90s")] = "0s",
) -> None:
    """The Young/Daly interval: how much work to do between two saves."""
    from ezpz_elastic.checkpoint.interval import advise, parse_duration

    advice = advise(parse_duration(mtbf), parse_duration(save), parse_duration(restart))
    typer.echo(f"save every {_duration(advice.daly)} of work (Daly); {_duration(advice.young)} by Young's formula")
    typer.echo(f"saving, lost work and restarts then take {advice.overhead:.1%} of the time")


def _print(directory: Path, *, sums: bool) -> int:
    """Print the table; returns how many steps are not usable."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ezpz_elastic.checkpoint import care

    rows = care.survey(directory, sums=sums)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("step", "size", "age", "layout", "state"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        ranks = f", {row.world_size} ranks" if row.world_size is not None else ""
        osts = f", OST {','.join(map(str, row.osts))}" if row.osts else ""
        age = _duration(max(time.time() - row.modified, 0.0))
        table.add_row(row.name, _size(row.bytes), age, f"{row.files} files{ranks}{osts}", row.state)
    console = Console()
    console.print(table if rows else "no checkpoints")
    for row in rows:
        if row.why:  # a line each, so that they can be searched for
            typer.echo(f"{row.name}: {row.why}")
    return sum(row.state == "broken" for row in rows)


def _size(value: int) -> str:
    from rich.filesize import decimal

    return decimal(value)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 100:
        return f"{seconds:.0f} s"
    if whole < 100 * 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if whole < 48 * 3600 else f"{seconds / 86400:.1f} d"
