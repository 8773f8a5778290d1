"""A round's end as the store tells it -> one decision: read the reports, classify them, ask the policy.

The coordinator calls this once per round. It does no I/O, so any coordinator comes to the same decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from ezpz_elastic.decide.classify import classify
from ezpz_elastic.decide.context import Context, host_key
from ezpz_elastic.decide.early import explained_by_early_ends
from ezpz_elastic.decide.evidence import AgentSignalled, Evidence, LeaseLost, LostHow, Unkillable, WorkerExit
from ezpz_elastic.decide.history import History, load_history
from ezpz_elastic.decide.policy import decide
from ezpz_elastic.decide.situation import Limits, Situation
from ezpz_elastic.decide.verdict import Cause, Suspect, Verdict, VerdictKind
from rendezvous.records import Case, Decision, Member, Outcome, Roster

__all__ = ["make_decider"]

_TOLD_TO_STOP = frozenset({VerdictKind.WALLTIME, VerdictKind.PREEMPTED, VerdictKind.INTERRUPTED})

# How a member was lost, in the words of evidence. An agent that left by itself is a process that is gone.
_HOW = {"expired": LostHow.EXPIRED, "refused": LostHow.REFUSED, "left": LostHow.REFUSED}

_SILENT_WEIGHT = 0.2  # said nothing while others reported: weak, since the settle window is short
_BEHIND_WEIGHT = 0.2  # its step counter stood still earlier than everybody else's
_STUCK_WEIGHT = 0.4  # its processes outlived SIGKILL: something is wrong with it, perhaps only its storage client
_LAST_WEIGHT = 0.05  # slowest to report: hardly more than noise, but better than position
_LARGEST_STEP = 2**53  # no counter gets there, and beyond it JSON readers disagree on numbers
_FEW = 4  # more hosts than that with the same weak hint single out nobody


def make_decider(
    limits: Limits, key: Callable[[str], str | None] = host_key, machine_note: str = ""
) -> Callable[[Case], Decision]:
    """Build the coordinator's decider.

    Args:
        limits: how far the policy may go.
        key: what two spellings of one host have in common, on this machine.
        machine_note: what the reader of a verdict must know about the machine, e.g. that it has no signatures.

    Returns:
        a function that answers a case; it raises nothing whatever the reports contain.
    """

    def decider(case: Case) -> Decision:
        history, note = load_history(case.ledger, case.round)
        if case.roster is None:
            situation = _unformed(case)
            verdict = _unformed_verdict(case, history)
        else:
            told = _Told(case, case.roster)
            verdict = told.verdict(key, machine_note)
            situation = told.situation(verdict)
        if note:
            verdict = msgspec.structs.replace(verdict, note=_joined(verdict.note, note))
        return decide(verdict, history, situation, limits)

    return decider


class _Told:
    """What the reports of one round say.

    Args:
        case: the round's end.
        roster: who held its slots.
    """

    def __init__(self, case: Case, roster: Roster) -> None:
        self._case, self._roster = case, roster
        self._members = {member.id: member for member in roster.members}
        self._heard = [r for r in case.reports if r.round == case.round and r.member_id in self._members]
        self._reports = [report for report in self._heard if report.outcome is not Outcome.RUNNING]
        self._outcomes = {report.member_id: report.outcome for report in self._reports}
        self._lost = {gone.member.host: gone.how for gone in case.lost if gone.member.id in self._members}
        self._notes: list[str] = []
        self._evidence = self._read()

    def verdict(self, key: Callable[[str], str | None], machine_note: str) -> Verdict:
        """What happened. Success is success only if every host of the round says so."""
        outcomes = [self._outcomes.get(member_id) for member_id in self._members]
        if outcomes and all(outcome is Outcome.SUCCEEDED for outcome in outcomes):
            whose = f"all {len(outcomes)} hosts" if len(outcomes) != 1 else "the only host"
            return Verdict(VerdictKind.SUCCESS, Cause.UNKNOWN, f"the workers of {whose} succeeded")
        verdict = classify(self._evidence, self._context(key, machine_note))
        if Outcome.INTERRUPTED in outcomes and verdict.kind not in _TOLD_TO_STOP:
            host = next(m.host for m in self._roster.members if self._outcomes.get(m.id) is Outcome.INTERRUPTED)
            verdict = Verdict(VerdictKind.INTERRUPTED, Cause.UNKNOWN, f"the agent on {host} was told to stop")
        elif verdict.kind is VerdictKind.SUCCESS:
            verdict = self._unexplained()
        else:
            verdict = explained_by_early_ends(verdict, self._exits(), self._done())
        if verdict.kind is VerdictKind.BAD_NODE_BLIND:
            verdict = msgspec.structs.replace(verdict, suspects=(*verdict.suspects, *self._weak_hints()))
        verdict = msgspec.structs.replace(verdict, suspects=(*verdict.suspects, *self._stuck(verdict)))
        step, note = _newest((verdict.step,)), _joined(verdict.note, *self._notes)
        return msgspec.structs.replace(verdict, step=step, note=note)

    def _done(self) -> dict[str, int | None]:
        """Hosts whose workers have all ended well, with their last step."""
        return {
            self._members[report.member_id].host: report.step
            for report in self._reports
            if self._outcomes[report.member_id] is Outcome.SUCCEEDED
        }

    def situation(self, verdict: Verdict) -> Situation:
        """Where the job stands."""
        return Situation(
            round=self._case.round,
            hosts=tuple(member.host for member in self._roster.members),
            spares=tuple(member.host for member in self._case.spares),
            min_hosts=self._case.min_hosts,
            max_hosts=self._case.max_hosts,
            elapsed=self._case.elapsed,
            step=_newest(report.step for report in self._heard),
            durable_step=_newest(report.durable_step for report in self._heard),
            lost=tuple(self._lost),
            exit_code=self._exit_code(verdict),
            everywhere=self._everywhere(),
        )

    def _read(self) -> list[Evidence]:
        """All evidence in order of arrival. A report that cannot be read counts as one without evidence."""
        evidence: list[Evidence] = [
            LeaseLost(host, _HOW.get(how, LostHow.UNREACHABLE)) for host, how in self._lost.items()
        ]
        for report in self._reports:
            try:
                evidence += _evidence.decode(report.evidence)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                host = self._members[report.member_id].host
                self._notes.append(f"the evidence that {host} sent cannot be read ({error})")
        return evidence

    def _context(self, key: Callable[[str], str | None], machine_note: str) -> Context:
        members = self._roster.members
        keys = {member.host: member.key for member in members}
        return Context(
            hosts=tuple(member.host for member in members),
            roster=tuple(member.host for member in members for _ in range(member.workers)),
            addresses={member.addr: member.host for member in members},
            key=lambda name: keys.get(name) or key(name),
            machine_note=machine_note,
            live=True,
        )

    def _unexplained(self) -> Verdict:
        """A round that did not succeed although nothing that was reported says why."""
        members = self._roster.members
        failed = [m for m in members if self._outcomes.get(m.id) is Outcome.FAILED]
        failed = failed or [m for m in members if m.id not in self._outcomes]
        who = ", ".join(member.host for member in failed[:_FEW]) + (" and others" if len(failed) > _FEW else "")
        return Verdict(
            VerdictKind.BAD_NODE_BLIND,
            Cause.UNKNOWN,
            f"the workers on {who} failed and nothing that was reported says why",
            suspects=_hints(failed, _SILENT_WEIGHT, "failed without a word"),
            certain=False,
        )

    def _weak_hints(self) -> tuple[Suspect, ...]:
        """Who was silent, slow or behind: worth a little when nothing else is known."""
        members = [member for member in self._roster.members if member.host not in self._lost]
        silent = [member for member in members if member.id not in self._outcomes]
        hints = _hints(silent, _SILENT_WEIGHT, "did not report in time")
        if not silent and len(members) > 1 and self._reports:
            last = self._members[next(reversed(self._outcomes))]
            hints += _hints([last], _LAST_WEIGHT, "was the last to report")
        steps: dict[str, int] = {}
        for report in self._reports:
            if report.step is not None and report.step >= 0:
                steps[report.member_id] = max(report.step, steps.get(report.member_id, report.step))
        least = min(steps.values(), default=0)
        behind = [self._members[member_id] for member_id, step in steps.items() if step == least]
        if len(behind) < len(steps):
            hints += _hints(behind, _BEHIND_WEIGHT, "was behind the others")
        return hints

    def _stuck(self, verdict: Verdict) -> tuple[Suspect, ...]:
        """Hosts whose kernel holds on to what was to be stopped, as far as they are not blamed anyway."""
        told = [item for item in self._evidence if isinstance(item, Unkillable)]
        here = {member.host for member in self._roster.members} - {host.name for host in verdict.hosts}
        return tuple(
            Suspect(host, _STUCK_WEIGHT, "its processes outlive SIGKILL")
            for host in dict.fromkeys(item.host for item in told)
            if host in here
        )

    def _exits(self) -> list[WorkerExit]:
        """Workers that ended of their own accord, in order of arrival and, within a host, of failure."""
        return [item for item in self._evidence if isinstance(item, WorkerExit) and not item.by_agent]

    def _exit_code(self, verdict: Verdict) -> int | None:
        """The code the job ends with, if it ends: the signal an agent was told, else that of the worker to blame."""
        signalled = [item.signal for item in self._evidence if isinstance(item, AgentSignalled)]
        if verdict.kind in _TOLD_TO_STOP and signalled:
            return 128 + signalled[0]
        failed = [item for item in self._exits() if _code(item)]
        blamed = {host.name for host in verdict.hosts} | {hint.name for hint in verdict.suspects}
        ordered = sorted(failed, key=lambda item: (item.host not in blamed, item.order))
        return _code(ordered[0]) if ordered else None

    def _everywhere(self) -> bool | None:
        """Whether every host saw its workers fail, and in the same way.

        Ranks that their own agent stopped, because a sibling had failed, had no chance to tell and do not count. Nor
        does a bare exit code 1, which is what any exception ends with, beside exceptions that were told.
        """
        exits = self._exits()
        ways = {item.error.type if item.error is not None else f"code {_code(item)}" for item in exits}
        if any(item.error is not None for item in exits):
            ways.discard("code 1")
        if len(ways) > 1 or any(_code(item) == 0 for item in exits):
            return False
        silent = {member.host for member in self._roster.members} - {item.host for item in exits}
        return None if silent or not exits else True


_evidence: msgspec.json.Decoder[list[Evidence]] = msgspec.json.Decoder(list[Evidence])


def _unformed(case: Case) -> Situation:
    return Situation(
        round=case.round,
        hosts=(),
        spares=tuple(member.host for member in case.spares),
        min_hosts=case.min_hosts,
        max_hosts=case.max_hosts,
        elapsed=case.elapsed,
        unformed=True,
        waited=case.waited,
    )


def _unformed_verdict(case: Case, history: History) -> Verdict:
    have = history.seated + len(case.spares)
    return Verdict(
        VerdictKind.EXHAUSTED,
        Cause.LAUNCH_ERROR if case.round == 1 else Cause.HOST_LOST,
        f"round {case.round} could not be formed: {have} of at least {case.min_hosts} hosts came "
        f"within {case.waited:.0f} s",
    )


def _hints(members: list[Member], weight: float, why: str) -> tuple[Suspect, ...]:
    return tuple(Suspect(member.host, weight, why) for member in members) if len(members) <= _FEW else ()


def _code(item: WorkerExit) -> int:
    """A worker's exit code as a shell would tell it."""
    if item.signal is not None:
        return 128 + item.signal
    return item.exit_code or 0


def _newest(steps: Iterable[int | None]) -> int | None:
    return max((step for step in steps if step is not None and 0 <= step <= _LARGEST_STEP), default=None)


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
