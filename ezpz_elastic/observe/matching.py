"""A line that was hit -> a LogMatch: which signature it is, in which context, about which rank and host."""

from __future__ import annotations

import re
from collections import Counter, deque

import msgspec

from ezpz_elastic.decide.evidence import LogMatch
from ezpz_elastic.observe.headings import heading, list_head
from ezpz_elastic.observe.quoting import is_quotation, is_story
from ezpz_elastic.observe.scanner import FRAME, HitLine
from ezpz_elastic.observe.text import Prefix, clock, expand_hosts, is_relay, parse_prefix, readable
from ezpz_elastic.signatures import Library, Signature

__all__ = ["Matcher"]

_KEPT_FIRST = 1500
_KEPT_LAST = 500
"""How many matches of one signature are kept, from the beginning and from the end of a log."""
_TEXT_LIMIT = 500
_PROPERTY = re.compile(r"[ \t]{2,16}[A-Za-z][\w.]{0,40} ?= ")
_FRAME_LINE = re.compile(r'File "([^"\n]{1,400})", line (\d{1,8})(?:, in (\S{1,120}))?')
_PROGRESS_BAR = re.compile(r"[^\n]{0,300}?\d/\d{1,12} \[[^\]\n]{0,80}(?:it/s|s/it)[^\]\n]{0,200}\] ?")
_EXCEPTION = "python.exception"
_SOME_EXCEPTION = re.compile(
    r"(?:(?:[A-Za-z_]\w{0,60}\.){1,8}[A-Z]\w{0,80}|[A-Z][a-z]\w{0,60}[A-Z]\w{0,60})(?:\(\w{1,80}\))?(?::[ \n]|:?$)"
)
"""What only stands at the end of a traceback: a class with its module, or two capitalised words in one."""
_LIBRARY_FRAME = re.compile(r"site-packages|dist-packages|/lib(?:64)?/python\d|^<")


class Matcher:
    """Keeps what must be remembered from line to line: frames, and matches that later ones inherit from.

    Args:
        library: the signatures.
        file: path of the log, as it is to be told.
        rank, host: who writes this log, where the observer knows (a worker's own log).
    """

    def __init__(self, library: Library, file: str = "", rank: int | None = None, host: str | None = None) -> None:
        self._library = library
        self._file = readable(file)
        self._rank = rank
        self._host = host
        self._seen: Counter[int] = Counter()
        self._kept: Counter[str] = Counter()
        self._late: dict[str, deque[LogMatch]] = {}
        self._frames: dict[int | None, dict[str, int]] = {}
        self._end: HitLine | None = None
        self._own_frame: dict[int | None, tuple[int, str]] = {}
        self._latest: dict[str, LogMatch] = {}
        self.ignored: set[int] = set()
        self.matches: list[LogMatch] = []

    def take_all(self) -> list[LogMatch]:
        """All matches that are kept, in file order; they are given away."""
        self._take_end()
        late = [match for kept in self._late.values() for match in kept]
        taken = sorted([*self.matches, *late], key=lambda match: match.line) if late else self.matches
        self.matches, self._late = [], {}
        return taken

    def take(self, line: HitLine) -> None:
        """Read one line that was hit; what it amounts to is kept until ``take_all``."""
        prefix = parse_prefix(line.text)
        if self._end is not None and self._end.number < line.number:
            self._take_end()
        if FRAME in line.ids and (found := _FRAME_LINE.search(line.text)):
            self._count(FRAME)
            self._remember_frame(found, line, prefix)
            self._end = _traceback_end(line, prefix)
            return
        best: tuple[int, Signature, re.Match[str]] | None = None
        for index in line.ids:
            if index == FRAME:
                continue
            signature = self._library.signatures[index]
            if best is not None and best[0] >= signature.priority:
                continue
            match = _find(signature, line.text, prefix)
            if match is not None and self._in_place(signature, line, prefix):
                best = (signature.priority, signature, match)
        for index in line.ids:
            self._count(index)
        if best is not None:
            self._add(best[1], best[2].groupdict(), line, prefix)
            if self._end is not None and self._end.number == line.number:
                self._end = None

    def _take_end(self) -> None:
        """A traceback ended with a name that no signature knows: an exception all the same."""
        line, self._end = self._end, None
        known = next((item for item in self._library.signatures if item.id == _EXCEPTION), None)
        if line is not None and known is not None:
            self._add(known, {}, line, parse_prefix(line.text))

    def look_again(self) -> None:
        """A new stretch of the log begins: what was too frequent in the last one is looked at again."""
        self.ignored.clear()
        self._seen.clear()

    def _count(self, index: int) -> None:
        self._seen[index] += 1
        if self._seen[index] >= _KEPT_FIRST:
            self.ignored.add(index + 1)

    def _remember_frame(self, found: re.Match[str], line: HitLine, prefix: Prefix) -> None:
        kept = self._frames.setdefault(prefix.rank, {})
        for context in self._library.contexts.values():
            if context.regex.search(line.text):
                kept[context.id] = line.number
        if not _LIBRARY_FRAME.search(found.group(1)):
            name = f"{found.group(1).rpartition('/')[2]}:{found.group(3) or ''}"
            self._own_frame[prefix.rank] = (line.number, name)

    def _in_place(self, signature: Signature, line: HitLine, prefix: Prefix) -> bool:
        """Whether what must stand before the line does: a frame, another signature's line."""
        inherit = signature.entry.inherit
        if inherit is not None and signature.entry.requires_inherited:
            earlier = [self._latest[identifier] for identifier in inherit.ids if identifier in self._latest]
            return any(line.number - found.line <= inherit.within for found in earlier)
        return self._in_context(signature, line, prefix)

    def _in_context(self, signature: Signature, line: HitLine, prefix: Prefix) -> bool:
        wanted = signature.entry.context
        if not wanted:
            return True
        if self._library.contexts[wanted].regex.search(line.text):
            return True
        near: dict[str, int] = {}
        ranks = (prefix.rank,) if prefix.rank is not None else tuple(self._frames)
        for rank in ranks:
            for context, number in self._frames.get(rank, {}).items():
                near[context] = max(number, near.get(context, 0))
        at = near.get(wanted, 0)
        return at > 0 and line.number - at <= signature.entry.within and at == max(near.values())

    def _add(self, signature: Signature, groups: dict[str, str | None], line: HitLine, prefix: Prefix) -> None:
        entry = signature.entry
        rank = _number(groups.get("rank"))
        spelled = groups.get("host")
        hosts: list[str] = expand_hosts(spelled) if spelled else []
        frame = self._own_frame.get(prefix.rank, (0, ""))
        base = LogMatch(
            signature=signature.id,
            emitter=signature.emitter,
            cause=entry.cause,
            role=entry.role,
            certainty=entry.certainty,
            text=line.text[:_TEXT_LIMIT],
            file=self._file,
            line=line.number,
            time=clock(line.text),
            rank=rank if rank is not None else (prefix.rank if prefix.rank is not None else self._rank),
            peer=groups.get("peer"),
            code=_number(groups.get("code")) if groups.get("code") else entry.code,
            path=groups.get("path"),
            kind=entry.kind,
            reporter=groups.get("reporter") or prefix.reporter or self._host,
            step=line.step,
            task=_number(groups.get("task")) if groups.get("task") else prefix.task,
            tasks=groups.get("tasks") or "",
            frame=frame[1] if line.number - frame[0] <= entry.within else "",
            provenance=entry.provenance,
        )
        if entry.heading and not hosts:
            base = msgspec.structs.replace(base, host=_headed(signature, base, line, prefix))
        base = self._inherit(signature, base, hosts[0] if hosts else None)
        made = [_with_host(base, host, alone=len(hosts) == 1) for host in hosts] or [base]
        self._latest[signature.id] = made[0]
        self._kept[signature.id] += len(made)
        if self._kept[signature.id] <= _KEPT_FIRST:
            self.matches.extend(made)
        else:
            self._late.setdefault(signature.id, deque(maxlen=_KEPT_LAST)).extend(made)

    def _inherit(self, signature: Signature, match: LogMatch, host: str | None) -> LogMatch:
        wanted = signature.entry.inherit
        if wanted is None:
            return match
        given = [
            found
            for found in (self._latest.get(identifier) for identifier in wanted.ids)
            if found is not None and match.line - found.line <= wanted.within
        ]
        if not given:
            return match
        nearest = sorted(given, key=lambda found: -found.line)
        rank = next((found.rank for found in nearest if found.rank is not None), None)
        place = next((found.host for found in nearest if found.host is not None), None)
        return msgspec.structs.replace(match, rank=match.rank if match.rank is not None else rank, host=host or place)


