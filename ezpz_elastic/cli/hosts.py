"""A person's hand on the job's hosts: list them, retire one, readmit one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ezpz_elastic.errors import UsageError

if TYPE_CHECKING:
    from ezpz_elastic.journal import Journal
    from rendezvous.membership import Membership
    from rendezvous.stores import Store

__all__ = ["app"]

PATIENCE = 30.0
"""Seconds to wait until the coordinator has carried an order out: a decision takes one settle window, not more."""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A person's hand on the job's hosts: list them, retire one, readmit one.",
)

Host = Annotated[str, typer.Argument(metavar="HOST", help="as `list` prints it")]


@app.callback()
def directory(
    context: typer.Context,
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the job's run directory; it holds store.json")],
) -> None:
    """Look after the hosts of the job whose run directory this is."""
    context.obj = run_dir


@app.command("list")
def list_(context: typer.Context) -> None:
    """One host a line: slot, spare or retired, and why."""
    from rendezvous.replay import survey

    with _store(context.obj) as (store, _):
        job = survey(store)
        if job is None:
            raise UsageError(f"no job has begun in {context.obj}")
        for line in _lines(job):
            typer.echo(line)


@app.command()
def retire(
    context: typer.Context,
    host: Host,
    reason: Annotated[str, typer.Option(help="told to the host itself and to whoever reads the journal")] = "",
) -> None:
    """Take a host out of the job; if it is active, a spare takes its slot and the workers restart."""
    from rendezvous import orders
    from rendezvous.replay import survey

    with _store(context.obj) as (store, run_id):
        before = survey(store)
        after = orders.retire(store, host, reason or "told to by a person", PATIENCE)
        key = next(key for key, item in after.retired.items() if host in (key, item.host))
        item, round_number = after.retired[key], after.retired_in[key]
        active = before is not None and before.roster is not None and key in {m.key for m in before.roster.members}
        if not active:  # an active host's retirement is a decision, and the coordinator writes it down
            journal = _journal(context.obj, run_id)
            journal.append_line("bad_nodes.txt", f"{item.host}  {item.provenance}  attempt={round_number}")
            told = {"provenance": item.provenance, "reason": item.reason, "benched": False}
            journal.write("host_retired", round_number, retired=item.host, **told)
            journal.close()
        typer.echo(f"{item.host} is retired (round {round_number})")


@app.command()
def readmit(context: typer.Context, host: Host) -> None:
    """Let a retired host in again; start its agent anew."""
    from rendezvous import orders

    with _store(context.obj) as (store, run_id):
        round_number = orders.readmit(store, host)
        journal = _journal(context.obj, run_id)
        journal.write("host_readmitted", round_number, readmitted=host)
        journal.close()
        typer.echo(f"{host} may join again (it was retired in round {round_number}); start its agent")


def _lines(job: Membership) -> Iterator[str]:
    roster = job.roster.members if job.roster is not None else ()
    there = {member.id for member in job.members.values()}
    for slot, member in enumerate(roster):
        if member.key not in job.retired:
            yield f"{member.host}  slot {slot}" + ("" if member.id in there else "  gone")
    for member in job.queue.values():
        yield f"{member.host}  spare"
    for key, item in job.retired.items():
        yield f"{item.host}  retired  {item.provenance}  round {job.retired_in[key]}  {item.reason}"


@contextmanager
def _store(run_dir: Path) -> Iterator[tuple[Store, str]]:
    """The job's store, with what can go wrong there told in one line."""
    from ezpz_elastic.storefile import find
    from rendezvous.orders import NotPossible
    from rendezvous.records import RecordError
    from rendezvous.stores import StoreUnavailable

    store, run_id = find(run_dir, os.environ)
    try:
        yield store, run_id
    except NotPossible as error:
        raise UsageError(str(error)) from error
    except StoreUnavailable as error:
        hint = "a job that is over has taken its embedded store along; see bad_nodes.txt and outcome.json"
        raise UsageError(f"the job's store does not answer: {error}", hint=hint) from error
    except RecordError as error:
        raise UsageError(f"the job's records cannot be read: {error}") from error
    finally:
        store.close()


def _journal(run_dir: Path, run_id: str) -> Journal:
    from ezpz_elastic.journal import Journal

    return Journal(run_dir, f"person@{socket.gethostname()}", run_id)
