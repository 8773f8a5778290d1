"""Writes down what this agent's coordinator committed: journal events, retirements, roster, outcome, console lines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence

import msgspec

from ezpz_elastic.console import takes
from ezpz_elastic.decide.verdict import Verdict, VerdictKind
from ezpz_elastic.journal import Journal
from rendezvous.records import Action, Case, Decision, Opening, Retirement, Roster

__all__ = ["RunLedger", "say"]


SAY_PATIENCE = 0.25
"""Seconds to wait for a console that does not read."""


def say(text: str) -> None:
    """One line for the person at the console.

    Nobody may be there any more, or nobody who reads: the journal has it all, the job goes on.
    """
    with contextlib.suppress(OSError):
        if sys.stderr is not None and takes(sys.stderr, SAY_PATIENCE):
            print(f"[ezpz] {text}", file=sys.stderr, flush=True)


class RunLedger:
    """The coordinator's side of the run directory.

    Args:
        journal: this host's journal.
        unit: what a round is called at the console.
    """

    def __init__(self, journal: Journal, unit: str = "round") -> None:
        self._journal = journal
        self._unit = unit

    def opened(self, opening: Opening, before: Roster | None) -> None:
        """A round was opened; ``before`` is the last round's roster, whoever opened that."""
        if opening.roster is None:
            return
        if opening.round == 1:
            self._journal.remove("outcome.json")  # of an earlier run in this directory
        hosts = [member.host for member in opening.roster.members]
        self._journal.replace("active.hostfile", "".join(f"{host}\n" for host in hosts))
        self._journal.write("round_committed", opening.round, roster=hosts, world_size=opening.roster.world_size())
        known = {member.host for member in before.members} if before is not None else set(hosts)
        for slot, host in enumerate(hosts):
            if host not in known:
                self._journal.write("spare_admitted", opening.round, admitted=host, slot=slot)
                say(f"{self._unit} {opening.round}: {host} takes slot {slot}")
        count = opening.roster.world_size()
        say(f"{self._unit} {opening.round}: {count} worker{'s' if count != 1 else ''} on {', '.join(_few(hosts))}")

    def decided(self, case: Case | None, decision: Decision, retired: Sequence[Retirement]) -> None:
        """A round was ended; ``retired`` are the hosts that were out of the job before. No ``case``: whoever decided is
        gone, and with it who was lost."""
        if case is not None and case.failed_at is not None:
            self._journal.span(decision.round, "settle", case.at - case.failed_at)
            self._journal.span(decision.round, "decide", time.monotonic() - case.at)
        verdict = msgspec.json.decode(decision.verdict, type=Verdict | None)
        if verdict is not None:
            self._journal.write("verdict", decision.round, **msgspec.to_builtins(verdict))
            cause = "" if verdict.kind is VerdictKind.SUCCESS else f" ({verdict.cause.value})"
            say(f"{self._unit} {decision.round}: verdict {verdict.kind.value}{cause}: {verdict.reason}")
        self._journal.write(
            "decision",
            decision.round,
            action=decision.action.value,
            kind=decision.kind,
            cause=decision.cause,
            reason=decision.reason,
            delay=decision.delay,
            exit_code=decision.exit_code,
            restarts_left=decision.restarts_left,
            lost=[lost.member.host for lost in case.lost] if case is not None else None,
        )
        for retirement in decision.retired:
            self._retire(decision, retirement)
        say(f"{self._unit} {decision.round}: decision {decision.action.value}: {decision.reason}")
        if decision.action is not Action.RESTART:
            self._outcome(decision, [*retired, *decision.retired])

    def _retire(self, decision: Decision, retirement: Retirement) -> None:
        line = f"{retirement.host}  {retirement.provenance}  attempt={decision.round}"
        self._journal.append_line("bad_nodes.txt", line)
        self._journal.write(
            "host_retired",
            decision.round,
            retired=retirement.host,
            provenance=retirement.provenance,
            reason=retirement.reason,
            benched=retirement.benched,
        )

    def ended(self, decision: Decision, retired: Sequence[Retirement]) -> None:
        """All may say at once how the job ended, as none of them can reach the others: the first one's word stays."""
        outcome = _outcome(decision, [*retired, *decision.retired])
        if self._journal.create("outcome.json", msgspec.json.encode(outcome).decode() + "\n"):
            self._journal.write("finished", decision.round, **outcome)

    def _outcome(self, decision: Decision, retired: Sequence[Retirement]) -> None:
        outcome = _outcome(decision, retired)
        self._journal.replace("outcome.json", msgspec.json.encode(outcome).decode() + "\n")
        self._journal.write("finished", decision.round, **outcome)


def _outcome(decision: Decision, retired: Sequence[Retirement]) -> dict[str, object]:
    return {
        "kind": decision.kind,
        "cause": decision.cause,
        "rounds": decision.round,
        "hosts_retired": [retirement.host for retirement in retired if not retirement.benched],
        "exit_code": decision.exit_code,
        "line": decision.reason,
    }


def _few(hosts: list[str], limit: int = 8) -> list[str]:
    return hosts if len(hosts) <= limit else [*hosts[:limit], f"and {len(hosts) - limit} more"]
