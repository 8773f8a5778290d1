"""What a run with faults has left -> one record per attempt: progress, redone work, fault, verdict, retirements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ezpz_elastic.faults.receipts import Receipt, Receipts

__all__ = ["AttemptRecord", "Retired", "read_records", "read_run", "write_records"]

_STEP = re.compile(rb"^step=(\d+) ", re.M)
_RESUMED = re.compile(rb"^resumed from step (\d+)$", re.M)


class Retired(msgspec.Struct, frozen=True):
    """A host that lost its slot, as it is spelled in the allocation, and why."""

    host: str
    provenance: str
    benched: bool = False


class AttemptRecord(msgspec.Struct, frozen=True):
    """One attempt.

    Args:
        attempt: from 1.
        resumed_from: step of the checkpoint it began with; ``None``: a fresh start.
        reached: the last step it has shown; ``None`` if none.
        redone: steps that an earlier attempt had done already.
        fault: the mode that was done to it; empty if none was.
        named: the host that the fault printed as the culprit.
        landed: whether the fault has a receipt and the attempt ended otherwise than well.
        hosts: who held the slots.
        kind, cause: the verdict's.
        exit_code: of the command; ``None`` if a signal ended it.
        signal: that ended it.
        retired: who lost the slot after it.
        seconds: how long it lived.
    """

    attempt: int
    resumed_from: int | None
    reached: int | None
    redone: int
    fault: str
    named: str
    landed: bool
    hosts: tuple[str, ...]
    kind: str
    cause: str
    exit_code: int | None
    signal: int | None
    retired: tuple[Retired, ...]
    seconds: float


def read_run(run_dir: Path, receipts: Path) -> tuple[AttemptRecord, ...]:
    """Read what ``ezpz-elastic retry`` and the trainer have left.

    Args:
        run_dir: the retry loop's run directory.
        receipts: the trainer's receipts.
    """
    events = [
        msgspec.json.decode(line, type=dict[str, object])
        for path in sorted((run_dir / "journal").glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    told = {receipt.attempt: receipt for receipt in Receipts(receipts).read()}
    records: list[AttemptRecord] = []
    reached = 0
    for number in sorted({_int(event, "round") or 0 for event in events if event["event"] == "round_committed"}):
        mine = [event for event in events if event["round"] == number]
        log = (run_dir / f"attempt-{number}.log").read_bytes()
        records.append(_record(number, mine, log, told.get(number), reached))
        reached = max(reached, records[-1].reached or 0)
    return tuple(records)


def _record(
    number: int, events: Sequence[Mapping[str, object]], log: bytes, receipt: Receipt | None, before: int
) -> AttemptRecord:
    steps = [int(step) for step in _STEP.findall(log)]
    resumed = _RESUMED.search(log)
    resumed_from = int(resumed[1]) if resumed else None
    ended, verdict = _one(events, "launcher_exited"), _one(events, "verdict")
    code, signum = _int(ended, "exit_code"), _int(ended, "signal")
    return AttemptRecord(
        attempt=number,
        resumed_from=resumed_from,
        reached=max(steps, default=None),
        redone=max(before - (resumed_from or 0), 0) if number > 1 else 0,
        fault=receipt.mode if receipt is not None else "",
        named=receipt.named if receipt is not None else "",
        landed=receipt is not None and receipt.landed is not False and code != 0,
        hosts=tuple(msgspec.convert(_one(events, "round_committed").get("roster", []), list[str])),
        kind=str(verdict.get("kind", "")),
        cause=str(verdict.get("cause", "")),
        exit_code=code,
        signal=signum,
        retired=tuple(
            Retired(str(event["retired"]), str(event["provenance"]), bool(event["benched"]))
            for event in events
            if event["event"] == "host_retired"
        ),
        seconds=next(
            (
                float(str(event["seconds"]))
                for event in events
                if (event["event"], event.get("name")) == ("span", "attempt")
            ),
            0.0,
        ),
    )


def write_records(path: Path, records: Iterable[AttemptRecord]) -> None:
    """One JSON object a line."""
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def read_records(path: Path) -> tuple[AttemptRecord, ...]:
    """What ``write_records`` wrote.

    Raises:
        msgspec.DecodeError: a line is no record.
    """
    return tuple(msgspec.json.decode(line, type=AttemptRecord) for line in path.read_bytes().splitlines())


def _one(events: Sequence[Mapping[str, object]], name: str) -> Mapping[str, object]:
    return next((event for event in events if event["event"] == name), {})


def _int(event: Mapping[str, object], name: str) -> int | None:
    value = event.get(name)
    return value if isinstance(value, int) else None
