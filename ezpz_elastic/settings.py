"""What ``--rdzv-conf`` may say. Unknown keys and impossible values are one clear line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ezpz_elastic.errors import UsageError

__all__ = ["Settings", "as_file_name", "check_run_id", "parse"]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agent's settings, from ``--rdzv-conf key=value,…``. Times are in seconds.

    Args:
        store: ``tcp`` (embedded, served by the agent at the endpoint) or ``etcd`` (implied by ``etcd://``).
        last_call: how long to wait for more hosts once the minimum is there; torch's default is 30.
        join_timeout: how long a round may take to form.
        lease_ttl: how long an agent may be silent before its host is lost.
        settle: how long to wait for the other hosts' reports after the first one.
        grace: how long workers get between SIGTERM and SIGKILL; ``None``: torchrun's ``--shutdown-timeout``.
        startup_timeout: how long the first step may take; 0 is off.
        hang_timeout: how long a step may take; 0 is off, ``None``: learned from the run's own steps.
        deadline: when the allocation ends, seconds since the epoch; ``None``: as Slurm tells, else never.
        margin: how long before the deadline workers are told to save.
        nudge: whether workers get SIGUSR1 as well when they are told, ``on`` or ``off``.
        on_blind: what to do when a host is probably at fault and nothing says which.
        probes_dir: directory of executables that tell whether a host is healthy: exit code 0.
        machine: a machine's name, or ``auto``.
        run_dir: where the journal and the logs go; ``None``: ``ezpz-runs/<run_id>``.
        launcher_log: the launcher's own console log, if it is written to a file; the agent in slot 0 reads it.
        warm: pre-warmed worker processes, ``on`` or ``off``.
        warm_import: modules to import ahead beside torch and what a first life is seen to need, joined by ``+``.
        etcd_ca, etcd_cert, etcd_key: files for TLS to etcd: its authority, this client's certificate and key.
        keep: leave the run's records in etcd for a postmortem, ``on`` or ``off``.
        grow: when hosts that come late enlarge the job: at the ``next`` round, or ``now`` by ending the running one.
        hostfile: the allocation's hosts, whose order is that of the slots; ``None``: as the scheduler lists them.
    """

    store: str = "tcp"
    last_call: float = 30.0
    join_timeout: float = 900.0
    lease_ttl: float = 5.0
    settle: float = 1.0
    grace: float | None = None
    startup_timeout: float = 0.0
    hang_timeout: float | None = None
    deadline: float | None = None
    margin: float = 120.0
    nudge: str = "off"
    on_blind: str = "suspect"
    probes_dir: str | None = None
    machine: str = "auto"
    run_dir: str | None = None
    launcher_log: str | None = None
    warm: str = "on"
    warm_import: str = ""
    etcd_ca: str | None = None
    etcd_cert: str | None = None
    etcd_key: str | None = None
    keep: str = "off"
    grow: str = "next"
    hostfile: str | None = None

    def directory(self, run_id: str) -> Path:
        """The run directory. A run's name is one name there: it leads nowhere else (``../x``, ``/x``)."""
        return Path(self.run_dir) if self.run_dir else Path("ezpz-runs") / as_file_name(run_id)


def as_file_name(run_id: str) -> str:
    """A run's name as the name of a file: the same, but for what would be a path."""
    name = run_id.replace("/", "%2F")
    return name.replace(".", "%2E") if name in {".", ".."} else name


_CHOICES = {
    "store": ("tcp", "etcd"),
    "on_blind": ("suspect", "rotate", "never"),
    "warm": ("on", "off"),
    "nudge": ("on", "off"),
    "keep": ("on", "off"),
    "grow": ("next", "now"),
}
_POSITIVE = ("join_timeout", "lease_ttl")
_HINT = "see --rdzv-conf in the documentation"

LONGEST = 2_000_000.0
"""Seconds, 23 days: more than any allocation, and about as much as the kernel lets a process wait in one call."""

SHORTEST = 0.5
"""Seconds of a lease, or of a limit that ends workers: below it a healthy host would be lost to one slow moment."""

LONGEST_NAME = 255
"""Bytes of a file's name, which a run's name becomes."""


def check_run_id(run_id: str) -> None:
    """Refuse a ``--rdzv-id`` that cannot be the name of a run.

    Raises:
        UsageError: there is none, or it cannot be written down.
    """
    if not run_id or run_id == "none":
        raise UsageError("no --rdzv-id", expected="a name that all agents of this job share and no other job uses")
    try:
        size = len(as_file_name(run_id).encode())
    except UnicodeEncodeError:
        raise UsageError(f"--rdzv-id={run_id!a} is not text", expected="UTF-8") from None
    if size > LONGEST_NAME or "\0" in run_id:
        told = f"--rdzv-id of {size} bytes ({run_id[:40]!a} …)"
        raise UsageError(told, expected=f"a name that a directory can have: {LONGEST_NAME} bytes at most")


def parse(conf: Mapping[str, object]) -> Settings:
    """Read ``--rdzv-conf``.

    Args:
        conf: key to value; values may be text.

    Raises:
        UsageError: a key is unknown or a value cannot be used.
    """
    known = Settings.__struct_fields__
    for key in conf:
        if key not in known:
            raise UsageError(f"unknown --rdzv-conf key {key!r}", expected=f"one of {', '.join(known)}", hint=_HINT)
    try:
        settings = msgspec.convert(dict(conf), Settings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"--rdzv-conf: {error}", hint=_HINT) from error
    for key, choices in _CHOICES.items():
        if getattr(settings, key) not in choices:
            raise UsageError(f"--rdzv-conf {key}={getattr(settings, key)}", expected=f"one of {', '.join(choices)}")
    _check_seconds(settings)
    if settings.probes_dir and not Path(settings.probes_dir).is_dir():
        raise UsageError(f"--rdzv-conf probes_dir={settings.probes_dir}", expected="a directory of executables")
    return settings


def _check_seconds(settings: Settings) -> None:
    for key, kind in Settings.__annotations__.items():
        value = getattr(settings, key)
        if "float" in str(kind) and value is not None and not (0 <= value < float("inf")):
            raise UsageError(f"--rdzv-conf {key}={value}", expected="seconds, zero or more")
        if key != "deadline" and value is not None and isinstance(value, float) and value > LONGEST:
            raise UsageError(f"--rdzv-conf {key}={value:g}", expected=f"seconds, {LONGEST:.0f} at most")
    for key in _POSITIVE:
        if not getattr(settings, key) > 0:
            raise UsageError(f"--rdzv-conf {key}={getattr(settings, key)}", expected="seconds, more than zero")
    for key in ("lease_ttl", "hang_timeout", "startup_timeout"):
        if getattr(settings, key) is not None and 0 < getattr(settings, key) < SHORTEST:
            raise UsageError(f"--rdzv-conf {key}={getattr(settings, key)}", expected=f"seconds, {SHORTEST:g} at least")
