"""An attempt's log and exit code -> the verdict: the edge that reads, resolves and hands everything to ``classify``."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ezpz_elastic.decide.classify import classify
from ezpz_elastic.decide.context import Context, host_key
from ezpz_elastic.decide.evidence import LogMatch
from ezpz_elastic.decide.verdict import Verdict
from ezpz_elastic.machines import Machine, find_machine
from ezpz_elastic.observe.logs import LogScan, scan_log
from ezpz_elastic.observe.sources import open_log
from ezpz_elastic.signatures import load_library

__all__ = ["classify_log", "resolve_addresses"]

_RESOLVE_DEADLINE_S = 2.0
_RESOLVE_LIMIT = 32
_PROBE_BYTES = 65536


def classify_log(
    path: Path | str,
    exit_code: int | None = None,
    machine: str = "auto",
    remaining: float | None = None,
    hosts: Sequence[str] = (),
    ranks_per_host: int | None = None,
    *,
    signatures: Path | str | None = None,
) -> Verdict:
    """The offline verdict on one attempt.

    Args:
        path: the launcher's console log, plain, ``.gz`` or ``.zst``.
        exit_code: as the shell saw it; ``None`` if unknown.
        machine: a machine's name, or ``auto``.
        remaining: seconds left in the allocation when the attempt ended; ``None`` when nobody can tell.
        hosts: the attempt's hosts in slot order, as the allocation spells them.
        ranks_per_host: ranks on each host, block by block, where that is known.
        signatures: a directory of further signature files; ``EZPZ_SIGNATURES`` by default.

    Raises:
        UsageError: the log or a signature file cannot be used.
    """
    path = Path(path)
    library = load_library(signatures)
    scan = scan_log(path, library)
    chosen, note = find_machine(machine, hosts=hosts, log=_some_text(path, scan))
    context = Context(
        hosts=tuple(hosts),
        ranks_per_host=ranks_per_host,
        layout=chosen.layout,
        exit_code=exit_code,
        remaining=remaining,
        addresses=resolve_addresses(scan.matches, hosts),
        key=_key_for(chosen, hosts),
        spell=chosen.spell,
        last_step=scan.last_step,
        machine_note=note,
    )
    return classify(scan.matches, context)


def resolve_addresses(
    matches: Iterable[LogMatch], hosts: Sequence[str], deadline_s: float = _RESOLVE_DEADLINE_S
) -> dict[str, str]:
    """Names of the addresses that peers are accused by, as far as the resolver knows them in time.

    An address that stands in the host list itself needs no resolver, and without a host list there is nothing that a
    name could be compared with.

    Args:
        matches: lines of the log.
        hosts: the attempt's hosts.
        deadline_s: seconds for all look-ups together.
    """
    wanted = dict.fromkeys(match.peer for match in matches if match.peer and match.peer not in hosts)
    addresses = [peer for peer in wanted if _is_address(peer)][:_RESOLVE_LIMIT]
    if not hosts or not addresses or all(_is_address(host) for host in hosts):
        return {}
    found: dict[str, str] = {}

    def look_up() -> None:
        for address in addresses:
            try:
                found[address] = socket.gethostbyaddr(address)[0]
            except OSError:
                continue  # an address nobody knows stays an address: no host is named for it

    worker = threading.Thread(target=look_up, daemon=True)
    worker.start()
    worker.join(deadline_s)
    return dict(found)


def _key_for(machine: Machine, hosts: Sequence[str]) -> Callable[[str], str | None]:
    """The machine's key, unless the allocation itself spells hosts in another shape."""
    return machine.key if all(machine.key(host) is not None for host in hosts) else host_key


def _some_text(path: Path, scan: LogScan) -> str:
    """Enough of the log to recognise the machine by: its beginning, and the lines that matched."""
    lines = [match.text for match in scan.matches[:200]]
    if path.suffix not in {".gz", ".zst", ".zstd"}:
        with open_log(path) as file:
            lines.append(file.read(_PROBE_BYTES).decode("utf-8", "replace"))
    return "\n".join(lines)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
