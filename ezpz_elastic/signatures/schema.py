"""What an entry of a signature file may say, and the errors that tell which entry of which file says it wrongly."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from ezpz_elastic.decide.evidence import Certainty, Role
from ezpz_elastic.decide.verdict import Cause, Provenance
from ezpz_elastic.errors import UsageError

tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

__all__ = ["PLACEHOLDERS", "ContextEntry", "Entry", "Inherit", "SignatureError", "expand", "read_file"]

PLACEHOLDERS = {
    "{host}": r"(?<![A-Za-z0-9_.\-])(?P<host>[A-Za-z0-9](?:[\w.\-]{0,200}\w)?)",
    "{hosts}": r"(?<![A-Za-z0-9_.\-])(?P<host>[A-Za-z0-9][\w.\-\[\],]{0,400}[\w\]])",
    "{nodes}": r"(?P<host>'[^'\n]{1,200}'(?:, {0,4}'[^\n]{1,300}')?)",
    "{reporter}": r"(?<![A-Za-z0-9_.\-])(?P<reporter>[A-Za-z0-9](?:[\w.\-]{0,200}\w)?)",
    "{peer}": r"\[?(?P<peer>[A-Za-z0-9](?:[\w.\-]{0,200}\w)?|[0-9a-fA-F:]{2,45})\]?",
    "{rank}": r"(?P<rank>\d{1,7})",
    "{task}": r"(?P<task>\d{1,7})",
    "{code}": r"(?P<code>-?\d{1,5})",
    "{slurm}": r"(?:(?:srun|slurmstepd|slurmctld|slurmd|salloc|sbatch)(?:-\S{1,40})?: {1,4})?(?:error: |fatal: )?",
    "{end}": r"(?!\d)(?![ \t]{1,4}(?!and dumped core|\((?:SIGKILL|[Kk]illed|core dumped)\))"
    r"[a-z(=>\-\u2013\u2014\u2192])",
    "{path}": r"(?P<path>/[^\s'\"]{1,400})",
}
"""What a pattern may write instead of a capture group, so that every emitter spells hosts and ranks alike."""

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class SignatureError(UsageError):
    """A signature file that cannot be used: names the file, the entry and the reason."""

    def __init__(self, file: Path, entry: str, reason: str) -> None:
        where = f"{file}, signature {entry!r}" if entry else str(file)
        super().__init__(f"{where}: {reason}", hint="docs/signatures.md shows what an entry looks like")


class Inherit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take host and rank from the nearest earlier match of other signatures, where the line itself names none.

    Args:
        ids: full ids (``emitter.id``) of signatures to take them from.
        within: how many lines before at most.
    """

    ids: tuple[str, ...]
    within: int = 8


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One signature as its file spells it.

    Args:
        id: unique within the file, lower case with dashes.
        pattern: a Python regular expression, with ``{host}`` and the like for what is captured.
        why: one line: what the text means and why.
        source: where that was learned (a URL, or ``seed`` for the incident reports this project began with).
        example: a line that matches.
        counterexample: a line that looks alike and must not match.
        cause, role, certainty: see :class:`~ezpz_elastic.decide.evidence.LogMatch`.
        kind: a verdict kind that the line states outright.
        priority: of several signatures that match one line the highest counts; entries with a context get 10 more.
        context: id of a context: counts only with such a frame before it, of the same rank.
        within: how many lines before at most that frame may stand.
        inherit: where to take host and rank from, if the line names none.
        requires_inherited: counts only if there is such an earlier match.
        code: the code the line stands for, where its text spells it in words (``Killed`` is 9).
        anchored: whether the text must begin the line, after timestamps and rank or host labels: what a launcher
            says itself, as against a log that mentions it. A file may say so for all its entries.
        provenance: how a host in the line is told to have been found: ``scraped`` (the line names it), or ``lost``
            where the scheduler or a lease says that it is gone.
        heading: whether a line that names no host may stand under a heading that does: a list of one node's
            properties, a host's own messages below its name.
    """

    id: str
    pattern: str
    why: str
    source: str
    example: str
    counterexample: str = ""
    cause: Cause = Cause.UNKNOWN
    role: Role = Role.PRIMARY
    certainty: Certainty = Certainty.LIKELY
    kind: str = ""
    priority: int = 0
    context: str = ""
    within: int = 200
    inherit: Inherit | None = None
    requires_inherited: bool = False
    code: int | None = None
    anchored: bool = False
    provenance: Provenance = Provenance.SCRAPED
    heading: bool = False


class ContextEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of stack frame: ``pattern`` is searched in frame lines and in the matched line itself."""

    id: str
    pattern: str
    why: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    emitter: str
    about: str = ""
    anchored: bool = False
    signature: tuple[Entry, ...] = ()
    context: tuple[ContextEntry, ...] = ()


def read_file(path: Path) -> tuple[str, str, tuple[Entry, ...], tuple[ContextEntry, ...]]:
    """Read one signature file.

    Args:
        path: a TOML file.

    Returns:
        emitter, what it is, its entries and its contexts.

    Raises:
        SignatureError: the file cannot be read, is no TOML, or an entry breaks the schema.
    """
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SignatureError(path, "", f"cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SignatureError(path, "", f"is no valid TOML: {error}") from error
    for number, entry in enumerate(raw.get("signature", ()) if isinstance(raw.get("signature"), list) else (), 1):
        name = str(entry.get("id", f"number {number}")) if isinstance(entry, dict) else f"number {number}"
        try:
            msgspec.convert(entry, Entry)
        except msgspec.ValidationError as error:
            raise SignatureError(path, name, str(error)) from error
        if not _ID.fullmatch(name):
            raise SignatureError(path, name, "an id is lower-case words joined by dashes")
    try:
        file = msgspec.convert(raw, _File)
    except msgspec.ValidationError as error:
        raise SignatureError(path, "", str(error)) from error
    entries = file.signature
    if file.anchored:
        entries = tuple(msgspec.structs.replace(entry, anchored=True) for entry in entries)
    return file.emitter, file.about, entries, file.context


def expand(pattern: str) -> str:
    """The pattern with its placeholders written out."""
    for short, group in PLACEHOLDERS.items():
        pattern = pattern.replace(short, group)
    return pattern
