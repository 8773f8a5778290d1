"""The story that a run's journals must tell, event for event, and whether they do.

Only what was decided counts here: rounds, verdicts, retirements, decisions, admissions, the end.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from ezpz_elastic.errors import UsageError
from ezpz_elastic.faults.analysis.read import Malformed, read_events, read_run
from ezpz_elastic.faults.analyze import analyze
from scenarios.runs import host_name

__all__ = [
    "admitted",
    "decided",
    "differences",
    "finished",
    "judged",
    "killed",
    "opened",
    "readmitted",
    "resumptions",
    "retired",
    "silent",
    "story",
]

_TOLD = {
    "round_committed": ("roster",),
    "decision": ("action", "kind", "cause", "lost"),
    "host_retired": ("retired", "provenance", "benched"),
    "host_readmitted": ("readmitted",),
    "spare_admitted": ("admitted", "slot"),
    "finished": ("kind", "rounds", "exit_code"),
}


def opened(number: int, hosts: Iterable[int]) -> str:
    """A round with these hosts in its slots."""
    return f"round_committed {number} roster={[host_name(index) for index in hosts]}"


def decided(number: int, kind: str, cause: str, lost: Iterable[int] = (), action: str = "restart") -> str:
    """The decision that ended a round."""
    names = [host_name(index) for index in lost]
    return f"decision {number} action={action} kind={kind} cause={cause} lost={names}"


def retired(number: int, host: int, provenance: str) -> str:
    """A host that the decision took out."""
    return f"host_retired {number} retired={host_name(host)} provenance={provenance} benched=False"


def readmitted(number: int, host: int) -> str:
    """A person let a host in again."""
    return f"host_readmitted {number} readmitted={host_name(host)}"


def admitted(number: int, host: int, slot: int) -> str:
    """A host that was not in the round before."""
    return f"spare_admitted {number} admitted={host_name(host)} slot={slot}"


def finished(number: int) -> str:
    """The end of a job that succeeded, in both of its lines."""
    last = f"finished {number} kind=success rounds={number} exit_code=0"
    return f"{decided(number, 'success', 'unknown', action='finish')}\n{last}"


def story(run_dir: Path) -> list[str]:
    """What the journals tell, in order of time.

    Raises:
        Malformed: a line of a journal is no event.
    """
    told = []
    for event in sorted(read_events(run_dir), key=lambda event: event.ts):
        if event.name in _TOLD:
            fields = " ".join(f"{name}={event.fields.get(name)}" for name in _TOLD[event.name])
            told.append(f"{event.name} {event.round} {fields}")
    return told


def differences(run_dir: Path, expected: Sequence[str]) -> list[str]:
    """Complaints where the journals tell another story than the expected one."""
    wanted = [line for entry in expected for line in entry.split("\n")]
    try:
        told = story(run_dir)
    except (Malformed, UsageError) as error:
        return [str(error)]
    if told == wanted:
        return []
    return [
        "the journal tells another story:",
        *(f"  told:     {line}" for line in told),
        *(f"  expected: {line}" for line in wanted),
    ]


def resumptions(run_dir: Path, expected: dict[int, int]) -> list[str]:
    """Complaints where workers resumed from other steps than expected.

    Args:
        run_dir: the run directory.
        expected: round -> step that every rank of that round found; a round that is not there found none.
    """
    try:
        records = [record for record in read_run(run_dir).records if record.name == "state_restored"]
    except (Malformed, UsageError) as error:
        return [str(error)]
    found: dict[int, set[int]] = {}
    for record in records:
        found.setdefault(record.round, set()).add(record.fields["step"])
    wanted = {number: {step} for number, step in expected.items()}
    return [] if found == wanted else [f"resumed from {found} instead of {wanted} (round: steps)"]


def killed(run_dir: Path, expected: list[tuple[int, int]]) -> list[str]:
    """Complaints where agents saw other workers die of SIGKILL than expected.

    Args:
        run_dir: the run directory.
        expected: round and rank of each.
    """
    try:
        events = read_events(run_dir)
    except (Malformed, UsageError) as error:
        return [str(error)]
    exits = [
        event for event in events if event.name == "worker_exited" and event.fields.get("signal") == signal.SIGKILL
    ]
    found = [(event.round, event.fields["rank"]) for event in exits]
    return [] if found == expected else [f"killed were {found} instead of {expected} (round, rank)"]


def judged(run_dir: Path, without: tuple[str, ...] = ()) -> list[str]:
    """Complaints of ``ezpz_elastic.faults.analyze``, a check that could not be made among them.

    Args:
        run_dir: the run directory.
        without: checks that this run leaves nothing for.
    """
    try:
        analysis = analyze(read_run(run_dir))
    except (Malformed, UsageError) as error:
        return [str(error)]
    found = [f"round {item.round}: {item.check}: {item.text}" for item in analysis.findings]
    return [*found, *(f"{name} was not checked" for name in analysis.not_made if name not in without)]


def silent(baseline: Path) -> list[str]:
    """Complaints if anything under a baseline is a journal: then it was no plain torchrun."""
    return [f"{path} should not be there" for path in baseline.rglob("*.jsonl")]
