"""Watch a job live through a killed worker, a lost host and a full disk, on this machine alone."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from ezpz_elastic.errors import UsageError

__all__ = ["run"]


def run(
    run_dir: Annotated[
        Path | None, typer.Option(help="where journals, logs and receipts go; default: a new one under ezpz-runs/")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="keep the checkpoints too")] = False,
    mount: Annotated[
        bool, typer.Option("--mount/--no-mount", help="a small disk of our own, or a limit that plays one")
    ] = True,
) -> int:
    """Three loopback hosts, two active and one spare, train a small model on real text through three real faults.

    Exit code 0 if every fault landed and was answered as it had to be, 1 otherwise.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError(f"the demo cannot run on {sys.platform}", expected="Linux")
    directory = _make(run_dir)
    signal.signal(signal.SIGTERM, _leave)

    from rich.console import Console

    from ezpz_elastic.demo.scenario import DemoFailed, Scenario

    scenario = Scenario(directory, Console(highlight=False), mount)
    try:
        scenario.perform()
        if keep:
            scenario.keep(directory / "checkpoints")
    except DemoFailed as error:
        print(f"ezpz-elastic demo: FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ezpz-elastic demo: interrupted; nothing of it is left running", file=sys.stderr)
        return 130
    finally:
        scenario.close()
    print(f"journals, logs and receipts: {directory}")
    return 0


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise SystemExit(128 + signum)


def _make(chosen: Path | None) -> Path:
    """A directory of this run's own."""
    if chosen is None:
        chosen = Path("ezpz-runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        occupied = any(chosen.iterdir())
    except OSError as error:
        raise UsageError(f"cannot use {chosen}: {error.strerror}", expected="a directory for this run") from error
    if occupied:
        raise UsageError(f"{chosen} is not empty", expected="a new or empty directory")
    return chosen.absolute()
