"""One raw log line -> clean text, and who printed it and when, as its prefix tells (rule 1)."""

from __future__ import annotations

import re

import msgspec

__all__ = ["Prefix", "clean", "clock", "expand_hosts", "is_relay", "parse_prefix", "readable", "strip_escapes"]

_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;:?<=>]{0,64}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\x1b]")

_STAMP = (
    r"\[?\d{4}[-/:]\d\d[-/:]\d\d[T :\-]\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"|\[\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d"
    r"|\[ {0,8}\d{1,9}\.\d{6}\]|\d{10}(?:\.\d{1,9})?(?= )"
    r"|\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?: [A-Z]{2,5})? \d{4}\]?"
)
_PREFIX = re.compile(
    r"[ \t]{0,8}(?:"
    r"(?:\^C){1,8}"
    r"|[^\x00-\x7f]{1,64}"  # bytes that are no text
    r"|\[(?:stderr|stdout|err|out|mpiexec|mpirun|srun|E|ERR|ERROR|F|FATAL|CRITICAL)\] ?"
    r"|(?:stderr|stdout|mpiexec|mpirun|palsd)(?:\[\d{1,9}\])?: ?"
    r"|std(?:err|out) (?:[FP] )?(?=\[)"
    r"|(?:qstat|pbsnodes|tracejob|sinfo|scontrol|squeue|sacct|kubectl|dmesg|journalctl|bhist|bjobs): "
    r"|\[(?:qstat|pbsnodes|tracejob|sinfo|scontrol|squeue|sacct|kubectl|dmesg|journalctl|(?:epi|pro)log(?:ue)?)\]:? "
    r"|comment = "
    r"|\[rank(?P<rank>\d{1,7})\]:? ?"
    r"|\[?[Rr]ank[ =]?(?P<named>\d{1,7})\]?: "
    r"|\[default(?P<local>\d{1,5})\]:? ?"
    r"|\[\d{1,4},(?P<tagged>\d{1,7})\](?:\[[^\]\n]{0,80}\])?<std(?:out|err|diag)>: ?"
    r"|\[[\w.\-]{1,120}@\d{1,5},(?P<prte>\d{1,7})\](?:\[[^\]\n]{0,80}\])?<std(?:out|err|diag)>: ?"
    rf"|(?P<stamp>{_STAMP})(?: ?: ?| )?"
    r"|- (?:[\w.]{1,40} - )?(?:INFO|ERROR|CRITICAL|FATAL) - "
    r"|(?P<syslog>[a-z][\w.\-]{0,160}) [\w./\-]{1,40}\[\d{1,9}\]: "
    r"|(?P<nccl>[A-Za-z0-9][\w.\-]{0,160}):\d{1,9}:\d{1,9} \[\d{1,4}\] "
    r"|(?P<task>\d{1,7}): "
    r"|\[(?P<prepended>\d{1,7})\] "
    r"|(?P<tag>\[[a-z][a-z\-]{0,30}\d[\w.\-]{0,160}\]):? "
    r"|\((?:\w[\w.()=]{0,80} )?pid=\d{1,9}(?:, ip=(?P<node>[\w.:\-]{2,120}))?\) "  # Ray
    r"|(?![\w.\-]{0,160}\.[A-Z])"  # an exception's module is no host, whatever digits it has
    r"(?P<host>[a-z][a-z\-]{0,30}\d[\w.\-]{0,160}|\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?<!\.log|\.err|\.out|\.txt)"
    r"(?: (?P<labelled>\d{1,7}))?: "
    r")"
)
_RELAY = re.compile(
    r"(?:[ \t]{0,4}(?:"
    r"\[?(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERR(?:OR)?|FATAL|CRITICAL|debug|info|warning|error|fatal)\]?(?::|(?=[ \t]))"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d(?:\.\d{1,6})?(?: {1,8}\d{1,9} [\w./\-]{1,120}:\d{1,6}\])?"
    rf"|\d\d/\d\d/\d{{2,4}} \d\d:\d\d:\d\d(?:[.,]\d{{1,6}})?|{_STAMP}"
    r"|-(?=[ \t])|=+>|>{1,3}|\|"
    r"|\[?(?:srun|mpiexec|mpirun|prterun|pals\w{0,4}|PALS|slurm\w{0,8}|pbs\w{0,8}|PBS|ezpz[\w./\-]{0,60}|torchrun"
    r"|launch(?:er)?|agent|wrapper|stderr|stdout|[\w./\-]{1,80}\.py)(?:\[\d{1,9}\])?\]?(?::|(?=[ \t]))"
    r"|[a-z][a-z\-]{0,30}\d[\w.\-]{0,160}(?<!\.log|\.err|\.out|\.txt):?(?=[ \t])"
    r")){1,8}[ \t]{0,4}"
)
"""What a logger or a wrapper writes before a line that it hands on: levels, times, names of programs and of hosts."""
_CLOCK = re.compile(r"(?<![\d:])([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,](\d{1,6}))?(?![\d:])")
_INLINE_RANK = re.compile(r"\[Rank (\d{1,7})\]|\(RANK (\d{1,7})\)|\bRank (\d{1,7})\] ")
_SUBGROUP = re.compile(r"\[PG (?:ID )?[1-9]")
"""A process group that is not the one of all: its members have numbers of their own."""
_RANGE = re.compile(r"^(.{0,120}?)\[([\d,\-]{1,300})\](.{0,120})$")
_HOST_LIMIT = 4096
_RELAY_LIMIT = 200
_NODE_ID = re.compile(r"^'(.{1,200}?)(?:_\d{1,9}_\d{1,6})?'$")
"""A node as torch's rendezvous spells it in quotation marks: host, process, number."""


