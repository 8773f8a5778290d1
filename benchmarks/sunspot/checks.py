"""PASS or FAIL for each thing a node kill has to show, and OVERALL. The receipt first: what presumes it is not judged
without it, and what presumes a relaunch is not judged without one. ``SKIPPED`` is no pass.

    python -m sunspot.checks RUN_DIRECTORY
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import msgspec
from sunspot.evidence import Evidence, read

__all__ = ["Check", "Result", "checks", "overall", "report"]


class Result(str, Enum):
    """What became of a check."""

    PASS = "PASS"
    FAIL = "FAIL"
    NO_KILL = "SKIPPED (no kill)"
    NO_RELAUNCH = "SKIPPED (no relaunch)"


class Check(msgspec.Struct, frozen=True):
    """One line of the report."""

    name: str
    result: Result
    detail: str = ""


NAMED, IN_PLACE = "the victim is retired, with evidence", "nobody is retired: nothing tells which host"

ANSWERS = {
    ("hydra", "rank"): {NAMED},
    ("hydra", "pals"): {NAMED, IN_PLACE},  # which host a lost proxy ran on is told by some versions only
    ("hydra", "node"): {NAMED, IN_PLACE},
    ("pals", "rank"): {NAMED, IN_PLACE},  # PALS was seen to say nothing of ranks that were killed behind its back
    ("pals", "pals"): {NAMED},
    ("pals", "node"): {NAMED},
    ("hydra", "agent"): {NAMED},
    ("pals", "agent"): {NAMED},
}
"""Launcher and mode -> the right answers. Silence convicts nobody: where a launcher names no host, nobody may leave."""

EVIDENCE = frozenset({"scraped", "inferred", "lost", "accused", "probed"})
KIND = {"rank": "rank", "pals": "daemon", "agent": "agent", "node": "rank"}


def checks(seen: Evidence) -> list[Check]:
    """Judge a run; an empty complaint is a pass."""
    kill = _landed(seen)
    found = [_check("the kill landed", kill)]
    later: list[tuple[str, Callable[[Evidence], str]]] = [
        ("it hit active[1] of the first attempt, in training", _hit),
        ("the job was relaunched", _relaunched),
    ]
    gated: list[tuple[str, Callable[[Evidence], str]]] = [
        ("active[0] kept its slot", _innocent),
        ("no healthy host was retired, and nobody on a guess", _healthy),
        ("the answer is right for what the launcher told", _answered),
        ("the ranks ran where active.hostfile says", _placed),
        ("they resumed from the last complete checkpoint", _resumed),
        ("the job finished", _finished),
    ]
    if kill:
        return found + [Check(name, Result.NO_KILL) for name, _ in later + gated]
    found += [_check(name, judge(seen)) for name, judge in later]
    if _relaunched(seen):
        return found + [Check(name, Result.NO_RELAUNCH) for name, _ in gated]
    return found + [_check(name, judge(seen)) for name, judge in gated]


def overall(found: list[Check]) -> Result:
    """PASS only if every single check is."""
    return Result.PASS if found and all(check.result is Result.PASS for check in found) else Result.FAIL


def report(seen: Evidence, found: list[Check]) -> Iterator[str]:
    """The lines for a person."""
    for check in found:
        yield f"{check.result.value}: {check.name}" + (f" ({check.detail})" if check.detail else "")
    for attempt in sorted(seen.lives):
        ranks = ", ".join(
            f"{life.rank}@{life.host}" for life in sorted(seen.lives[attempt], key=lambda life: life.rank)
        )
        kind, cause = seen.verdicts.get(attempt, ("no verdict", "-"))
        resumed = {life.resumed for life in seen.lives[attempt]}
        yield (
            f"  attempt {attempt}: ranks {ranks}; resumed from {sorted(resumed, key=str)}; "
            f"last step {seen.steps.get(attempt)}; {kind} ({cause})"
        )
    for item in seen.retired:
        yield f"  retired: {item.host}  {item.provenance}  attempt={item.attempt}"
    yield f"OVERALL: {overall(found).value}"


def _check(name: str, complaint: str) -> Check:
    return Check(name, Result.FAIL if complaint else Result.PASS, complaint)


def _landed(seen: Evidence) -> str:
    receipt = seen.receipt
    if receipt is None:
        return "there is no receipt"
    kinds = [process.kind for process in receipt.processes]
    wrong = (
        (seen.killer_code != 0, f"the killer ended with {seen.killer_code}"),
        (receipt.mode != seen.mode, f"the receipt is about {receipt.mode}"),
        (receipt.host != seen.victim, f"the killer ran on {receipt.host}, not on {seen.victim}"),
        (not all(process.dead for process in receipt.processes), "not everything was seen dead"),
        (KIND[seen.mode] not in kinds, f"it killed {kinds or 'nothing'}, and no {KIND[seen.mode]}"),
    )
    return next((complaint for so, complaint in wrong if so), "")


def _hit(seen: Evidence) -> str:
    roster = seen.rosters.get(1, ())
    if len(roster) < 2 or roster[1] != seen.victim or roster[0] == seen.victim:
        return f"{seen.victim} is not in slot 1 of {list(roster)}"
    if seen.complete is None:
        return "there was no complete checkpoint yet"
    there = {life.pid for life in seen.lives.get(1, ()) if life.host == seen.victim}
    if not there:
        return f"no rank of the first attempt ran on {seen.victim}"
    killed = {p.pid for p in seen.receipt.processes if p.kind == "rank"} if seen.receipt else set()
    if KIND[seen.mode] == "rank" and killed != there:
        return f"the ranks there were {sorted(there)} and those killed {sorted(killed)}"
    return "" if seen.steps.get(1, 0) < seen.total else "the first attempt had finished"


def _relaunched(seen: Evidence) -> str:
    return (
        "" if any(seen.lives.get(attempt) for attempt in seen.lives if attempt > 1) else "no rank began a second time"
    )


def _last(seen: Evidence) -> int:
    return max(attempt for attempt, lives in seen.lives.items() if lives)


def _innocent(seen: Evidence) -> str:
    innocent = seen.rosters[1][0]
    moved = [attempt for attempt, roster in seen.rosters.items() if roster[:1] != (innocent,)]
    return f"{innocent} lost it in attempt {moved}" if moved else ""


def _healthy(seen: Evidence) -> str:
    wrong = [item for item in seen.retired if item.host != seen.victim or item.provenance not in EVIDENCE]
    return "; ".join(f"{item.host} was retired ({item.provenance})" for item in wrong)


def _answered(seen: Evidence) -> str:
    answer = NAMED if any(item.host == seen.victim for item in seen.retired) else IN_PLACE
    right = ANSWERS[seen.launcher, seen.mode]
    if answer not in right:
        return f"{answer}; right would be: {', '.join(sorted(right))}"
    if answer == IN_PLACE and seen.verdicts.get(1, ("", ""))[0] not in {"bad_node_blind", "retryable_unattributed"}:
        return f"nobody is retired, and yet the verdict was {seen.verdicts.get(1)}"
    return ""


def _placed(seen: Evidence) -> str:
    last = _last(seen)
    ran = {life.host for life in seen.lives[last]}
    if ran != set(seen.active) or seen.rosters.get(last) != seen.active:
        return f"they ran on {sorted(ran)}, active.hostfile has {list(seen.active)}"
    if any(item.host == seen.victim for item in seen.retired) and seen.victim in ran:
        return f"{seen.victim} was retired and ran"
    return ""


def _resumed(seen: Evidence) -> str:
    for attempt in range(2, _last(seen) + 1):
        before = [step for past, steps in seen.saved.items() if past < attempt for step in steps]
        due = max([*before, seen.complete or 0])
        # The teardown may have come between a commit and the line that tells of it.
        most = max(seen.steps[past] for past in seen.steps if past < attempt)
        resumed = {life.resumed for life in seen.lives.get(attempt, ())}
        if len(resumed) > 1 or any(step is None or not due <= step <= most for step in resumed):
            told = sorted(resumed, key=str)
            return f"attempt {attempt} from {told}, the last complete step was {due} and the last of all {most}"
    return ""


def _finished(seen: Evidence) -> str:
    if seen.exit_code != 0:
        return f"exit code {seen.exit_code}"
    reached = seen.steps.get(_last(seen), 0)
    return "" if reached == seen.total else f"it ended at step {reached} of {seen.total}"


def main(run: Path) -> int:
    """Print the report; 0 if all is well."""
    seen = read(run)
    found = checks(seen)
    print("\n".join(report(seen, found)))
    return 0 if overall(found) is Result.PASS else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
