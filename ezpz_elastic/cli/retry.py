"""Run a launcher command again, on other hosts where it must be, until the job is done."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ezpz_elastic.errors import UsageError

__all__ = ["CONTEXT", "run"]

CONTEXT = {"allow_interspersed_args": False}
"""The first word that is no option of ours begins the command, ``--`` or not."""


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="CMD", help="the launcher and its arguments; {hostfile} and {nhosts} are put in"),
    ] = None,
    nhosts: Annotated[
        int, typer.Option("--nhosts", "-nh", help="hosts that hold a slot; must be given", show_default=False)
    ] = 0,
    spares: Annotated[
        str, typer.Option("--spares", "--spare-nodes", help="hosts that stand by; auto: all that are left")
    ] = "auto",
    hostfile: Annotated[
        Path | None, typer.Option(help="the allocation; default: PBS_NODEFILE, then SLURM_JOB_NODELIST")
    ] = None,
    idle_timeout: Annotated[
        float,
        typer.Option("--idle-timeout", "--timeout", help="seconds of silence that end an attempt; 0: never"),
    ] = 1800.0,
    grace: Annotated[float, typer.Option(help="seconds between SIGTERM and SIGKILL")] = 10.0,
    max_retries: Annotated[
        int,
        typer.Option(
            "--max-retries", "--max-failover-retries", help="restarts without progress; replacing a host is free"
        ),
    ] = 3,
    on_blind: Annotated[str, typer.Option(help="suspect, rotate or never")] = "suspect",
    machine: Annotated[str, typer.Option(help="whose log lines and host names to expect")] = "auto",
    run_dir: Annotated[
        Path | None, typer.Option(help="logs, journal and lists; default: ezpz-runs/retry-<job id or time>")
    ] = None,
    remaining: Annotated[
        str, typer.Option(help="what is left of the allocation now, e.g. 6h; default: as Slurm tells, else unknown")
    ] = "",
    ranks_per_host: Annotated[int | None, typer.Option(help="to place a rank that a line names")] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="a checkpoint directory of CheckpointManager: a new one there is progress")
    ] = None,
    steps: Annotated[
        bool,
        typer.Option("--steps/--no-steps", help="the program prints its steps; two attempts without end the job"),
    ] = True,
) -> int:
    """Run CMD; when it dies say what happened, replace the hosts that must be, and run it again.

    Exit code 0 once it has succeeded; else that of the job, 124 after silence, 130 and 143 if told to stop.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError(f"retry cannot run on {sys.platform}", expected="Linux")
    _open_standard_descriptors()

    from ezpz_elastic.cli._verdicts import seconds
    from ezpz_elastic.decide.situation import Limits, OnBlind
    from ezpz_elastic.ledger import say
    from ezpz_elastic.machines import find_machine
    from ezpz_elastic.retry.loop import Options, RetryLoop
    from ezpz_elastic.retry.pool import Pool, read_allocation
    from ezpz_elastic.walltime import known_deadline

    words = _command(command)
    _at_least("--nhosts", nhosts, 1)
    _at_least("--max-retries", max_retries, 0)
    _at_least("--idle-timeout", idle_timeout, 0)
    _at_least("--grace", grace, 0)
    if ranks_per_host is not None:
        _at_least("--ranks-per-host", ranks_per_host, 1)
    if on_blind not in {item.value for item in OnBlind}:
        raise UsageError(f"--on-blind {on_blind}", expected="suspect, rotate or never")
    left = seconds(remaining)
    # The names in the list tell the machine apart best, and the list can be read without knowing it.
    hosts = read_allocation(hostfile, os.environ, find_machine("generic")[0])
    chosen = find_machine(machine, hosts=hosts)[0]
    hosts = read_allocation(hostfile, os.environ, chosen)
    options = Options(
        command=words,
        pool=Pool.split(hosts, nhosts, _spares(spares)),
        run_dir=run_dir or Path("ezpz-runs") / f"retry-{_run_name()}",
        machine=machine,
        limits=Limits(
            max_restarts=max_retries, on_blind=OnBlind(on_blind), flag_named="--max-retries", hosts_named="--nhosts"
        ),
        idle_timeout=idle_timeout,
        grace=grace,
        deadline=known_deadline(None if left is None else time.time() + left, os.environ),
        ranks_per_host=ranks_per_host,
        checkpoints=checkpoints,
        tells_steps=steps,
    )
    loop = RetryLoop(options)
    if options.pool.spares and not any("{hostfile}" in word for word in words):
        where = options.run_dir / "active.hostfile"
        say(f"CMD has no {{hostfile}}: a host that is replaced leaves it only if it reads {where} or $EZPZ_HOSTFILE")
    try:
        return loop.run()
    finally:
        _leave_quietly()


def _command(words: list[str] | None) -> tuple[str, ...]:
    if not words:
        raise UsageError(
            "no command", expected="-- CMD …", hint="ezpz-elastic retry --nhosts 2 -- mpiexec … {hostfile} …"
        )
    if shutil.which(words[0]) is None:
        raise UsageError(f"{words[0]} cannot be run", expected="a program on PATH, or the path of an executable file")
    return tuple(words)


def _at_least(option: str, value: float, least: int) -> None:
    if not value >= least or value == float("inf"):
        raise UsageError(f"{option} {value:g}" if value else f"no {option}", expected=f"{least} or more")


def _spares(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal():
        raise UsageError(f"--spares {text}", expected="auto, or how many hosts")
    return int(text)


def _run_name() -> str:
    job = os.environ.get("PBS_JOBID") or os.environ.get("SLURM_JOB_ID") or ""
    return job.partition(".")[0] or time.strftime("%Y%m%d-%H%M%S")


def _open_standard_descriptors() -> None:
    """A descriptor that is closed would be given to the next file we open, and be taken for a console."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _leave_quietly() -> None:
    """What a closed console did not take stays in Python's buffer, and would turn our exit code into 120."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
