"""What agents, the store, probes and the scheduler report -> findings."""

from __future__ import annotations

import re

import msgspec

from ezpz_elastic.decide.evidence import (
    Accusation,
    Certainty,
    Evidence,
    HostProbe,
    IdleTimeout,
    LeaseLost,
    Role,
    SchedulerFact,
    Unkillable,
    WorkerExit,
)
from ezpz_elastic.decide.exceptions import fingerprint, read_exception
from ezpz_elastic.decide.findings import Finding, Witness
from ezpz_elastic.decide.hosts import HostTable
from ezpz_elastic.decide.verdict import Cause, Provenance

__all__ = ["from_exit", "from_report", "unkillable"]

_DOWN = re.compile(
    r"\b(?:down|fail(?:ed|ing)?|offline|not[_ ]?respond\w*|no[_ ]respond|unreachable|powered[_ ]off)\b", re.I
)
_PEER = re.compile(r"by (?:remote )?peer \[?([\w.:-]{2,120}?)\]?(?:[:<\s]|$)", re.I)
_CRASH_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}


def from_exit(item: WorkerExit, table: HostTable) -> list[Finding]:
    """A worker's end as its agent saw it: the exception it left, and the way it ended."""
    if item.exit_code == 0 and item.signal is None:
        return []
    host = table.name(item.host)
    made: list[Finding] = []
    base = Finding(
        cause=Cause.WORKER_EXIT,
        role=Role.PRIMARY,
        certainty=Certainty.LIKELY,
        text="",
        source=f"agent:{item.host}",
        order=float(item.order),
        witness=Witness.AGENT,
        signature="worker_exit",
        host=host,
        provenance=Provenance.INFERRED,
        reporter=host,
        rank=item.rank,
        step=item.step,
        weight=0.5,
    )
    if item.error is not None:
        reading = read_exception(item.error)
        made.append(
            msgspec.structs.replace(
                base,
                cause=reading.cause,
                role=reading.role,
                certainty=reading.certainty,
                kind=reading.kind,
                signature="exception",
                text=f"rank {item.rank} on {item.host}: {item.error.type}: {item.error.message}",
                fingerprint=fingerprint(item.error),
                order=item.order - 0.5,
                peer=_peer(item.error.message, table) if reading.cause is Cause.NETWORK else None,
            )
        )
    ended = f"signal {item.signal}" if item.signal is not None else f"exit code {item.exit_code}"
    text = f"rank {item.rank} on {item.host} ended with {ended}{_beside(item)}"
    if item.unseen:
        text = f"nobody saw how rank {item.rank} on {item.host} ended: {item.unseen}"
    if item.oom_kills:
        made.append(
            msgspec.structs.replace(
                base,
                cause=Cause.OOM_HOST,
                certainty=Certainty.CERTAIN,
                weight=1.0,
                order=item.order - 0.25,
                text=f"{text}; the kernel counted {item.oom_kills} oom kill(s) in its cgroup{_memory(item)}",
            )
        )
    elif item.signal == 9:
        made.append(msgspec.structs.replace(base, cause=Cause.WORKER_KILLED, text=text, weight=1.0))
    elif item.signal in {2, 15}:
        made.append(
            msgspec.structs.replace(base, role=Role.CASCADE, text=f"{text}, not sent by its agent", weight=0.25)
        )
    elif item.signal is not None:
        name = _CRASH_SIGNALS.get(item.signal, "a signal")
        made.append(msgspec.structs.replace(base, text=f"{text} ({name})"))
    elif item.exit_code == 2 and (usage := _usage_line(item.stderr_tail)):
        made.append(
            msgspec.structs.replace(
                base,
                cause=Cause.LAUNCH_ERROR,
                certainty=Certainty.CERTAIN,
                text=f"{text}: {usage}",
                fingerprint=f"usage|{usage}|",
            )
        )
    else:
        role = Role.CASCADE if made and made[0].role is Role.CASCADE else Role.PRIMARY
        made.append(msgspec.structs.replace(base, role=role, text=text))
    return made


def _beside(item: WorkerExit) -> str:
    """Who sent the signal, where that is told, and that there is a core dump to look at."""
    sender = f" (sent by {item.sent_by})" if item.sent_by else ""
    return (", core dumped" if item.core else "") + sender


def _peer(message: str, table: HostTable) -> str | None:
    """The address a broken connection's exception points at."""
    found = _PEER.search(message)
    return None if found is None else table.name(found.group(1)) or found.group(1)


