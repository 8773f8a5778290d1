"""Who is in the job: a state machine with no I/O, no clock and no randomness.

``apply(event, now)`` takes one event and returns what has to be done about it. Events are what stands in the store
(messages and committed records) plus the passing of time, so the state of any job can be rebuilt by applying its
records again, and two coordinators that read the same store come to the same proposals.

A round goes ``FORMING -> RUNNING -> DECIDING`` and then to the next round or to ``FINISHED``. Proposals (open this
round, decide this case) are effects; they take hold only when the committed record comes back as an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from rendezvous.records import (
    Action,
    Case,
    Decision,
    Gone,
    JobRecord,
    Joined,
    LostMember,
    Member,
    Message,
    Opening,
    Outcome,
    Readmit,
    RecordError,
    Report,
    Retire,
    Retirement,
    Roster,
    Writable,
)
from rendezvous.seating import evidence_of, plan, to_write, without_failure

__all__ = ["CheckTwin", "Decide", "Effect", "Event", "Membership", "Open", "Phase", "Refuse", "Tick"]

LOSS_SETTLES = 0.25
"""Part of the settle window that is waited after a host is lost: a loss explains what others report, and hosts that are
lost together are found together, because all ports are asked at once."""


class Phase(Enum):
    """Where the current round stands."""

    FORMING = "forming"
    RUNNING = "running"
    DECIDING = "deciding"
    FINISHED = "finished"


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Message | Opening | Decision | Tick


@dataclass(frozen=True)
class Open:
    """Commit this opening of a round."""

    opening: Opening


@dataclass(frozen=True)
class Decide:
    """Commit the decision of this case (as the round's opening if ``before_start``): ``answer``, else the decider's."""

    case: Case
    before_start: bool = False
    answer: Decision | None = None


@dataclass(frozen=True)
class Refuse:
    """Tell a member that it is not admitted."""

    member_id: str
    reason: str


@dataclass(frozen=True)
class CheckTwin:
    """Two agents claim one host: find out whether the older one still lives; if so, refuse the newer."""

    old: Member
    new: Member


Effect = Open | Decide | Refuse | CheckTwin


class Membership:
    """The job's membership as the coordinator knows it.

    Args:
        job: the limits that all agents agreed on.
    """

    def __init__(self, job: JobRecord) -> None:
        self.job = job
        self.phase = Phase.FORMING
        self.round = 1
        self.roster: Roster | None = None
        self.members: dict[str, Member] = {}
        self.queue: dict[str, Member] = {}
        self.retired: dict[str, Retirement] = {}
        self.retired_in: dict[str, int] = {}
        self.decision: Decision | None = None
        self._opened = False
        self._seats: list[Member | None] = []
        self._slots: dict[str, int] = {}
        self._gone: dict[str, str] = {}
        self._by_host: dict[str, str] = {}
        self._evidence: dict[str, str] = {}
        self._orders: set[str] = set()
        self._told: dict[str, Retirement] = {}
        self._grow_since: float | None = None
        self._twins: dict[str, list[Member]] = {}
        self._keys: dict[str, str] = {}
        self._reports: dict[tuple[str, int], Report] = {}
        self._underway: dict[str, Report] = {}
        self._heard: set[str] = set()
        self._succeeded: set[str] = set()
        self._lost: dict[str, str] = {}
        self._failed_at: float | None = None
        self._settle_until: float | None = None
        self._conclusive = False
        self._forming_since: float | None = None
        self._enough_since: float | None = None
        self._not_before = 0.0
        self._hold_until: float | None = None
        self._writable: set[str] = set()
        self._started_at: float | None = None
        self._elapsed_base = 0.0
        self._ledger: msgspec.Raw = msgspec.Raw(b"null")

    def apply(self, event: Event, now: float, more: bool = False) -> list[Effect]:
        """Take one event in.

        Args:
            event: a message, a committed record or ``Tick()``.
            now: seconds on the caller's own monotonic clock; never compared with another host's.
            more: further events are there already, so nothing is concluded from this one alone.

        Returns:
            What has to be done now. Repeating an event changes nothing.
        """
        match event:
            case Joined():
                effects = self._on_joined(event.member)
            case Gone():
                effects = self._on_gone(event, now)
            case Report():
                effects = self._on_report(event, now)
            case Retire():
                effects = self._on_retire(event)
            case Readmit():
                effects = self._on_readmit(event)
            case Writable():
                effects = self._on_writable(event)
            case Opening():
                effects = self._on_opening(event, now)
            case Decision():
                effects = self._on_decision(event, now)
            case Tick():
                effects = []
        return effects if more else effects + self._advance(now)

    def deadline(self, now: float) -> float | None:
        """When the next ``Tick`` is due (same clock as ``now``); ``None`` if only events can change anything."""
        if self.phase is Phase.RUNNING:
            if self._settle_until is None and self._grow_since is not None:
                return self._grow_since + self.job.last_call
            return self._settle_until
        if self.phase is not Phase.FORMING:
            return None
        times = [self._not_before]
        if self._hold_until is not None:
            times.append(self._hold_until)
        if self._enough_since is not None:
            times.append(self._enough_since + self.job.last_call)
        if self._forming_since is not None:
            times.append(self._forming_since + self.job.join_timeout)
        return min((time for time in times if time > now), default=None)

    def unheard(self) -> list[Member]:
        """Active members that have neither reported nor gone while a failure is being settled."""
        if self.phase is not Phase.RUNNING or self._settle_until is None or self.roster is None:
            return []
        return [member for member in self.roster.members if member.id not in self._heard]

    # -- events ------------------------------------------------------------------------------------------------------

    def _on_joined(self, member: Member) -> list[Effect]:
        if member.id in self.members or member.id in self._gone:
            return []
        if self.phase is Phase.FINISHED:
            return [Refuse(member.id, "the job is over")]
        if member.key in self.retired:
            return [Refuse(member.id, self._why_retired(member.key))]
        twin = self._by_host.get(member.key)
        if twin is not None:
            waiting = self._twins.setdefault(member.key, [])
            if all(other.id != member.id for other in waiting):
                waiting.append(member)
            return [CheckTwin(self.members[twin], member)]
        self._admit(member)
        return []

    def _why_retired(self, key: str) -> str:
        item, evidence = self.retired[key], self._evidence.get(key, "")
        told = f"{item.host} was retired in round {self.retired_in[key]} ({item.provenance}): {item.reason}"
        return f"{told}; evidence: {evidence}" if evidence else told

    def _on_retire(self, order: Retire) -> list[Effect]:
        """A person's word. It concerns the life it names: a host that has come back since is another one."""
        if order.id in self._orders:
            return []
        self._orders.add(order.id)
        member_id = self._by_host.get(order.key)
        if (
            order.key in self.retired
            or self.phase is Phase.FINISHED
            or (member_id or order.member_id) != order.member_id
        ):
            return []
        retirement = Retirement(order.host, "person", order.reason)
        if order.key in self._slots:
            self._told[order.key] = retirement
            return []
        self.retired[order.key], self.retired_in[order.key] = retirement, order.round
        if member_id is None:
            return []
        self._forget(order.key, member_id)
        return [Refuse(member_id, self._why_retired(order.key))]

    def _on_readmit(self, order: Readmit) -> list[Effect]:
        if order.id not in self._orders and self.retired_in.get(order.key) == order.round:
            del self.retired[order.key], self.retired_in[order.key]
            self._evidence.pop(order.key, None)
        self._orders.add(order.id)
        return []

    def _forget(self, key: str, member_id: str) -> None:
        del self._by_host[key]
        self.members.pop(member_id, None)
        self.queue.pop(member_id, None)

    def _admit(self, member: Member) -> None:
        self.members[member.id] = member
        self.queue[member.id] = member
        self._by_host[member.key] = member.id
        self._keys[member.host] = member.key

    def _on_gone(self, gone: Gone, now: float) -> list[Effect]:
        if gone.member_id in self._gone:
            return []
        self._gone[gone.member_id] = gone.how
        member = self.members.pop(gone.member_id, None)
        self.queue.pop(gone.member_id, None)
        if member is None:
            return []
        if self._by_host.get(member.key) == member.id:
            del self._by_host[member.key]
        if self._holds_slot(member):
            self._lose(member.id, gone.how, now)
        waiting = self._twins.pop(member.key, [])
        return [effect for twin in waiting for effect in self._on_joined(twin)]

    def _holds_slot(self, member: Member) -> bool:
        slot = self._slots.get(member.key)
        seat = self._seats[slot] if slot is not None else None
        return seat is not None and seat.id == member.id

    def _lose(self, member_id: str, how: str, now: float) -> None:
        self._lost[member_id] = how
        self._heard.add(member_id)
        if self.phase is Phase.RUNNING:
            self._open_settle(now, LOSS_SETTLES)

    def _on_report(self, report: Report, now: float) -> list[Effect]:
        member = self.members.get(report.member_id)
        if self.phase is not Phase.RUNNING or report.round != self.round or member is None:
            return []
        if not self._holds_slot(member):
            return []
        if report.outcome is Outcome.RUNNING:
            newest = self._underway.get(member.id)
            if newest is None or newest.seq < report.seq:
                self._underway[member.id] = report
            return []
        key = (report.member_id, report.seq)
        if key in self._reports:
            return []
        self._reports[key] = report
        self._heard.add(report.member_id)
        if report.outcome is Outcome.SUCCEEDED:
            self._succeeded.add(report.member_id)
        else:
            self._succeeded.discard(report.member_id)
            self._conclusive = self._conclusive or report.conclusive
            self._open_settle(now)
        return []

    def _open_settle(self, now: float, part: float = 1.0) -> None:
        self._failed_at = now if self._failed_at is None else self._failed_at
        until = now + part * self.job.settle
        self._settle_until = until if self._settle_until is None else min(until, self._settle_until)

    def _on_writable(self, word: Writable) -> list[Effect]:
        if self.phase is Phase.FORMING and word.round == self.round - 1:
            self._writable.add(word.member_id)
        return []

    def _on_opening(self, opening: Opening, now: float) -> list[Effect]:
        if opening.round != self.round or self._opened or self.phase is Phase.FINISHED:
            return []
        if self._started_at is None:
            self._started_at = now
        self._opened = True
        if opening.ended is not None:
            return self._on_decision(opening.ended, now)
        if opening.roster is None:
            raise RecordError(f"the opening of round {opening.round} has neither a roster nor a decision")
        self.phase = Phase.RUNNING
        self.roster = opening.roster
        self._seats = list(opening.roster.members)
        self._slots = {member.key: slot for slot, member in enumerate(opening.roster.members)}
        for member in opening.roster.members:
            self._keys[member.host] = member.key
            self.queue.pop(member.id, None)
            if member.id in self._gone:
                self._lose(member.id, self._gone[member.id], now)
            else:
                self.members[member.id] = member
                self._by_host[member.key] = member.id
        return []

    def _on_decision(self, decision: Decision, now: float) -> list[Effect]:
        if decision.round != self.round or not self._opened or self.phase is Phase.FINISHED:
            return []
        self.decision = decision
        self._ledger = decision.ledger
        self._elapsed_base, self._started_at = decision.elapsed, now
        effects = [effect for item in decision.retired for effect in self._retire(item, decision)]
        self._told = {key: item for key, item in self._told.items() if key in self._slots}
        self._grow_since = None
        self._reports, self._heard, self._succeeded, self._lost, self._underway = {}, set(), set(), {}, {}
        self._failed_at, self._settle_until, self._conclusive, self._opened = None, None, False, False
        self._forming_since = self._enough_since = None
        if decision.action is Action.RESTART:
            self.phase = Phase.FORMING
            self.round += 1
            self._not_before = now + decision.delay
            self._hold_until = self._not_before + decision.hold.seconds if decision.hold is not None else None
            self._writable = set()
            # A slot whose holder is gone but was not retired by a decision stays its holder's until one says so.
            self._lost = {s.id: self._gone[s.id] for s in self._seats if s is not None and s.id in self._gone}
        else:
            self.phase = Phase.FINISHED
        return effects

    def _retire(self, retirement: Retirement, decision: Decision) -> list[Effect]:
        """Take a host out of its slot. A later life of it, which holds none, does not learn it from the decision."""
        key = self._keys.get(retirement.host, retirement.host)
        slot = self._slots.pop(key, None)
        seat = None
        if slot is not None:
            seat, self._seats[slot] = self._seats[slot], None
        member_id = self._by_host.get(key)
        if retirement.benched:
            if member_id is not None:
                self.queue.pop(member_id, None)
                self.queue[member_id] = self.members[member_id]
            return []
        self.retired[key], self.retired_in[key] = retirement, decision.round
        self._evidence[key] = evidence_of(decision)
        lives = {member.id for member in self._twins.pop(key, [])}
        if member_id is not None:
            self._forget(key, member_id)
            lives.add(member_id)
        lives -= self._gone.keys() | ({seat.id} if seat is not None else set())
        return [Refuse(life, self._why_retired(key)) for life in sorted(lives)]

    # -- what follows ------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        if self.phase is Phase.RUNNING and self._settled(now):
            self.phase = Phase.DECIDING
            return [Decide(self._case(self.roster, now))]
        if self.phase is Phase.RUNNING and self._settle_until is None and (reason := self._called_off(now)):
            self.phase = Phase.DECIDING
            return [self._without_failure(self.roster, now, reason)]
        if self.phase is Phase.FORMING and now >= self._not_before and not self._held(now):
            return self._form(now)
        return []

    def _held(self, now: float) -> bool:
        """Whether the round waits for storage. A host that is gone or is told to go is decided on all the same."""
        if self._hold_until is None or now >= self._hold_until or self._lost or self._told:
            return False
        return any(member.id not in self._writable for member in to_write(self._seats))

    def _called_off(self, now: float) -> str:
        """Why a round that runs well is ended all the same; empty: it is not."""
        if self._told:
            return self._told_reason()
        free = self.job.max_hosts - len(self._slots)
        if not self.job.grow_now or free <= 0 or not self.queue:
            self._grow_since = None
            return ""
        if self._grow_since is None:
            self._grow_since = now
        coming = min(free, len(self.queue))
        if coming < free and now - self._grow_since < self.job.last_call:
            return ""
        return f"grow=now: {coming} more {'host is' if coming == 1 else 'hosts are'} there"

    def _told_reason(self) -> str:
        return "; ".join(f"{item.host} is retired by a person: {item.reason}" for item in self._told.values())

    def _without_failure(self, roster: Roster | None, now: float, reason: str, before_start: bool = False) -> Decide:
        case = self._case(roster, now)
        answer = without_failure(self.round, self.decision, case.elapsed, reason, tuple(self._told.values()))
        return Decide(case, before_start, answer)

    def _settled(self, now: float) -> bool:
        if self.roster is None:
            return False
        everyone = len(self._heard) == len(self.roster.members)
        if self._settle_until is None:
            return everyone and len(self._succeeded) == len(self.roster.members)
        return self._conclusive or everyone or now >= self._settle_until

    def _form(self, now: float) -> list[Effect]:
        if self._forming_since is None:
            self._forming_since = now
        if self._lost:
            seats = tuple(seat for seat in self._seats if seat is not None)
            self.phase = Phase.DECIDING
            return [Decide(self._case(Roster(self.round, seats), now), before_start=True)]
        if self._told:
            self.phase = Phase.DECIDING
            return [self._without_failure(None, now, self._told_reason(), before_start=True)]
        size = min(len(self._slots) + len(self.queue), self.job.max_hosts)
        waited = now - self._forming_since
        if size < self.job.min_hosts:
            self._enough_since = None
            if waited < self.job.join_timeout:
                return []
            self.phase = Phase.DECIDING
            return [Decide(self._case(None, now, waited=waited), before_start=True)]
        if self._enough_since is None:
            self._enough_since = now
        called = size == self.job.max_hosts or now - self._enough_since >= self.job.last_call
        if not self._seats and not called:
            return []
        return [
            Open(
                Opening(
                    self.round, roster=Roster(self.round, plan(self._seats, self.queue.values(), self.job.max_hosts))
                )
            )
        ]

    def _case(self, roster: Roster | None, now: float, waited: float = 0.0) -> Case:
        lost = tuple(
            LostMember(member, self._lost[member.id])
            for member in (roster.members if roster else ())
            if member.id in self._lost
        )
        elapsed = self._elapsed_base + (now - self._started_at if self._started_at is not None else 0.0)
        return Case(
            round=self.round,
            roster=roster,
            reports=(*self._underway.values(), *self._reports.values()),
            lost=lost,
            spares=tuple(self.queue.values()),
            min_hosts=self.job.min_hosts,
            max_hosts=self.job.max_hosts,
            elapsed=elapsed,
            waited=waited,
            ledger=self._ledger,
            failed_at=self._failed_at,
            at=now,
        )
