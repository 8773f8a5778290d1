"""Turns what one agent has seen in a round into reports, the first one as soon as there is something to say."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator, Sequence

import msgspec

from ezpz_elastic.decide.evidence import AgentSignalled, Evidence, HostProbe, IdleTimeout, LogMatch, WorkerExit
from ezpz_elastic.journal import Journal
from ezpz_elastic.ledger import say
from ezpz_elastic.observe.exits import ExitWatch
from ezpz_elastic.observe.launcher import LauncherLog
from rendezvous.links import RoundLink
from rendezvous.records import Member, Outcome, Report

__all__ = ["Reporter"]

_BAD = frozenset({Outcome.FAILED, Outcome.INTERRUPTED})


class Reporter:
    """One agent's voice in one round.

    Args:
        member: who speaks.
        round_number: about which round.
        link: the line to the store.
        journal: this host's journal.
        launcher: the launcher's log, whose news go with every report of a failure.
        carried: what was seen after the round before had been decided; it goes with the first report.
        numbers: of the reports, drawn from two threads; none of them twice in a round, whoever speaks for this agent.
    """

    def __init__(
        self,
        member: Member,
        round_number: int,
        link: RoundLink,
        journal: Journal,
        launcher: LauncherLog,
        carried: Sequence[Evidence] = (),
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._member, self._round, self._link, self._journal = member, round_number, link, journal
        self._launcher, self._carried = launcher, list(carried)
        self._numbers = itertools.count() if numbers is None else numbers

    def ended(self, exits: ExitWatch, found: Sequence[Evidence]) -> None:
        """A worker has ended; tell of a failure at once, and of success when the last one is done."""
        for item in found:
            if isinstance(item, WorkerExit):
                self._exited(item)
        if found:
            conclusive = any(isinstance(item, WorkerExit) and item.signal == signal.SIGKILL for item in found)
            self._send(exits, Outcome.FAILED, found, conclusive)
        elif exits.finished() and not exits.failed():
            self._send(exits, Outcome.SUCCEEDED, (), False)

    def not_watched(self, exits: ExitWatch, found: Sequence[WorkerExit]) -> None:
        """This host's workers could not be started or watched."""
        error = found[0].error
        reason = f"{error.type}: {error.message}" if error is not None else found[0].unseen
        self._journal.write("agent_failed", self._round, ranks=[item.rank for item in found], reason=reason)
        say(f"{self._member.host}: the workers could not be started or watched: {reason}")
        self._send(exits, Outcome.FAILED, found, False)

    def by_agent(self, found: Sequence[WorkerExit]) -> None:
        """Workers have ended because this agent made them: that is written down and is no evidence."""
        for item in found:
            self._exited(item)

    def _exited(self, found: WorkerExit) -> None:
        self._journal.write("worker_exited", self._round, **msgspec.to_builtins(found))

    def hung(self, exits: ExitWatch, found: IdleTimeout) -> None:
        """Nobody makes progress. All ranks of the job have been compared, so this need not wait for other reports."""
        self._send(exits, Outcome.FAILED, [found], True)

    def out_of_time(self, exits: ExitWatch, found: LogMatch) -> None:
        """The allocation ends. Other hosts report the same, so nobody is stopped while others still save."""
        self._send(exits, Outcome.INTERRUPTED, [found], False)

    def probed(self, exits: ExitWatch, found: Sequence[HostProbe]) -> None:
        """What a survey after a failure has found wrong with this host."""
        self._send(exits, Outcome.FAILED, found, False)

    def underway(self, exits: ExitWatch) -> None:
        """A checkpoint has become durable: a round that ends without a word from this host still counts it."""
        self._send(exits, Outcome.RUNNING, (), False)

    def interrupted(self, signum: int, exits: ExitWatch) -> None:
        """This agent itself was told to stop."""
        self._send(exits, Outcome.INTERRUPTED, [AgentSignalled(self._member.host, signum)], True)

    def _send(self, exits: ExitWatch, outcome: Outcome, found: Sequence[Evidence], conclusive: bool) -> None:
        step, durable_step = exits.steps()
        if outcome in _BAD:
            found, self._carried = [*found, *self._launcher.news(), *self._carried], []
        report = Report(
            round=self._round,
            member_id=self._member.id,
            seq=next(self._numbers),
            outcome=outcome,
            conclusive=conclusive,
            step=step,
            durable_step=durable_step,
            evidence=msgspec.Raw(msgspec.json.encode(list(found))),
        )
        self._link.report(report)
        if outcome is Outcome.RUNNING:
            self._journal.write("progress", self._round, step=step, durable_step=durable_step)
        else:
            self._journal.write("report", self._round, outcome=outcome.value, conclusive=conclusive, step=step)
