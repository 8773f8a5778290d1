"""What a node-kill run left behind, read: the receipt, the run directory, and what the trainer itself said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ezpz_elastic.machines import find_machine

__all__ = ["Dead", "Evidence", "Life", "Receipt", "Retired", "read"]

_BEGIN = re.compile(r"^nodekill rank=(\d+) world=(\d+) host=(\S+) pid=(\d+) resumed=(\d+|None)\s*$", re.M)
_STEP = re.compile(r"^step=(\d+) loss=", re.M)
_SAVED = re.compile(r"^saved checkpoint step-(\d+)\s*$", re.M)


class Dead(msgspec.Struct, frozen=True):
    """A process that the killer went for: ``dead`` if it was seen to die."""

    pid: int
    kind: str
    dead: bool
    command: str = ""


class Receipt(msgspec.Struct, frozen=True):
    """What the killer says, see ``killer.py``; ``host`` and ``time`` are those of the host it ran on."""

    mode: str
    host: str
    time: float
    processes: tuple[Dead, ...]


class Life(msgspec.Struct, frozen=True):
    """One rank in one attempt, by its own word. ``resumed``: the step it went on from, ``None`` for a fresh start."""

    rank: int
    host: str
    pid: int
    resumed: int | None


class Retired(msgspec.Struct, frozen=True):
    """A line of ``bad_nodes.txt``."""

    host: str
    provenance: str
    attempt: int


class Evidence(msgspec.Struct, frozen=True):
    """Everything the checks look at. Hosts are told by their key, so that spellings do not matter.

    Args:
        mode: what was killed.
        launcher: ``hydra`` or ``pals``.
        total: the step that ends the job.
        victim: the host that the killer was sent to.
        complete: the newest complete checkpoint right before the kill.
        killer_code: exit code of the command that ran the killer; ``None`` if it was never run.
        exit_code: the job's; ``None`` if it was stopped by the script.
        receipt: the killer's; ``None`` if there is none.
        rosters: attempt (or round) -> hosts in slot order, from the journal.
        verdicts: attempt -> (kind, cause), from the journal.
        retired: ``bad_nodes.txt``.
        active: ``active.hostfile`` at the end.
        lives: attempt -> the ranks that began in it.
        steps: attempt -> the highest step that rank 0 told.
        saved: attempt -> the checkpoints that rank 0 completed.
    """

    mode: str
    launcher: str
    total: int
    victim: str
    complete: int | None
    killer_code: int | None
    exit_code: int | None
    receipt: Receipt | None
    rosters: dict[int, tuple[str, ...]] = {}
    verdicts: dict[int, tuple[str, str]] = {}
    retired: tuple[Retired, ...] = ()
    active: tuple[str, ...] = ()
    lives: dict[int, tuple[Life, ...]] = {}
    steps: dict[int, int] = {}
    saved: dict[int, tuple[int, ...]] = {}


def read(run: Path) -> Evidence:
    """Read a run.

    Args:
        run: its directory, with ``facts`` and ``job/`` in it.

    Raises:
        ValueError, OSError: something is there and cannot be read; nothing is guessed about it.
    """
    facts = dict(line.partition("=")[::2] for line in (run / "facts").read_text().splitlines())
    job = run / "job"
    allocation = _lines(run / "allocation")
    machine, _ = find_machine("auto", hosts=allocation)

    def key(host: str) -> str:
        return machine.key(host) or host.lower()

    path = run / "receipt.json"
    receipt = msgspec.json.decode(path.read_bytes(), type=Receipt) if path.exists() else None
    texts = dict(_texts(job))
    events = list(_events(job))
    return Evidence(
        mode=facts["mode"],
        launcher=facts["launcher"],
        total=int(facts["total"]),
        victim=key(facts["victim"]),
        complete=_number(facts.get("complete", "")),
        killer_code=_number(facts.get("killer", "")),
        exit_code=_number(facts.get("exit", "")),
        receipt=None if receipt is None else msgspec.structs.replace(receipt, host=key(receipt.host)),
        rosters={e["round"]: tuple(map(key, e["roster"])) for e in events if e["event"] == "round_committed"},
        verdicts={e["round"]: (e["kind"], e["cause"]) for e in events if e["event"] == "verdict"},
        retired=tuple(_retired(line, key) for line in _lines(job / "bad_nodes.txt")),
        active=tuple(map(key, _lines(job / "active.hostfile"))),
        lives={
            attempt: tuple(
                Life(int(rank), key(host), int(pid), _number(resumed))
                for rank, _, host, pid, resumed in _BEGIN.findall(text)
            )
            for attempt, text in texts.items()
        },
        steps={attempt: max(map(int, _STEP.findall(text)), default=0) for attempt, text in texts.items()},
        saved={attempt: tuple(map(int, _SAVED.findall(text))) for attempt, text in texts.items()},
    )


def _texts(job: Path) -> Iterator[tuple[int, str]]:
    """What the job printed in each attempt: ``attempt-N.log`` of the outer loop, or the agents' logs of each round."""
    for path in job.glob("attempt-*.log"):
        yield int(path.stem.rpartition("-")[2]), path.read_text(errors="replace")
    for directory in (job / "rounds").glob("*"):
        logs = sorted(directory.glob("*/stdout.log"))
        yield int(directory.name), "\n".join(path.read_text(errors="replace") for path in logs)


def _events(job: Path) -> Iterator[dict]:
    """Whole lines of all journals; what a killed agent had half written is no line."""
    for path in sorted((job / "journal").glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            if line:
                yield json.loads(line)


def _retired(line: str, key: Callable[[str], str]) -> Retired:
    host, provenance, attempt = line.split("  ")
    return Retired(key(host), provenance, int(attempt.removeprefix("attempt=")))


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text().splitlines()) if path.exists() else ()


def _number(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdigit() else None
