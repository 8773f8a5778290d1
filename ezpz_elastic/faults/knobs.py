"""The trainer's knobs: environment variables, so that any launcher passes them on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ezpz_elastic.errors import UsageError
from ezpz_elastic.faults.catalog import INSIDE, MODES, Mode
from ezpz_elastic.machines import find_machine

__all__ = ["Knobs", "Plan"]


class Plan(msgspec.Struct, frozen=True):
    """The fault of one attempt.

    Args:
        mode: which.
        at: the step at which it is done, or from which the trainer looks for the point it needs.
    """

    mode: Mode
    at: int


class Knobs(msgspec.Struct, frozen=True):
    """What the environment says.

    ================== ====================================================================================
    ``FI_TOTAL``       steps of the whole job (300)
    ``FI_CKPT_EVERY``  steps between two checkpoints (25)
    ``FI_CKPT``        the checkpoint file, or the checkpoint directory with ``FI_TOGETHER=1``
    ``FI_FAIL_AT``     steps, separated by commas: the Nth attempt fails at the Nth; none fails at ``-``, or later
    ``FI_MODE``        modes, separated by commas: the Nth drives the Nth attempt, and the last repeats
    ``FI_COUNTER``     file that counts attempts; without it ``EZPZ_ATTEMPT``, then ``EZPZ_ROUND`` tell
    ``FI_RECEIPTS``    directory of the receipts
    ``FI_HOST``        the host that is named as the culprit, in every attempt
    ``FI_SLOT``        without ``FI_HOST``: the slot of ``EZPZ_HOSTFILE`` whose host it is (1)
    ``FI_RANK``        the rank that comes to harm (0)
    ``FI_SECONDS``     how long a step takes (0)
    ``FI_LASTS``       how long a silence or a slow step lasts (3600)
    ``FI_TOGETHER``    1: ranks reduce a gradient in every step and save with ``CheckpointManager``; needs torch
    ================== ====================================================================================
    """

    total: int
    every: int
    checkpoint: Path
    receipts: Path
    attempt: int
    plan: Plan | None
    host: str
    hostfile: str
    slot: int
    rank: int
    victim: int
    seconds: float
    lasts: float
    together: bool

    @staticmethod
    def read(environ: Mapping[str, str]) -> Knobs:
        """Read the environment, and count this attempt.

        Raises:
            UsageError: a value cannot be meant.
        """
        victim = _number(environ, "FI_RANK", 0)
        rank = _number(environ, "RANK", 0)
        attempt = _attempt(environ)
        return Knobs(
            total=_number(environ, "FI_TOTAL", 300),
            every=max(_number(environ, "FI_CKPT_EVERY", 25), 1),
            checkpoint=Path(environ.get("FI_CKPT", "checkpoint.json")),
            receipts=Path(environ.get("FI_RECEIPTS", "receipts")),
            attempt=attempt,
            plan=_plan(environ, attempt),
            host=environ.get("FI_HOST", ""),
            hostfile=environ.get("EZPZ_HOSTFILE", ""),
            slot=_number(environ, "FI_SLOT", 1),
            rank=rank,
            victim=victim,
            seconds=_seconds(environ, "FI_SECONDS", 0.0),
            lasts=_seconds(environ, "FI_LASTS", 3600.0),
            together=environ.get("FI_TOGETHER", "0") == "1",
        )

    def culprit(self) -> tuple[str, tuple[str, ...]]:
        """The host to be named, and the other hosts, as the hostfile lists them now: it may be written while we start.

        Raises:
            UsageError: the hostfile cannot be read.
        """
        hosts = _hosts(self.hostfile)
        host = self.host or (hosts[self.slot % len(hosts)] if hosts else "")
        return host, tuple(name for name in hosts if name != host)


def _plan(environ: Mapping[str, str], attempt: int) -> Plan | None:
    steps = [word for word in environ.get("FI_FAIL_AT", "").split(",") if word]
    modes = [word for word in environ.get("FI_MODE", "shepherd").split(",") if word]
    if not modes or (unknown := [name for name in modes if name not in INSIDE]):
        raise UsageError(f"FI_MODE={','.join(unknown) if modes else ''}", expected=", ".join(INSIDE))
    if not all(word.isdigit() or word == "-" for word in steps):
        raise UsageError(f"FI_FAIL_AT={','.join(steps)}", expected="steps, separated by commas")
    if attempt > len(steps) or steps[attempt - 1] == "-":
        return None
    return Plan(MODES[modes[min(attempt, len(modes)) - 1]], int(steps[attempt - 1]))


def _attempt(environ: Mapping[str, str]) -> int:
    """Which attempt this is; with a counter, the file is counted up."""
    counter = environ.get("FI_COUNTER", "")
    if not counter:
        return _number(environ, "EZPZ_ATTEMPT", _number(environ, "EZPZ_ROUND", 1))
    path = Path(counter)
    text = path.read_text().strip() if path.exists() else ""
    if text and not text.isdigit():
        raise UsageError(f"{path} holds {text[:40]!r}", expected="a number of attempts")
    attempt = int(text or 0) + 1
    path.write_text(f"{attempt}\n")
    return attempt


def _hosts(hostfile: str) -> tuple[str, ...]:
    if not hostfile:
        return ()
    try:
        return find_machine("generic")[0].read_hostfile(Path(hostfile).read_text())
    except OSError as error:
        raise UsageError(f"EZPZ_HOSTFILE {hostfile}: {error.strerror}", expected="a file of host names") from error


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if text and not text.isdigit():
        raise UsageError(f"{name}={text}", expected="a whole number")
    return int(text) if text else default


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        return float(text) if text else default
    except ValueError as error:
        raise UsageError(f"{name}={text}", expected="seconds") from error
