"""Which of several findings the others follow from (rule 2: primary before cascade).

Within one source (a log, an agent) the earlier finding is the beginning, unless the later one is known to lie deeper:
survivors notice a dead host before its launcher reports it. Between sources there is no order, because no two hosts'
clocks are compared; there the deeper cause wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ezpz_elastic.decide.evidence import Certainty
from ezpz_elastic.decide.findings import Finding, Witness
from ezpz_elastic.decide.verdict import Cause, VerdictKind

__all__ = ["choose_root", "depth", "explains"]

_VAGUE = frozenset({Cause.NETWORK, Cause.HANG, Cause.WORKER_EXIT, Cause.UNKNOWN})
"""Causes that are symptoms as often as causes: any concrete one explains them, whichever was told first."""

_DEPTH = {
    Cause.HOST_LOST: 0,
    Cause.OOM_HOST: 2,
    Cause.STORAGE: 3,
    Cause.QUOTA: 3,
    Cause.SHM_FULL: 3,
    Cause.CHECKPOINT_CORRUPT: 3,
    Cause.WORKER_KILLED: 4,
    Cause.DEVICE_FAULT: 5,
    Cause.OOM_DEVICE: 5,
    Cause.LAUNCH_ERROR: 6,
    Cause.PORT_IN_USE: 6,
    Cause.USER_EXCEPTION: 6,
    Cause.HANG: 7,
    Cause.WORKER_EXIT: 8,
    Cause.NETWORK: 9,
    Cause.UNKNOWN: 10,
}


def depth(finding: Finding) -> int:
    """How deep a cause lies, where no order can be told; smaller is deeper."""
    if finding.cause is Cause.DEVICE_FAULT and finding.certainty is Certainty.CERTAIN:
        return 1
    if finding.kind == VerdictKind.INTERRUPTED.value:
        return 7
    return _DEPTH[finding.cause]


def explains(deep: Finding, other: Finding) -> bool:
    """Whether ``deep`` accounts for ``other`` although ``other`` was told first."""
    pair = {deep.cause, other.cause}
    if pair == {Cause.HOST_LOST, Cause.WORKER_EXIT} and Certainty.DOUBTFUL in {_doubt(deep), _doubt(other)}:
        return deep.cause is Cause.WORKER_EXIT
    if deep.cause not in _VAGUE and _is_vague(other):
        return True
    if deep.cause is Cause.NETWORK:  # an error that may be anything, and one that says what could not be reached
        passing = other.kind == VerdictKind.RETRYABLE_UNATTRIBUTED.value and other.certainty is Certainty.DOUBTFUL
        return other.cause is Cause.NETWORK and passing and not deep.kind
    if deep.cause is Cause.HOST_LOST and deep.code != 9:  # a launcher's or the store's own word on a host
        certain = deep.witness in {Witness.STORE, Witness.SCHEDULER}
        return other.cause is not Cause.HOST_LOST if certain else other.cause is Cause.WORKER_KILLED
    if deep.cause is Cause.DEVICE_FAULT and not deep.kind:
        return _device_explains(deep, other)
    return deep.cause is Cause.OOM_HOST and _was_killed(other) and _same_place(deep, other)


def choose_root(findings: Iterable[Finding]) -> Finding | None:
    """The finding that the others follow from.

    Args:
        findings: primaries (or, where there are none, the cascades worth something).

    Returns:
        the root, or ``None`` if there are no findings. Linear in the number of sources.
    """
    by_source: dict[str, dict[object, Finding]] = {}
    for finding in findings:
        classes = by_source.setdefault(finding.source, {})
        label = (finding.cause, finding.certainty, finding.kind, finding.host if len(classes) < 64 else None)
        kept = classes.get(label)
        if kept is None or finding.order < kept.order:
            classes[label] = finding
    heads = [_first(list(classes.values())) for classes in by_source.values()]
    if not heads:
        return None
    return min(heads, key=lambda head: (depth(head), head.order, head.rank if head.rank is not None else 1 << 30))


def _first(candidates: Sequence[Finding]) -> Finding:
    """The root within one source: the one that most others yield to; the earliest among equals."""
    ordered = sorted(candidates, key=lambda finding: finding.order)

    def beaten(finding: Finding, at: int) -> int:
        return sum(
            1
            for place, other in enumerate(ordered)
            if place != at and (explains(other, finding) or (place < at and not explains(finding, other)))
        )

    return min(enumerate(ordered), key=lambda pair: (beaten(pair[1], pair[0]), pair[0]))[1]


def _is_vague(finding: Finding) -> bool:
    return finding.cause in _VAGUE and not finding.kind


def _doubt(finding: Finding) -> Certainty | None:
    return finding.certainty if finding.cause is Cause.HOST_LOST else None


def _was_killed(finding: Finding) -> bool:
    """Killed by signal 9, whoever says so; a lost lease is no such thing."""
    told = finding.cause is Cause.HOST_LOST and finding.code == 9
    return told or finding.cause is Cause.WORKER_KILLED


def _same_place(one: Finding, other: Finding) -> bool:
    return one.host is None or other.host is None or one.host == other.host


def _device_explains(deep: Finding, other: Finding) -> bool:
    """A broken device explains what any program says of its devices and a death.

    A doubtful word on a device explains, at its own place, only what says even less: an error without a cause, and,
    where the word is the kernel's, what a rank says of the device.
    """
    if deep.certainty is Certainty.CERTAIN:
        return _is_device_symptom(other) or other.cause is Cause.WORKER_KILLED
    if not _is_device_symptom(other) or not _same_place(deep, other):
        return False
    if other.cause is Cause.DEVICE_FAULT:
        return bool(other.kind)
    return other.cause is Cause.USER_EXCEPTION and deep.signature.startswith("kernel.")


def _is_device_symptom(finding: Finding) -> bool:
    if finding.cause is Cause.USER_EXCEPTION:
        text = finding.text.lower()
        return any(word in text for word in ("cuda", "nccl", "cublas", "cudnn", "hip ", "xpu", "level_zero", "gpu"))
    return finding.cause in {Cause.DEVICE_FAULT, Cause.OOM_DEVICE}
