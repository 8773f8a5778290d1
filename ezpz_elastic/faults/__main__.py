"""``python -m ezpz_elastic.faults run|plot``: try the decisions of the retry loop without breaking a node."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ezpz_elastic.errors import UsageError
from ezpz_elastic.faults.catalog import INSIDE
from ezpz_elastic.faults.experiment import Experiment, Result
from ezpz_elastic.faults.record import write_records

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.command()
def run(
    total_steps: Annotated[int, typer.Option(help="steps of the whole job")] = 300,
    ckpt_every: Annotated[int, typer.Option(help="steps between two checkpoints")] = 25,
    fail_at: Annotated[str, typer.Option(help="steps, separated by commas")] = "60,145,240",
    fail_on: Annotated[str, typer.Option(help="the attempts that fail at these; default: 1,2,3,…")] = "",
    modes: Annotated[str, typer.Option(help="the Nth drives the Nth attempt, and the last repeats")] = "shepherd",
    host: Annotated[str, typer.Option(help="who is named: active; first, for ever; or a name")] = "active",
    nhosts: Annotated[int, typer.Option(help="hosts that hold a slot")] = 2,
    spares: Annotated[int, typer.Option(help="hosts that stand by")] = 3,
    out: Annotated[Path | None, typer.Option(help="one JSON object per attempt")] = None,
    keep: Annotated[Path | None, typer.Option(help="leave logs, journal and receipts in this directory")] = None,
) -> None:
    """Run the trainer behind ``ezpz-elastic retry`` and tell what each attempt did.

    Exit code: the loop's own; 3 if a fault that was to be done was not, because then nothing was tested.
    """
    steps, names = _numbers("--fail-at", fail_at), [name for name in modes.split(",") if name]
    attempts = _numbers("--fail-on", fail_on) or list(range(1, len(steps) + 1))
    if len(attempts) != len(steps):
        raise UsageError(f"--fail-on {fail_on}", expected=f"{len(steps)} attempts, one for each of --fail-at {fail_at}")
    if not names or not set(names) <= set(INSIDE):
        raise UsageError(f"--modes {modes}", expected=", ".join(INSIDE))
    experiment = Experiment(
        total_steps=total_steps,
        ckpt_every=ckpt_every,
        fail_at=dict(zip(attempts, steps, strict=True)),
        modes=tuple(names),
        nhosts=nhosts,
        spares=spares,
        host=_named(host, nhosts + spares),
    )
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"{keep} is not empty", expected="a new or empty directory")
    with tempfile.TemporaryDirectory(prefix="ezpz-faults-") as temporary:
        result = experiment.perform(keep or Path(temporary))
    if out is not None:
        write_records(out, result.attempts)
    print(_table(result))
    if missing := result.missing(experiment):
        print(f"NOT INJECTED: no witness of the fault in attempt {', '.join(map(str, missing))}", file=sys.stderr)
        raise typer.Exit(3)
    raise typer.Exit(result.exit_code)


@app.command()
def plot(
    records: Annotated[Path, typer.Argument(help="what run --out has written")],
    out: Annotated[Path, typer.Option("-o", "--out", help="the picture: .png, .svg or .pdf")],
) -> None:
    """Draw progress and redone work per attempt, and who was retired why."""
    try:
        from ezpz_elastic.faults.plot import draw
    except ImportError as error:
        raise UsageError(f"no picture without {error.name}", hint="pip install 'ezpz-elastic[plot]'") from error
    draw(records, out)


def _table(result: Result) -> str:
    lines = [f"rc={result.exit_code}  attempts={len(result.attempts)}  elapsed={result.elapsed:.2f} s"]
    for item in result.attempts:
        out = ", ".join(f"{host.host} {host.provenance}{' (benched)' * host.benched}" for host in item.retired)
        lines.append(
            f"  attempt {item.attempt}: steps {item.resumed_from or 0:>3} -> {item.reached or 0:<3}  "
            f"redone {item.redone:<3} fault {item.fault or '-'}  {item.kind} ({item.cause})"
            + (f"  retired {out}" if out else "")
        )
    return "\n".join(lines)


def _named(host: str, count: int) -> str:
    if host == "first":
        return Experiment(nhosts=count, spares=0).hosts()[0]
    return "" if host == "active" else host


def _numbers(option: str, text: str) -> list[int]:
    words = [word for word in text.split(",") if word]
    if not all(word.isdigit() for word in words):
        raise UsageError(f"{option} {text}", expected="numbers, separated by commas")
    return [int(word) for word in words]


if __name__ == "__main__":
    try:
        app(prog_name="python -m ezpz_elastic.faults")
    except UsageError as wrong:
        print(f"ezpz_elastic.faults: {wrong.line()}", file=sys.stderr)
        raise SystemExit(2) from None
