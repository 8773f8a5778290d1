"""Workers that end well while others still run: the others' broken connections and waits follow from it.

A rank whose data ran out first, or that leaves by ``os._exit(0)``, looks to its peers like a host that has gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ezpz_elastic.decide.evidence import WorkerExit
from ezpz_elastic.decide.verdict import Cause, Verdict, VerdictKind

__all__ = ["explained_by_early_ends"]

_SYMPTOMS = frozenset({Cause.NETWORK, Cause.HANG})
_FEW = 4


def explained_by_early_ends(verdict: Verdict, exits: Sequence[WorkerExit], done: Mapping[str, int | None]) -> Verdict:
    """The verdict, unless workers that had ended with exit code 0 explain what it goes by.

    Args:
        verdict: on a round that did not succeed.
        exits: the workers' ends that were reported, those with exit code 0 among them.
        done: hosts all of whose workers ended with exit code 0, and the last step of these.
    """
    early = {item.host: item for item in exits if item.exit_code == 0}
    blamed = {host.name for host in verdict.hosts}
    innocent = verdict.kind is VerdictKind.BAD_NODE_BLIND or (blamed and blamed <= early.keys() | done.keys())
    if verdict.cause not in _SYMPTOMS or not innocent or not (early or done):
        return verdict
    told = [f"rank {item.rank} on {item.host}{_after(item.step)}" for item in early.values()]
    told += [f"the workers on {host}{_after(step)}" for host, step in done.items()]
    who = ", ".join(told[:_FEW]) + (" and others" if len(told) > _FEW else "")
    reason = f"worker_exit: {who} ended with exit code 0 while others still ran, whose connections that broke"
    if verdict.cause is Cause.HANG:
        reason = f"worker_exit: {who} ended with exit code 0 while others still ran, which now wait for it"
    return msgspec.structs.replace(
        verdict,
        kind=VerdictKind.RETRYABLE_UNATTRIBUTED,
        cause=Cause.WORKER_EXIT,
        reason=reason,
        hosts=(),
        suspects=(),
    )


def _after(step: int | None) -> str:
    return f" (after step {step})" if step is not None else ""
