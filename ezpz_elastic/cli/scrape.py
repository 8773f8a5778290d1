"""The hosts that a log names as bad, one a line, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ezpz_elastic.cli._verdicts import as_text, read_hosts

__all__ = ["run"]


def run(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="a console log: plain, .gz or .zst")],
    machine: Annotated[str, typer.Option(help="a machine's name, or auto")] = "auto",
    hostfile: Annotated[Path | None, typer.Option(help="the attempt's hosts; others are never named")] = None,
    hosts: Annotated[str, typer.Option(help="the same, separated by commas")] = "",
    signatures: Annotated[Path | None, typer.Option(help="a directory of further signature files")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="say why, on standard error")] = False,
) -> None:
    """Print the bad hosts of a log; exit code 0 also when there are none."""
    from ezpz_elastic.attempt import classify_log

    verdict = classify_log(log, machine=machine, hosts=read_hosts(hostfile, hosts, machine), signatures=signatures)
    if explain:
        typer.echo(as_text(None, verdict, explain=True), err=True)
    elif verdict.note:
        typer.echo(f"ezpz-elastic: {verdict.note}", err=True)
    for host in verdict.hosts:
        typer.echo(host.name)
