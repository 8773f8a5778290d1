"""The offline verdict on a log: what happened, and which host may honestly be blamed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ezpz_elastic.cli._verdicts import as_json, as_text, read_hosts, seconds

__all__ = ["run"]


def run(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG…", help="console logs: plain, .gz or .zst")],
    exit_code: Annotated[int | None, typer.Option(help="exit code of the attempt, as the shell saw it")] = None,
    machine: Annotated[str, typer.Option(help="a machine's name, or auto")] = "auto",
    remaining: Annotated[str, typer.Option(help="time left in the allocation: 4h, 90m, 30s, 0, unknown")] = "unknown",
    hostfile: Annotated[Path | None, typer.Option(help="the attempt's hosts in slot order, one a line")] = None,
    hosts: Annotated[str, typer.Option(help="the same, separated by commas")] = "",
    ranks_per_host: Annotated[int | None, typer.Option(min=1, help="ranks on each host, block by block")] = None,
    signatures: Annotated[Path | None, typer.Option(help="a directory of further signature files")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="print the lines that made it and those set aside")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON object per log and line")] = False,
) -> None:
    """Say what happened in an attempt, from its console log and exit code."""
    from ezpz_elastic.attempt import classify_log

    left = seconds(remaining)
    listed = read_hosts(hostfile, hosts, machine)
    for log in logs:
        verdict = classify_log(log, exit_code, machine, left, listed, ranks_per_host, signatures=signatures)
        if json:
            typer.echo(as_json(log, verdict))
        else:
            typer.echo(as_text(log if len(logs) > 1 else None, verdict, explain=explain))