def _memory(item: WorkerExit) -> str:
    return "" if item.peak_rss_bytes is None else f", peak {item.peak_rss_bytes / 2**30:.1f} GiB resident"


def unkillable(item: Unkillable) -> str:
    """Processes that outlived SIGKILL, in words."""
    what = "process" if len(item.pids) == 1 else "processes"
    where = f" ({item.detail})" if item.detail else ""
    return f"{what} {', '.join(map(str, item.pids[:8]))} on {item.host} outlived SIGKILL{where}"


def _usage_line(tail: tuple[str, ...]) -> str:
    for line in reversed(tail):
        if re.match(r"\s*(?:\[\w+\]: ?)?(?:usage: |\S{1,200}: error: )", line):
            return line.strip()[:300]
    return ""


def from_report(item: Evidence, index: int, table: HostTable) -> Finding | None:
    """A lease, a probe, an idle timeout, an accusation, the scheduler's word on a host.

    Args:
        item: the report.
        index: its place among all evidence.
        table: the attempt's hosts.

    Returns:
        what it says, or ``None`` if it says nothing against a host of the attempt.
    """
    base = Finding(
        cause=Cause.HOST_LOST,
        role=Role.PRIMARY,
        certainty=Certainty.CERTAIN,
        text="",
        source=f"report:{index}",
        order=float(index),
        signature=type(item).__name__,
    )
    if isinstance(item, IdleTimeout):
        return _from_idleness(item, base, table)
    if isinstance(item, Accusation):
        return msgspec.structs.replace(
            base,
            cause=Cause.NETWORK,
            role=Role.CASCADE,
            certainty=Certainty.LIKELY,
            probe=item.probe,
            text=item.text or f"{item.accuser} says its connection to {item.accused} broke",
            witness=Witness.AGENT,
            reporter=table.name(item.accuser),
            peer=table.name(item.accused) or item.accused,
            rank=item.rank,
        )
    if isinstance(item, LeaseLost | SchedulerFact | HostProbe) and item.host is not None:
        host = table.name(item.host)
        return None if host is None else _about_host(item, msgspec.structs.replace(base, host=host))
    return None


def _about_host(item: LeaseLost | SchedulerFact | HostProbe, base: Finding) -> Finding | None:
    if isinstance(item, LeaseLost):
        return msgspec.structs.replace(
            base,
            provenance=Provenance.LOST,
            witness=Witness.STORE,
            text=f"lost contact with {item.host} ({item.how.value})",
        )
    if isinstance(item, SchedulerFact):
        return (
            None
            if not _DOWN.search(item.state)
            else msgspec.structs.replace(
                base,
                provenance=Provenance.LOST,
                witness=Witness.SCHEDULER,
                text=f"the scheduler says {item.host} is {item.state}",
            )
        )
    return (
        None
        if item.healthy
        else msgspec.structs.replace(
            base,
            cause=_probe_cause(item.probe),
            provenance=Provenance.PROBED,
            witness=Witness.PROBE,
            text=f"probe {item.probe} failed on {item.host}: {item.detail}",
        )
    )


def _from_idleness(item: IdleTimeout, base: Finding, table: HostTable) -> Finding:
    """A hang names a host only if one rank is behind all others, or all ranks behind are on one host of several."""
    ranks = ", ".join(f"{rank} on {host}" for rank, host in item.behind[:4])
    hosts = {name for name in (table.name(host) for _, host in item.behind) if name is not None}
    alone = len(hosts) == 1 and (len(item.behind) == 1 or table.count > 1)
    return msgspec.structs.replace(
        base,
        cause=Cause.HANG,
        certainty=Certainty.DOUBTFUL,
        witness=Witness.AGENT,
        text=f"no progress for {item.seconds:.0f} s" + (f"; behind all others: rank {ranks}" if ranks else ""),
        host=hosts.pop() if alone else None,
        provenance=Provenance.INFERRED,
    )


def _probe_cause(probe: str) -> Cause:
    words = (
        (r"gpu|device|xpu|cuda|ecc|xid|nvlink|hbm", Cause.DEVICE_FAULT),
        (r"shm", Cause.SHM_FULL),
        (r"disk|storage|lustre|file|mount|quota", Cause.STORAGE),
        (r"net|ping|fabric|link|pairwise|collective|nic|hsn", Cause.NETWORK),
        (r"mem|oom", Cause.OOM_HOST),
        (r"agent|port|alive|ssh", Cause.HOST_LOST),
    )
    return next((cause for pattern, cause in words if re.search(pattern, probe, re.I)), Cause.UNKNOWN)
