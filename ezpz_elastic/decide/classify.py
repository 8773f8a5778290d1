"""evidence -> Verdict: what happened, and what can honestly be said about hosts. Pure; the rules are in decisions.md.

The same rules read a console log after the fact and the reports of living agents. A verdict carries the lines that
made it and the ones it set aside, each with why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ezpz_elastic.decide.context import Context
from ezpz_elastic.decide.evidence import Evidence, Role
from ezpz_elastic.decide.exits import survived, went_on
from ezpz_elastic.decide.findings import Finding, Witness, evidence_line
from ezpz_elastic.decide.gather import Gathered, gather
from ezpz_elastic.decide.naming import name_hosts
from ezpz_elastic.decide.outcome import Outcome, from_exit_code, from_scheduler, is_walltime_kill
from ezpz_elastic.decide.root import choose_root
from ezpz_elastic.decide.verdict import Cause, Verdict, VerdictKind

__all__ = ["Context", "classify"]

_AGENT_SIGNALLED = frozenset({"torch.elastic-signalled", "torch.elastic-signal-exception"})
_SILENCE = 124
"""Exit code of a job that was killed because it had gone on for a while and then said nothing any more."""
_EVIDENCE_LIMIT = 20
_SET_ASIDE_LIMIT = 40
_LONG_AFTER_STEPS = 10
_TRANSIENT_STEPS = 50
"""More steps than any buffer holds: what was lost before them had come back."""


def classify(evidence: Sequence[Evidence], context: Context = Context()) -> Verdict:  # noqa: B008 (frozen)
    """Say what happened.

    Args:
        evidence: what was seen, each source's items in the order that source told them.
        context: hosts, ranks, exit code, deadline; see :class:`~ezpz_elastic.decide.context.Context`.

    Returns:
        the verdict. Never raises on any evidence; never reads a clock, a file or an environment.
    """
    case = gather(evidence, context)
    exit_code = _effective_exit(case, context)
    stop = from_scheduler(case, exit_code, context)
    if stop is not None:
        return _settled(stop, case, context)
    primaries, outlived = _split_survived(case, exit_code, context)
    root = choose_root(primaries)
    if root is None and exit_code not in {0, _SILENCE, 130, -2} and not is_walltime_kill(case, exit_code):
        root, outlived = choose_root(outlived), []
    if root is None and exit_code == _SILENCE:
        root = choose_root(_waits_for_storage(case))
    if root is None and exit_code not in {0, _SILENCE, 130, -2}:
        root = _weak_root(case, exit_code)
    if root is None:
        return _settled(from_exit_code(case, exit_code, context), case, context)
    gone = {id(item) for item in outlived if item is not root}
    told = [item for item in case.findings if id(item) not in gone]
    return _verdict(root, told, case, context)


def _effective_exit(case: Gathered, context: Context) -> int | None:
    """The attempt's exit code; a launcher's inner code where the outer one claims success or says nothing (rule 6)."""
    code = context.exit_code
    if code in {1, None}:  # torchrun's agent turns a signal it received into exit code 1
        told = [item.code for item in case.findings if item.signature in _AGENT_SIGNALLED]
        code = {15: 143, 2: 130}.get(told[0] or 0, code) if told else code
    if code not in {0, None}:
        return code
    inner = [item.code for item in case.findings if item.signature == "launcher.inner-exit"]
    return inner[-1] if inner and inner[-1] is not None else code


def _split_survived(case: Gathered, exit_code: int | None, context: Context) -> tuple[list[Finding], list[Finding]]:
    """Primaries, apart from those that training outlived: an error that steps follow was handled."""
    primaries = [item for item in case.findings if item.primary]
    handled = survived(case.findings, live=context.live)
    if exit_code == 0:  # the job ended well, long after: nothing before it was the end of anything
        handled |= {id(item) for item in primaries if went_on(item, _LONG_AFTER_STEPS)}
        done = {item.source: item.order for item in case.findings if item.signature == "launcher.trainer-done"}
        handled |= {id(item) for item in primaries if item.order < done.get(item.source, item.order)}
    transient = {id(item) for item in primaries if went_on(item, _TRANSIENT_STEPS)}
    later = any(id(item) not in handled | transient for item in primaries)
    if later or exit_code == _SILENCE:  # something later is left to explain the end, or it ended of nothing said
        handled |= transient
    return (
        [item for item in primaries if id(item) not in handled],
        [item for item in primaries if id(item) in handled],
    )


def _weak_root(case: Gathered, exit_code: int | None) -> Finding | None:
    """Where nothing primary was said: the cascade lines, as far as they say anything at all."""
    waits = {id(item) for item in _waits_for_storage(case)}
    cascades = [
        item
        for item in case.findings
        if item.role is Role.CASCADE
        and not went_on(item, _LONG_AFTER_STEPS)
        and (item.cause is not Cause.STORAGE or id(item) in waits)
    ]
    killed = [item for item in cascades if item.cause is Cause.WORKER_KILLED]
    broken = [item for item in cascades if item.cause not in {Cause.UNKNOWN, Cause.WORKER_EXIT, Cause.WORKER_KILLED}]
    if broken:
        return choose_root(broken)
    if is_walltime_kill(case, exit_code):
        return None
    exits = [item for item in case.findings if not item.primary and item.cause is Cause.WORKER_EXIT]
    return choose_root(killed or exits)


def _waits_for_storage(case: Gathered) -> list[Finding]:
    """Lines of mounts that wait for their server, where the log does not end that wait."""
    back = {item.source: item.order for item in case.findings if item.signature == "storage.back"}
    return [
        item
        for item in case.findings
        if item.role is Role.CASCADE
        and item.cause is Cause.STORAGE
        and back.get(item.source, item.order) <= item.order
        and not went_on(item, _LONG_AFTER_STEPS)
    ]


def _verdict(root: Finding, told: Sequence[Finding], case: Gathered, context: Context) -> Verdict:
    naming = name_hosts(root, told, case.table)
    names = ", ".join(host.name for host in naming.hosts)
    about = f" ({names})" if names else ""
    because = f"; {naming.why}" if naming.why else ""
    return _finish(
        Verdict(
            kind=naming.kind,
            cause=naming.cause,
            reason=f"{naming.cause.value}{about}: {root.text[:200]}{because}",
            hosts=naming.hosts,
            suspects=naming.suspects,
            evidence=tuple(evidence_line(item, _role_in(item, root)) for item in naming.support[:_EVIDENCE_LIMIT]),
            fingerprint=root.fingerprint if naming.kind is VerdictKind.USER_ERROR else "",
            certain=naming.certain,
        ),
        case,
        context,
        counted=naming.support,
        root=root,
    )


def _settled(outcome: Outcome, case: Gathered, context: Context) -> Verdict:
    return _finish(
        Verdict(
            kind=outcome.kind,
            cause=outcome.cause,
            reason=outcome.reason,
            evidence=outcome.evidence[:_EVIDENCE_LIMIT],
            certain=outcome.certain,
            stale=outcome.stale,
        ),
        case,
        context,
        counted=outcome.counted,
        root=None,
    )


def _finish(
    verdict: Verdict, case: Gathered, context: Context, *, counted: Iterable[Finding], root: Finding | None
) -> Verdict:
    """Add what is the same for every verdict: what was set aside and why, the last step, notes."""
    used = {id(item) for item in counted}
    handled = survived(case.findings, live=context.live)
    aside = [*case.dropped]
    for item in case.findings:
        if id(item) not in used and len(aside) < _SET_ASIDE_LIMIT:
            why = "the program went on after it" if id(item) in handled else ""
            aside.append(evidence_line(item, why or _why_aside(item, root, verdict)))
    steps = [item.step for item in case.exits if item.step is not None]
    if context.last_step is not None:
        steps.append(context.last_step)
    return msgspec.structs.replace(
        verdict,
        set_aside=tuple(aside[:_SET_ASIDE_LIMIT]),
        step=max(steps, default=None),
        note=context.machine_note,
    )


def _role_in(item: Finding, root: Finding) -> str:
    if item is root:
        return "the beginning: nothing else explains it" if item.primary else "all that was said"
    return "says the same" if item.cause is root.cause else "supports it"


def _why_aside(item: Finding, root: Finding | None, verdict: Verdict) -> str:
    if item.role is Role.CASCADE:
        return "teardown or a peer's complaint: it follows something else"
    if item.role is Role.BANNER:
        return "a summary of what was said before"
    if root is None:
        return f"{verdict.kind.value} settles it"
    if root.witness is Witness.STORE:
        return "follows from the lost host"
    return f"explained by {root.cause.value}: {root.text[:80]}"
