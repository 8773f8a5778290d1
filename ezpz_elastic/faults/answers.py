"""What has to be said of a fault, as the design page's table gives it."""

from __future__ import annotations

import msgspec

from ezpz_elastic.decide.verdict import Cause, Provenance, VerdictKind

__all__ = [
    "EXITED",
    "LOST",
    "NOTHING",
    "RAISED",
    "SCRAPED",
    "SILENT",
    "STANDS",
    "STORAGE",
    "WALLTIME",
    "Answer",
    "blind",
    "known",
    "retryable",
]


class Answer(msgspec.Struct, frozen=True):
    """What has to be said of a fault.

    Args:
        kind: the verdict's kind; ``None``: no attempt ends of it, so there is no verdict.
        causes: the causes that are right; empty: any is.
        provenance: how the victim's host is named; ``None``: no host may be named.
        retires: whether the victim's host leaves the job the first time already, a spare being there.
        stops: whether the job ends of it.
    """

    kind: VerdictKind | None
    causes: tuple[Cause, ...] = ()
    provenance: Provenance | None = None
    retires: bool = False
    stops: bool = False

    def agrees(self, kind: str, cause: str) -> bool:
        """Whether a verdict's two words are the right ones."""
        return self.kind is not None and kind == self.kind.value and (not self.causes or cause in self.causes)


def known(cause: Cause, provenance: Provenance, *, retires: bool = True) -> Answer:
    """A host is named."""
    return Answer(VerdictKind.BAD_NODE_KNOWN, (cause,), provenance, retires)


def blind(*causes: Cause) -> Answer:
    """Nothing says which host."""
    return Answer(VerdictKind.BAD_NODE_BLIND, causes)


def retryable(*causes: Cause) -> Answer:
    """No host is to blame."""
    return Answer(VerdictKind.RETRYABLE_UNATTRIBUTED, causes)


WALLTIME = Answer(VerdictKind.WALLTIME, stops=True)
RAISED = Answer(VerdictKind.USER_ERROR, (Cause.USER_EXCEPTION,))
EXITED = retryable(Cause.WORKER_EXIT)
STORAGE = retryable(Cause.STORAGE)
SILENT = blind(Cause.HANG)
STANDS = known(Cause.HANG, Provenance.INFERRED, retires=False)
LOST = known(Cause.HOST_LOST, Provenance.LOST)
NOTHING = Answer(None)
SCRAPED = known(Cause.HOST_LOST, Provenance.SCRAPED)
