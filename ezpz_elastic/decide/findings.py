"""One shape for every kind of evidence, so that one set of rules reads a console log and a live job alike."""

from __future__ import annotations

from enum import Enum

import msgspec

from ezpz_elastic.decide.evidence import Certainty, Role
from ezpz_elastic.decide.verdict import Cause, EvidenceLine, Provenance

__all__ = ["TEXT_LIMIT", "Finding", "Witness", "evidence_line"]

TEXT_LIMIT = 500


class Witness(str, Enum):
    """Who tells a finding; says how much a host in it is worth."""

    LOG = "log"
    AGENT = "agent"  # the parent of the process, alive to tell
    STORE = "store"  # the lease
    PROBE = "probe"
    SCHEDULER = "scheduler"


class Finding(msgspec.Struct, frozen=True):
    """One statement about the failure.

    Args:
        cause, role, certainty: as in :class:`~ezpz_elastic.decide.evidence.LogMatch`, refined by the rules.
        text: the line or sentence.
        source: two findings are ordered by ``order`` only within one source (one log, one agent); hosts' clocks are
            never compared.
        order: position within the source.
        witness: who tells it.
        signature: the signature that matched, or the kind of evidence.
        host: the host it is about, as the allocation spells it; ``None`` if not told.
        provenance: how ``host`` was found.
        reporter: the host that said it, as the allocation spells it.
        peer: the accused, for accusations; as the allocation spells it.
        probe: what the accused's agent answered (see ``Accusation``).
        rank: the rank it is about.
        code: exit code, signal or errno.
        kind: a verdict kind the signature states outright.
        fingerprint: of an exception.
        step, last_step: the last step before it, and the last one its log shows at all.
        after: how many lines follow it in its log.
        file, line: where it stands.
        weight: how much of a witness against its host this is, as a suspect.
    """

    cause: Cause
    role: Role
    certainty: Certainty
    text: str
    source: str
    order: float
    witness: Witness = Witness.LOG
    signature: str = ""
    host: str | None = None
    provenance: Provenance | None = None
    reporter: str | None = None
    peer: str | None = None
    probe: bool | None = None
    rank: int | None = None
    code: int | None = None
    kind: str = ""
    fingerprint: str = ""
    step: int | None = None
    last_step: int | None = None
    after: int | None = None
    file: str = ""
    line: int = 0
    weight: float = 0.5

    @property
    def primary(self) -> bool:
        """Whether it can be the beginning of the story."""
        return self.role is Role.PRIMARY


def evidence_line(finding: Finding, why: str) -> EvidenceLine:
    """The finding as a person reads it in a verdict, with why it counted or did not."""
    return EvidenceLine(text=finding.text[:TEXT_LIMIT], file=finding.file, line=finding.line, why=why)
