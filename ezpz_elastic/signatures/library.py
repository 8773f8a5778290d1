"""All signatures, checked and compiled: every pattern, every example, every counterexample."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import resources
from pathlib import Path

import msgspec

from ezpz_elastic.decide.verdict import VerdictKind
from ezpz_elastic.signatures.schema import ContextEntry, Entry, SignatureError, expand, read_file
from ezpz_elastic.signatures.trigger import PatternError, check_bounded, trigger

__all__ = ["ContextRule", "Library", "Signature", "load_library"]

_KINDS = frozenset(kind.value for kind in VerdictKind)
_CONTEXT_BONUS = 10


class Signature(msgspec.Struct, frozen=True):
    """One entry, ready to use.

    Args:
        id: ``emitter.id``.
        emitter: which program prints it.
        entry: the entry as its file spells it.
        regex: the compiled pattern, to be searched in a line without escapes.
        trigger: what the scanner looks for in raw bytes.
        file: where it stands.
    """

    id: str
    emitter: str
    entry: Entry
    regex: re.Pattern[str]
    trigger: str
    file: Path

    @property
    def priority(self) -> int:
        """Of several signatures matching one line the highest counts."""
        return self.entry.priority + (_CONTEXT_BONUS if self.entry.context else 0)


class ContextRule(msgspec.Struct, frozen=True):
    """A kind of stack frame, ready to use."""

    id: str
    regex: re.Pattern[str]
    entry: ContextEntry


class Library(msgspec.Struct, frozen=True):
    """Everything loaded, in file order.

    Args:
        signatures: all signatures.
        contexts: all kinds of frames, by id.
        about: emitter -> one line on what it is.
    """

    signatures: tuple[Signature, ...]
    contexts: dict[str, ContextRule]
    about: dict[str, str]

    def emitters(self) -> set[str]:
        """Names of all emitters that have signatures."""
        return {signature.emitter for signature in self.signatures}


def load_library(extra: Path | str | None = None) -> Library:
    """The package's own signatures and the user's.

    Args:
        extra: a directory of further TOML files; ``EZPZ_SIGNATURES`` where it is ``None``. An entry there replaces
            the package's entry of the same full id.

    Raises:
        SignatureError: a file is unreadable or an entry is wrong; names file, entry and reason.
    """
    chosen = extra if extra is not None else os.environ.get("EZPZ_SIGNATURES") or None
    if chosen is None:
        return _builtin()
    directory = Path(chosen)
    if not directory.is_dir():
        raise SignatureError(directory, "", "is no directory of signature files")
    return _load([*_own_files(), *sorted(directory.glob("*.toml"))])


@lru_cache(maxsize=1)
def _builtin() -> Library:
    return _load(_own_files())


def _own_files() -> list[Path]:
    with resources.as_file(resources.files("ezpz_elastic.signatures")) as root:
        return sorted(root.glob("*.toml"))


def _load(files: Iterable[Path]) -> Library:
    read = [(path, *read_file(path)) for path in files]
    contexts = {
        entry.id: ContextRule(entry.id, _compile(path, entry.id, entry.pattern), entry)
        for path, _, _, _, found in read
        for entry in found
    }
    signatures: dict[str, Signature] = {}
    about: dict[str, str] = {}
    for path, emitter, text, entries, _ in read:
        about[emitter] = text or about.get(emitter, "")
        seen: set[str] = set()
        for entry in entries:
            if entry.id in seen:
                raise SignatureError(path, entry.id, "the id is used twice")
            seen.add(entry.id)
            signature = _signature(path, emitter, entry, contexts)
            signatures[signature.id] = signature
    for signature in signatures.values():
        for wanted in signature.entry.inherit.ids if signature.entry.inherit else ():
            if wanted not in signatures:
                raise SignatureError(signature.file, signature.entry.id, f"inherits from unknown {wanted!r}")
    return Library(tuple(signatures.values()), contexts, about)


def _signature(path: Path, emitter: str, entry: Entry, contexts: dict[str, ContextRule]) -> Signature:
    regex = _compile(path, entry.id, entry.pattern)
    try:
        words = trigger(expand(entry.pattern))
    except PatternError as error:
        raise SignatureError(path, entry.id, f"pattern: {error}") from error
    for reason in _complaints(entry, regex, words, contexts):
        raise SignatureError(path, entry.id, reason)
    return Signature(f"{emitter}.{entry.id}", emitter, entry, regex, words, path)


def _complaints(entry: Entry, regex: re.Pattern[str], words: str, contexts: dict[str, ContextRule]) -> Iterator[str]:
    if regex.search(entry.example) is None:
        yield f"pattern does not match its own example {entry.example!r}"
    if re.search(words, entry.example) is None:
        yield f"the fixed words {words!r} are not in its own example"
    if entry.counterexample and regex.search(entry.counterexample) is not None:
        yield f"pattern matches its own counterexample {entry.counterexample!r}"
    if entry.kind and entry.kind not in _KINDS:
        yield f"kind {entry.kind!r} is none of {', '.join(sorted(_KINDS))}"
    if entry.context and entry.context not in contexts:
        yield f"context {entry.context!r} is none of {', '.join(sorted(contexts)) or '(none defined)'}"
    if not entry.source:
        yield "source is empty: say where this was learned"


def _compile(path: Path, name: str, pattern: str) -> re.Pattern[str]:
    expanded = expand(pattern)
    try:
        check_bounded(expanded)
        return re.compile(expanded)
    except (re.error, PatternError) as error:
        raise SignatureError(path, name, f"pattern: {error}") from error
