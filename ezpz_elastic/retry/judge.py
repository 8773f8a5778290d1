"""An attempt's end -> the decision. The same classifier and the same policy as the agents'; only the edge is ours."""

from __future__ import annotations

import logging

import msgspec

from ezpz_elastic.attempt import classify_log
from ezpz_elastic.decide.classify import Context, classify
from ezpz_elastic.decide.evidence import AgentSignalled
from ezpz_elastic.decide.history import load_history
from ezpz_elastic.decide.policy import decide
from ezpz_elastic.decide.situation import Limits, Situation
from ezpz_elastic.decide.verdict import Verdict
from ezpz_elastic.errors import UsageError
from ezpz_elastic.observe.text import readable
from ezpz_elastic.retry.pool import Pool
from ezpz_elastic.retry.stream import AttemptLog
from ezpz_elastic.retry.supervise import Ended
from rendezvous.records import Decision

__all__ = ["Facts", "Judge"]

logger = logging.getLogger(__name__)


class Facts(msgspec.Struct, frozen=True):
    """What is known of an attempt beside its log.

    Args:
        number: of the attempt, from 1.
        ended: how it ended.
        pool: who held the slots and who stood by.
        elapsed: seconds since the first attempt began.
        remaining: seconds left in the allocation; ``None`` if nobody can tell.
        durable_step: the newest step known to be on storage; ``None`` if none is.
    """

    number: int
    ended: Ended
    pool: Pool
    elapsed: float
    remaining: float | None
    durable_step: int | None


class Judge:
    """Keeps the policy's memory from one attempt to the next.

    Args:
        limits: how far the policy may go.
        machine: whose log lines and host names to expect.
        ranks_per_host: ranks on each host, block by block; ``None`` if nobody told.
        tells_steps: whether two attempts that show no step mean that training never began.
        host: the host we run on.
    """

    def __init__(self, limits: Limits, machine: str, ranks_per_host: int | None, tells_steps: bool, host: str) -> None:
        self._limits, self._machine, self._ranks_per_host = limits, machine, ranks_per_host
        self._tells_steps, self._host = tells_steps, host
        self._ledger = msgspec.Raw(b"null")

    def decide(self, facts: Facts, log: AttemptLog) -> Decision:
        """Classify an attempt and say what is done about it.

        Args:
            facts: what is known beside the log.
            log: what the attempt printed; if it cannot be read, the exit code alone is judged.
        """
        verdict = self._verdict(facts, log)
        history, note = load_history(self._ledger, facts.number)
        if note:
            verdict = msgspec.structs.replace(verdict, note="; ".join(filter(None, (verdict.note, note))))
        code = facts.ended.exit_code if facts.ended.signalled is None else 128 + facts.ended.signalled
        situation = Situation(
            round=facts.number,
            hosts=facts.pool.active,
            spares=facts.pool.spares,
            min_hosts=len(facts.pool.active),
            max_hosts=len(facts.pool.active),
            elapsed=facts.elapsed,
            step=verdict.step,
            durable_step=facts.durable_step,
            exit_code=128 - code if code < 0 else code,
            tells_steps=self._tells_steps,
        )
        decision = decide(verdict, history, situation, self._limits)
        self._ledger = decision.ledger
        return decision

    def _verdict(self, facts: Facts, log: AttemptLog) -> Verdict:
        signalled, hosts = facts.ended.signalled, facts.pool.active
        if signalled is not None:
            # Whatever the log says after that is our own doing.
            evidence = AgentSignalled(self._host, signalled)
            return classify((evidence,), Context(hosts=hosts, remaining=facts.remaining))
        try:
            with log.readable() as path:
                return classify_log(
                    path,
                    exit_code=facts.ended.exit_code,
                    machine=self._machine,
                    remaining=facts.remaining,
                    hosts=hosts,
                    ranks_per_host=self._ranks_per_host,
                )
        except (UsageError, OSError) as error:
            note = f"the attempt's log cannot be read, and its exit code alone was judged: {readable(error)}"
            logger.warning("%s", note)
            context = Context(hosts=hosts, exit_code=facts.ended.exit_code, remaining=facts.remaining)
            return msgspec.structs.replace(classify((), context), note=note)