def _traceback_end(frame: HitLine, prefix: Prefix) -> HitLine | None:
    """The line that ends the traceback whose last frame this is, if it has an exception's shape; its printer's own."""
    for offset, text in enumerate(frame.below, 1):
        own = parse_prefix(text)
        if (own.rank, own.task, own.reporter) != (prefix.rank, prefix.task, prefix.reporter) or own.rest[:1] in " |^~":
            continue
        if _FRAME_LINE.search(text) or _SOME_EXCEPTION.match(own.rest) is None:
            return None
        return HitLine(frame.number + offset, text, (), frame.step)
    return None


def _find(signature: Signature, text: str, prefix: Prefix) -> re.Match[str] | None:
    """Where the signature's text stands in a line, unless the line only quotes it."""
    ahead = len(text) - len(prefix.rest)
    entry = signature.entry
    quoted = is_quotation(text, (0, *prefix.ends, ahead), launcher=entry.anchored, headed=entry.heading)
    if quoted and signature.emitter != "places":  # a shell's trace tells how ranks were placed
        return None
    bar = _PROGRESS_BAR.match(text, ahead)
    if bar is not None:  # a progress bar has no end of line: what was printed next stands behind it
        ahead = bar.end()
    found = signature.regex.match(text[ahead:]) if signature.entry.anchored else None
    place = ahead
    if found is None:
        found = signature.regex.search(text)
        place = -1 if found is None else found.start()
    if found is None or (signature.entry.anchored and place > ahead):
        found = signature.regex.search(text[ahead:])
        place = -1 if found is None else ahead + found.start()
    for start in prefix.ends if found is None else ():  # what looks like a label may begin the text itself
        if found is None and (found := signature.regex.match(text[start:])) is not None:
            place = start
    if found is None or (signature.entry.anchored and place > ahead and not is_relay(text[ahead:place])):
        return None
    return None if is_story(text[ahead:place], found, signature.entry.cause) else found


def _headed(signature: Signature, match: LogMatch, line: HitLine, prefix: Prefix) -> str | None:
    """The host whose name stands before or above a line, where such a line tells of the host that it belongs to."""
    if signature.emitter == "nodes":  # a property: behind the node's name, or indented below it
        return (
            prefix.reporter
            if prefix.reporter and prefix.rest[:1] not in {" ", "\t"}
            else list_head(line.above, line.text)
        )
    if _PROPERTY.match(line.text):
        return list_head(line.above, line.text)
    labelled = match.reporter is not None or match.rank is not None or match.task is not None
    return None if labelled else heading(line.above)


def _with_host(match: LogMatch, host: str | None, *, alone: bool) -> LogMatch:
    return msgspec.structs.replace(
        match, host=host, rank=match.rank if alone else None, task=match.task if alone else None
    )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
