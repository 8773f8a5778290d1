"""Records for tests, with everything that a test does not care about filled in."""

from __future__ import annotations

from rendezvous.records import Action, Case, Decision, JobRecord, Member, Outcome, Report, Retirement


def job(**changes: object) -> JobRecord:
    values: dict[str, object] = {
        "run_id": "t",
        "min_hosts": 2,
        "max_hosts": 2,
        "max_restarts": 3,
        "last_call": 30.0,
        "settle": 1.0,
        "join_timeout": 600.0,
        "lease_ttl": 5.0,
    }
    return JobRecord(**{**values, **changes})  # type: ignore[arg-type]


def member(name: str, incarnation: int = 0, **changes: object) -> Member:
    values: dict[str, object] = {
        "id": f"{name}#{incarnation}",
        "host": name,
        "key": name,
        "addr": "127.0.0.1",
        "port": 1,
        "pid": 1,
        "workers": 1,
    }
    return Member(**{**values, **changes})  # type: ignore[arg-type]


def report(who: Member, round_number: int, outcome: Outcome = Outcome.FAILED, **changes: object) -> Report:
    values: dict[str, object] = {"seq": 0, "conclusive": False}
    return Report(round=round_number, member_id=who.id, outcome=outcome, **{**values, **changes})  # type: ignore[arg-type]


def decision(round_number: int, action: Action = Action.RESTART, *retired: str, **changes: object) -> Decision:
    values: dict[str, object] = {"kind": "k", "cause": "c", "reason": "r"}
    return Decision(
        round=round_number,
        action=action,
        retired=tuple(Retirement(host, "lost", "gone") for host in retired),
        **{**values, **changes},  # type: ignore[arg-type]
    )


def retire_the_lost(case: Case) -> Decision:
    """A decider for tests: lost hosts are retired, success finishes, everything else restarts in place."""
    if case.roster is None:
        return decision(case.round, Action.STOP, kind="exhausted")
    succeeded = {item.member_id for item in case.reports if item.outcome is Outcome.SUCCEEDED}
    if len(succeeded) == len(case.roster.members) and not case.lost:
        return decision(case.round, Action.FINISH, kind="success")
    if any(item.outcome is Outcome.INTERRUPTED for item in case.reports):
        return decision(case.round, Action.STOP, kind="interrupted", exit_code=143)
    left = len(case.roster.members) - len(case.lost) + len(case.spares)
    if left < case.min_hosts:
        return decision(case.round, Action.STOP, kind="exhausted", exit_code=1)
    return decision(case.round, Action.RESTART, *(lost.member.host for lost in case.lost))