class Prefix(msgspec.Struct, frozen=True):
    """What stands before a line's own text.

    Args:
        rest: the line without the prefix.
        rank: global rank of the printer, if the prefix or the text says so.
        task: the launcher's task number of the printer.
        reporter: the host of the printer; in brackets what stands there and may be a host.
        ends: where each piece of the prefix ends, the last one left out.
    """

    rest: str
    rank: int | None = None
    task: int | None = None
    reporter: str | None = None
    ends: tuple[int, ...] = ()


def strip_escapes(data: bytes) -> bytes:
    """Bytes without escape sequences and NULs; lines stay lines."""
    return _ESCAPES.sub(b"", data).replace(b"\x00", b"")


def clean(raw: bytes) -> str:
    """A raw line without escape sequences, control bytes and line ends; bytes that are no UTF-8 are replaced."""
    text = _ESCAPES.sub(b"", raw) if b"\x1b" in raw else raw
    return _CONTROL.sub("", text.decode("utf-8", "replace")).rstrip()


def parse_prefix(text: str) -> Prefix:
    """Peel timestamps, rank tags, task labels and host labels off a clean line, in whatever order they stand."""
    rank: int | None = None
    task: int | None = None
    reporter: str | None = None
    at = 0
    ends: list[int] = []
    for _ in range(6):
        found = _PREFIX.match(text, at)
        if found is None or found.end() == at:
            break
        groups = found.groupdict()
        named = groups["rank"] or groups["named"] or groups["tagged"] or groups["prte"]
        rank = int(named) if named is not None else rank
        label = groups["task"] or groups["prepended"] or groups["labelled"]
        task = int(label) if label is not None else task
        reporter = (
            groups["host"]
            or groups["node"]
            or groups["nccl"]
            or groups["tag"]
            or (f"[{groups['syslog']}]" if groups["syslog"] else None)
            or reporter
        )
        ends.append(at)
        at = found.end()
    if rank is None and (inline := _INLINE_RANK.search(text)) and _SUBGROUP.search(text) is None:
        rank = int(next(group for group in inline.groups() if group is not None))
    return Prefix(text[at:], rank, task, reporter, tuple(ends[1:]))


def is_relay(before: str) -> bool:
    """Whether these are words of somebody who only hands on the line that follows them."""
    return len(before) <= _RELAY_LIMIT and (not before.strip() or _RELAY.fullmatch(before) is not None)


def clock(text: str) -> float | None:
    """Seconds since midnight as the line's first clock time tells; ``None`` if its first 120 characters show none."""
    found = _CLOCK.search(text[:120])
    if found is None:
        return None
    hours, minutes, seconds, fraction = found.groups()
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{fraction or 0}")


def expand_hosts(spelled: str) -> list[str]:
    """``nid[001-003,007]`` -> four names; a plain name -> itself; a list separated by commas -> each.

    In a list of nodes in quotation marks each is a rendezvous's: ``'n2_4411_0', 'n3_812_0'`` -> two names.

    Args:
        spelled: Slurm's host-list expression. What cannot be read is returned as it is.
    """
    if spelled.startswith("'"):
        nodes = (_NODE_ID.match(part.strip()) for part in spelled.split(","))
        return [node.group(1) for node in nodes if node is not None][:_HOST_LIMIT]
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", spelled):
        found = _RANGE.match(part)
        if found is None:
            names.append(part)
            continue
        head, inside, tail = found.groups()
        for piece in inside.split(","):
            low, _, high = piece.partition("-")
            if not low.isdigit() or (high and not high.isdigit()):
                return [spelled]
            span = range(int(low), int(high or low) + 1)
            names.extend(f"{head}{number:0{len(low)}d}{tail}" for number in span[: _HOST_LIMIT - len(names)])
    return names


def readable(text: object) -> str:
    """Text that can be written down: Python keeps a file name that is not UTF-8 as half characters, JSON cannot.

    Args:
        text: anything that ``str`` takes.
    """
    return str(text).encode(errors="replace").decode()
