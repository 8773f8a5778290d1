"""Does the faults of a schedule to a running job, one after the other, and judges what came of each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from support.cluster import Cluster

from ezpz_elastic.demo.story import Journals
from ezpz_elastic.faults.analysis.read import Event
from ezpz_elastic.faults.answers import EXITED, STORAGE
from ezpz_elastic.faults.modes import INSIDE, MODES, Receipt, inflict
from ezpz_elastic.faults.receipts import Receipts
from ezpz_elastic.faults.scene import Targets
from scenarios import orders
from scenarios.modes import Mode
from scenarios.runs import DEADLINE
from scenarios.schedule import Plan, retires

__all__ = ["Injection", "Injector", "unwitnessed"]

ALSO_RIGHT = {"gloo_peer": EXITED}
"""A rank that complains of a peer and ends with 1, while its peers complain of it: here it was the first to end."""

_STEP = re.compile(rb"^step=(\d+) ", re.M)

_LOOK = 0.05
"""Seconds between two looks at the journals."""


class Injection(msgspec.Struct, frozen=True):
    """A fault that was done.

    Args:
        kind: which.
        round: the round it fell into.
        host, rank: the victim.
        step: the newest checkpoint before.
        receipt: of the victim or of the injector.
    """

    kind: str
    round: int
    host: str
    rank: int
    step: int
    receipt: Receipt


class Injector:
    """One job's misfortune.

    Args:
        cluster: the job.
        mode: its topology.
        directory: where orders and receipts go; the trainer's ``--faults``.
    """

    def __init__(self, cluster: Cluster, mode: Mode, directory: Path) -> None:
        self._cluster, self._mode, self._directory = cluster, mode, directory
        self._journals = Journals(cluster.run_dir)
        self._receipts = Receipts(directory / orders.RECEIPTS)
        self._done = 0
        self.round, self.roster = 0, []  # type: ignore[var-annotated]
        self.saved: dict[int, int] = {}

    def await_saved(self, number: int, beyond: int) -> int:
        """Wait until a round has saved a step beyond another one.

        Returns:
            the newest step that it has saved.

        Raises:
            AssertionError: it does not come to that, which would be a job that hangs.
        """
        self._await(lambda: self.saved.get(number, -1) > beyond, f"a step after {beyond} saved in round {number}")
        return self.saved[number]

    def await_step(self, step: int) -> None:
        """Wait until rank 0 has said that it is beyond a step."""

        def told() -> bool:
            log = self._cluster.run_dir / "rounds" / str(self.round) / "0" / "stdout.log"
            steps = _STEP.findall(log.read_bytes()[-200:]) if log.exists() else []
            return bool(steps) and int(steps[-1]) >= step

        self._await(told, f"step {step}")

    def inject(self, plan: Plan) -> Injection:
        """Do a fault, now, and wait until somebody has seen it done."""
        self._look()
        number, host, rank = self.round, self.roster[plan.slot], plan.slot * self._mode.per_host
        before = max(self.saved.values())
        self._done += 1
        name = f"{self._done:03d}-{plan.kind}"
        if plan.kind in INSIDE:
            peers = tuple(other for other in self.roster if other != host)
            orders.give(self._directory, orders.Order(name, plan.kind, number, rank, host, peers))
            self._await(lambda: self._receipts.count(name) > 0, f"the victim of {name} has left a receipt")
            receipt = next(item for item in self._receipts.read() if (item.mode, item.attempt) == (plan.kind, number))
        else:
            receipt = self._strike(plan.kind, number, host, rank, before)
        return Injection(plan.kind, number, host, rank, before, receipt)

    def await_recovery(self, injection: Injection) -> int:
        """Wait until a later round has saved a step that nobody had saved before.

        Returns:
            that step, or a later one.
        """

        def recovered() -> bool:
            return any(r > injection.round and step > injection.step for r, step in self.saved.items())

        self._await(recovered, f"recovery from {injection.kind} in round {injection.round}")
        return max(self.saved.values())

    def finish(self, step: int) -> None:
        """Let the job end."""
        orders.finish(self._directory, step)

    def _strike(self, kind: str, number: int, host: str, rank: int, step: int) -> Receipt:
        index = int(host.rpartition(".")[2])
        workers = dict.fromkeys(self._cluster.workers(index, number), "worker")
        assert workers, f"{host} has no worker in round {number}"
        agent = {self._cluster.agents[index].pid: "agent"}
        pids = {"agent_loss": agent, "host_loss": {**agent, **workers}}.get(kind, workers)
        about = Receipt(kind, 0, None, "injector", attempt=number, step=step, rank=rank, host=host)
        receipt = inflict(kind, Targets(pids, host), self._receipts, about, times=1_000)
        assert receipt is not None
        return receipt

    def _look(self) -> None:
        for event in self._journals.poll():
            if event.name == "round_committed" and event.round >= self.round:
                self.round, self.roster = event.round, list(event.fields["roster"])
            elif event.name == "checkpoint_saved":
                self.saved[event.round] = max(event.fields["step"], self.saved.get(event.round, -1))

    def _await(self, so: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while True:
            self._look()
            if so():
                return
            if time.monotonic() > deadline:
                self._cluster.await_true(lambda: False, why, timeout=0.0)
            time.sleep(_LOOK)


def unwitnessed(injections: Sequence[Injection], events: Iterable[Event]) -> list[str]:
    """Complaints about injections that were not seen, not understood, or not recovered from.

    Args:
        injections: all that were done, in order.
        events: of all journals.
    """
    events = list(events)
    rosters = {e.round: list(e.fields["roster"]) for e in events if e.name == "round_committed"}
    complaints = []
    expected = {injection.round for injection in injections}
    for number in sorted(rosters.keys() - expected - {max(rosters, default=0)}):
        complaints.append(f"round {number} ended and nobody had done anything to it")
    for injection in injections:
        complaints += [
            f"{injection.kind} at {injection.host} in round {injection.round}: {text}"
            for text in (*_death(injection, events), *_verdict(injection, events), *_recovery(injection, events))
        ]
    complaints += _membership(injections, rosters)
    retired = sorted((e.round, e.fields["retired"]) for e in events if e.name == "host_retired")
    due = [(injection.round, injection.host) for injection in injections if retires(injection.kind)]
    if retired != due:
        complaints.append(f"retired were {retired}, and to {due} something had been done that costs a host")
    return complaints


def _death(injection: Injection, events: list[Event]) -> list[str]:
    receipt = injection.receipt
    if (receipt.mode, receipt.attempt, receipt.host) != (injection.kind, injection.round, injection.host):
        return [f"the receipt is of something else: {receipt}"]
    if receipt.witness == "injector":
        return [] if receipt.landed else ["the injector did not see it land"]
    if MODES[injection.kind].live == MODES["hang"].live:
        return []  # it lives, and says nothing: the verdict is the witness
    exits = [e.fields for e in events if e.name == "worker_exited" and e.round == injection.round]
    ends = [fields for fields in exits if fields["rank"] == injection.rank]
    # A failed save is an exception on all ranks: another's may end first, and the agent then stops the victim.
    everybodys = MODES[injection.kind].live == STORAGE
    seen = [fields for fields in ends if not fields["by_agent"] or (everybodys and fields["error"] is not None)]
    return [] if seen else ["no agent saw the victim end"]


def _verdict(injection: Injection, events: list[Event]) -> list[str]:
    live = MODES[injection.kind].live
    verdicts = [e.fields for e in events if e.name == "verdict" and e.round == injection.round]
    if len(verdicts) != 1 or live is None:
        return [f"{len(verdicts)} verdicts"]
    told = verdicts[0]
    complaints = []
    right = (live, ALSO_RIGHT.get(injection.kind, live))
    if not any(answer.agrees(told["kind"], told["cause"]) for answer in right):
        complaints.append(f"the verdict is {told['kind']} ({told['cause']}): {told['reason']}")
    named = [(item["name"], item["provenance"]) for item in told["hosts"]]
    wanted = [] if live.provenance is None else [(injection.host, live.provenance.value)]
    if named != wanted:
        complaints.append(f"the verdict names {named} instead of {wanted}")
    direct = [item["name"] for item in told["suspects"] if item["weight"] >= 1.0]
    if any(name != injection.host for name in direct):
        complaints.append(f"the verdict suspects {direct}")
    return complaints


def _recovery(injection: Injection, events: list[Event]) -> list[str]:
    if not any(e.name == "round_committed" and e.round == injection.round + 1 for e in events):
        return ["no new round was opened"]
    saved = [e for e in events if e.name == "checkpoint_saved" and e.round > injection.round]
    return [] if any(e.fields["step"] > injection.step for e in saved) else ["no later step was committed"]


def _membership(injections: Sequence[Injection], rosters: dict[int, list[str]]) -> list[str]:
    """Who lost a slot, and who took it: nobody but the victims, and a host that was not there before."""
    complaints = []
    victims = {injection.round: injection for injection in injections}
    seen: set[str] = set()
    for number, after in pairwise(sorted(rosters)):
        old, new = rosters[number], rosters[after]
        seen |= set(old)
        injection = victims.get(number)
        out = [injection.host] if injection is not None and retires(injection.kind) else []
        changed = [(before, now) for before, now in zip(old, new, strict=False) if before != now]
        if len(old) != len(new) or [before for before, _ in changed] != out or any(now in seen for _, now in changed):
            complaints.append(f"after {injection} the roster went from {old} to {new}")
    return complaints
