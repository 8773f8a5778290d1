"""What ``lfs`` prints, read. Text in, records out; spellings of Lustre 2.12 to 2.16."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from ezpz_elastic.checkpoint.striping import Ost

__all__ = [
    "Layout",
    "Quota",
    "parse_df",
    "parse_getstripe",
    "parse_inodes",
    "parse_project",
    "parse_quota",
    "parse_size",
]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50, "e": 1 << 60}
_SIZE = re.compile(r"\[?(\d+(?:\.\d+)?)\s*([kKmMgGtTpPeE]?)(?:i?[bB])?[\]*]*\Z")
# "tegu-OST0002_UUID  25.2T  24.7T  254.7G 100% /lus/tegu[OST:2]", the mount point missing in some copies, and from
# 2.11 on a column of state letters behind it.
_OST_ROW = re.compile(
    r"\s*(?P<name>\S+)\s+(?P<total>\S+)\s+(?P<used>\S+)\s+(?P<free>\S+)\s+\S+\s+\S*\[OST:(?P<index>\d+)\]\s*(?P<flags>.*)\Z"
)
# "OST0002 : inactive device", "tegu-OST000a_UUID : Resource temporarily unavailable"
_ABSENT_ROW = re.compile(r"\s*(?P<name>\S*OST(?P<index>[0-9a-fA-F]{4})\S*)\s*:\s*(?P<why>.+)\Z")
# State letters (man lfs-df) that mean "no new objects here": R(ead-only), S (out of space), I (out of inodes), N (no
# precreate). D(egraded) is avoided by Lustre itself and takes what is put there by name; f(lash) is no fault.
_REFUSING = frozenset("RSIN")


class Layout(msgspec.Struct, frozen=True):
    """Layout of a file or default layout of a directory.

    Args:
        count: stripes; -1 for all targets.
        stripe_size: bytes.
        osts: the targets a file lies on, in stripe order; empty for a directory.
        pool: name, of a composite layout's last component; empty if none.
    """

    count: int
    stripe_size: int
    osts: tuple[int, ...] = ()
    pool: str = ""


class Quota(msgspec.Struct, frozen=True):
    """One quota.

    Args:
        kind: ``user``, ``group`` or ``project``.
        used: bytes.
        limit: bytes; 0 for none.
    """

    kind: str
    used: int
    limit: int

    @property
    def left(self) -> int | None:
        """Bytes that may still be written; ``None`` without a limit."""
        return max(self.limit - self.used, 0) if self.limit else None


def parse_size(text: str, unit: int = 1024) -> int:
    """Bytes of one cell.

    Args:
        text: ``254.7G``, ``1024``, ``20480*`` (over quota), ``[20]`` (not exact).
        unit: bytes of a number without a suffix: ``lfs`` counts in KiB then.

    Raises:
        ValueError: it is no size.
    """
    match = _SIZE.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size")
    number, suffix = float(match.group(1)), match.group(2).lower()
    return int(number * (_UNITS[suffix] if suffix else unit))


def _rows(text: str) -> Iterator[tuple[int, str, re.Match[str] | None]]:
    for line in text.splitlines():
        match = _OST_ROW.match(line)
        if match:
            yield int(match["index"]), match["name"], match
            continue
        absent = _ABSENT_ROW.match(line)
        if absent:
            yield int(absent["index"], 16), absent["name"], None


def parse_df(text: str, inodes: dict[int, int] | None = None) -> tuple[Ost, ...]:
    """The targets in ``lfs df [-h]``; targets that do not answer are there, inactive.

    Args:
        text: standard output.
        inodes: from ``parse_inodes``.
    """
    known = inodes or {}
    found: dict[int, Ost] = {}
    for index, name, match in _rows(text):
        if match is None:
            found[index] = Ost(index, 0, 0, active=False, name=name)
            continue
        try:
            total, free = parse_size(match["total"]), parse_size(match["free"])
        except ValueError:  # "-" in every column: known to the client, not connected
            found[index] = Ost(index, 0, 0, active=False, name=name)
            continue
        active = not _REFUSING & set(match["flags"].strip())
        found[index] = Ost(index, total, free, known.get(index), active, name)
    return tuple(found[index] for index in sorted(found))


def parse_inodes(text: str) -> dict[int, int]:
    """Free objects per target in ``lfs df -i``."""
    found = {}
    for index, _, match in _rows(text):
        if match is not None and _SIZE.match(match["free"]):
            found[index] = parse_size(match["free"], unit=1)
    return found


def parse_getstripe(text: str) -> Layout | None:
    """``lfs getstripe`` of one file or (``-d``) directory; the first component of a composite layout.

    Returns:
        ``None`` if the text has no layout.
    """

    def number(key: str) -> int | None:
        match = re.search(rf"(?:lmm_)?{key}:\s*(-?\d+)", text)
        return int(match.group(1)) if match else None

    count, size = number("stripe_count"), number("stripe_size")
    if count is None:
        return None
    osts = [int(found) for found in re.findall(r"l_ost_idx:\s*(\d+)", text)]
    if not osts and "obdidx" in text:
        rows = text.split("obdidx", 1)[1].splitlines()[1:]
        for row in rows:
            match = re.match(r"\s+(\d+)\s+\d+\s+0x[0-9a-f]+\s+\S+", row)
            if match is None:
                break
            osts.append(int(match.group(1)))
    # The last component of a progressive layout holds the bulk of a large file.
    pools = re.findall(r"(?:lmm_)?pool:\s*(\S+)", text)
    return Layout(count, size or 0, tuple(osts), pools[-1] if pools else "")


def parse_quota(kind: str, text: str) -> Quota | None:
    """``lfs quota`` of one user, group or project; ``None`` if it gives no numbers.

    A long mount point has a line of its own, so cells are read from the words behind the heading.
    """
    lines = text.splitlines()
    heads = [n for n, line in enumerate(lines) if re.search(r"\bkbytes\b|\bused\b", line)]
    if not heads:
        return None
    words = " ".join(lines[heads[0] + 1 :]).split()
    if len(words) < 4:
        return None
    try:
        return Quota(kind, parse_size(words[1]), parse_size(words[3]))
    except ValueError:
        return None


def parse_project(text: str) -> int | None:
    """The project id in ``lfs project -d``: ``  1000 P /path``; ``None`` for no project (0)."""
    match = re.match(r"\s*(\d+)\s+\S+\s+\S", text)
    project = int(match.group(1)) if match else 0
    return project or None
