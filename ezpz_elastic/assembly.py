"""Puts one agent's parts together from what torchrun was told."""

from __future__ import annotations

import os
import socket
from typing import Any

import msgspec
from torch.distributed.elastic.rendezvous import RendezvousParameters

from ezpz_elastic.console import open_streams
from ezpz_elastic.decide.decider import make_decider
from ezpz_elastic.decide.situation import Limits, OnBlind
from ezpz_elastic.endpoint import find_store
from ezpz_elastic.errors import UsageError
from ezpz_elastic.hostorder import position
from ezpz_elastic.journal import Journal
from ezpz_elastic.ledger import RunLedger
from ezpz_elastic.machines import Machine, find_machine
from ezpz_elastic.settings import Settings, check_run_id, parse
from ezpz_elastic.signatures import load_library
from ezpz_elastic.storefile import remember
from rendezvous.handler import EzpzRendezvousHandler, new_id
from rendezvous.liveness import Listener
from rendezvous.records import JobRecord, Member
from rendezvous.stores import Store

__all__ = ["AgentHandler", "build_handler"]

TORCHRUN_TIMEOUT = "timeout"
"""Key that torch's ``LaunchConfig`` adds to every ``--rdzv-conf``; how long a rendezvous may take."""


class AgentHandler(EzpzRendezvousHandler):
    """The rendezvous handler with what else the agent needs.

    Args:
        settings: from ``--rdzv-conf``.
        journal: this host's journal.
        machine: how hosts are spelled here.
        note: what the reader of a verdict must know about the machine.
        arguments: passed on to ``EzpzRendezvousHandler``.
    """

    def __init__(self, settings: Settings, journal: Journal, machine: Machine, note: str, **arguments: Any) -> None:
        super().__init__(decider=make_decider(Limits()), **arguments)
        self.settings, self.journal = settings, journal
        self._machine, self._note = machine, note

    def connection(self) -> Store:
        """Another connection to the job's store."""
        return self._store.connect()

    def complete(self, max_restarts: int, workers: int) -> None:
        """Take in what torch tells only the agent: the restart budget and the number of local workers."""
        self.job = msgspec.structs.replace(self.job, max_restarts=max_restarts)
        self.member = msgspec.structs.replace(self.member, workers=workers)
        limits = Limits(max_restarts=max_restarts, on_blind=OnBlind(self.settings.on_blind))
        self.decider = make_decider(limits, self._machine.key, self._note)


def build_handler(params: RendezvousParameters) -> AgentHandler:
    """Make the handler for ``torchrun --rdzv-backend=ezpz``.

    Args:
        params: what torchrun was told.

    Raises:
        UsageError: something in it cannot be; nothing has been started.
    """
    open_streams()
    conf = dict(params.config)
    timeout = conf.pop(TORCHRUN_TIMEOUT, None)
    if timeout is not None:
        conf.setdefault("join_timeout", timeout)
    settings = parse(conf)
    check_run_id(params.run_id)
    addr = params.local_addr or socket.getfqdn()
    try:
        listener = Listener(addr)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {addr}: {error}", hint="give this host's own address by --local-addr"
        ) from error
    store, server = find_store(params.endpoint, params.run_id, settings, params.local_addr, os.environ)
    if os.environ.get("EZPZ_SIGNATURES"):
        load_library()  # a user's mistake in it is told now, not at the first failure
    machine, note = find_machine(settings.machine, hosts=[addr])
    directory = settings.directory(params.run_id)
    try:
        str(directory.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(f"the run directory {directory!a} is not text", expected="a path in UTF-8") from None
    try:
        journal = Journal(directory, addr, params.run_id)
        served_at = server.endpoint if server is not None else params.endpoint
        remember(journal.directory, served_at, params.run_id, settings)
    except OSError as error:
        hint = "free or fix it, or choose another one: --rdzv-conf=run_dir=DIRECTORY"
        raise UsageError(f"cannot write to the run directory {directory}: {error}", hint=hint) from error
    job = JobRecord(
        run_id=params.run_id,
        min_hosts=params.min_nodes,
        max_hosts=params.max_nodes,
        max_restarts=0,
        last_call=settings.last_call,
        settle=settings.settle,
        join_timeout=settings.join_timeout,
        lease_ttl=settings.lease_ttl,
        grow_now=settings.grow == "now",
    )
    member = Member(
        id=new_id(),
        host=addr,
        key=machine.key(addr) or addr.lower(),
        addr=addr,
        port=listener.port,
        pid=os.getpid(),
        workers=1,
        order=position(addr, machine, settings.hostfile, os.environ),
    )
    return AgentHandler(
        settings=settings,
        journal=journal,
        machine=machine,
        note=note,
        store=store,
        job=job,
        member=member,
        listener=listener,
        ledger=RunLedger(journal),
        server=server,
    )
