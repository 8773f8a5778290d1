"""How the rendezvous grows: N agents on the embedded store and on etcd, torch's own beside it, the pure core.

    python benchmarks/rendezvous_scale.py                          # all of it, 64 to 2,048 agents
    python benchmarks/rendezvous_scale.py --sizes 64,256 --stores tcp
    python benchmarks/rendezvous_scale.py --core-only --markdown docs/scale.md --svg docs/scale.svg

An agent here is what an agent says to the store and nothing else: it agrees on the job, takes a lease, writes who it
is, joins, waits for the opening and for the round's own store; one of them coordinates with the product's thread. N
of them share a few processes as threads, each with a store connection of its own on the embedded store and two gRPC
channels a process on etcd. Time runs from the moment when all processes are ready to the last agent's seat. Then one
host is lost and a spare takes its slot: from the word of the loss to the last agent's new seat.

*Operations* are calls of the store protocol; *requests* are what goes over the wire for them. On the embedded store a
waiting agent looks again and again, so requests grow with the time the round takes; etcd tells its watchers.
torch's ``DynamicRendezvousHandler`` runs on its own c10d backend in the same processes, for the sizes it reaches.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from scale_report import Row, plot, tables

from rendezvous.coordinator import Coordinator
from rendezvous.lead import Means
from rendezvous.liveness import Listener
from rendezvous.membership import Decide, Effect, Event, Membership, Open, Tick
from rendezvous.records import (
    Action,
    Case,
    Decision,
    Gone,
    JobRecord,
    Joined,
    Member,
    Opening,
    Outcome,
    Report,
    Retirement,
    encode,
)
from rendezvous.replay import decision_key, opening_key
from rendezvous.stores import Store, StoreUnavailable

PROCESSES = 4
PATIENCE = 600.0
TORCH_PATIENCE = 200.0
TORCH_SIZES = (64, 128, 256)
COMPARED = 256  # agents
CORE = (10_624, 100_000)
LIMIT_US, LIMIT_SPEEDUP = 100.0, 10.0  # issue 3: what must hold


class Counted:
    """A store connection that counts what is asked of it, and repeats what the store did not answer."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.operations = self.requests = self.bytes = 0
        if hasattr(store, "_do"):
            original = store._do
            store._do = lambda operation: self._count(original, operation)

    def _count(self, original: Callable[..., Any], operation: Any) -> Any:
        self.requests += 1
        return original(operation)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*arguments: Any) -> Any:
            self.operations += 1
            self.bytes += sum(len(a) for a in arguments if isinstance(a, bytes | str))
            while True:
                try:
                    answer = method(*arguments)
                    break
                except StoreUnavailable:
                    time.sleep(0.1)
            self.bytes += len(answer) if isinstance(answer, bytes) else 0
            return answer

        return call


def limits(agents: int) -> JobRecord:
    """Leases that last for the whole measurement: heartbeats are one operation a beat and are not measured here."""
    return JobRecord("scale", agents, agents, 9, last_call=600.0, settle=0.0, join_timeout=600.0, lease_ttl=3000.0)


def retire(case: Case) -> Decision:
    """Whoever is lost is retired."""
    retired = tuple(Retirement(item.member.host, "lost", item.how) for item in case.lost)
    return Decision(case.round, Action.RESTART, "bad_node_known", "host_lost", "lost", retired, elapsed=case.elapsed)


class Silent:
    """A ledger that writes nothing."""

    def opened(self, *_: object) -> None: ...

    def decided(self, *_: object) -> None: ...

    def ended(self, *_: object) -> None: ...


# -- agents in processes -----------------------------------------------------------------------------------------------


def connect(kind: str, port: int) -> Store:
    """A first connection of this process."""
    if kind == "tcp":
        from rendezvous.stores.tcpstore import TcpStore

        return TcpStore("127.0.0.1", port, "scale")
    from rendezvous.stores.etcd import EtcdStore
    from rendezvous.stores.etcd_client import EtcdClient

    return EtcdStore(EtcdClient([("127.0.0.1", port)], timeout=60.0), "scale")


class Agent(threading.Thread):
    """What one agent says to the store."""

    def __init__(self, store: Store, member: Member, job: JobRecord, ready: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self._store, self._member, self._job, self._ready = Counted(store), member, job, ready
        self.seated: list[float] = []
        self.cost: tuple[int, int, int] | None = None
        self._store.scale(job.max_hosts)
        self._store.get("warm")  # connected

    def run(self) -> None:
        """Join, get a seat in round 1, lose it or not, get one in round 2."""
        store, member = self._store, self._member
        store.operations = store.requests = store.bytes = 0
        self._ready.wait()
        store.create("job", encode(self._job))
        store.renew(member.id, self._job.lease_ttl)
        store.create(f"member/{member.id}", encode(member))
        store.append(encode(Joined(member)))
        for number in (1, 2):
            slot = self._slot(self._await(opening_key(number)))
            if slot == 0:
                store.create(f"round/{number}/master", b"127.0.0.1 1")
            if slot is not None:
                self._await(f"round/{number}/master")
                self.seated.append(time.monotonic())
            if number == 1:
                self.cost = (store.operations, store.requests, store.bytes)
                self._await(decision_key(1))

    def _slot(self, data: bytes) -> int | None:
        """This agent's slot. The roster itself is not kept: an agent has one, hundreds in a process are gigabytes."""
        roster = msgspec.json.decode(data, type=Opening).roster
        return roster.slot_of(self._member.id) if roster is not None else None

    def _await(self, key: str) -> bytes:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            value = self._store.wait(key, 60.0)
            if value is not None:
                return bytes(value)
        raise TimeoutError(key)


def agents_process(kind: str, port: int, numbers: Sequence[int], total: int, gate: Any, results: Any) -> None:
    """Some of the agents, as threads."""
    listener = Listener("127.0.0.1")
    job, ready = limits(total), threading.Barrier(len(numbers) + 1)
    first = connect(kind, port)
    requests = [0]
    if kind == "etcd":
        wire: Any = first
        for client in (wire._client, wire._run.pulse(job.lease_ttl)):  # the heartbeat has a channel of its own

            def call(operation: Any, original: Any = client.call) -> Any:
                requests[0] += 1
                return original(operation)

            client.call = call
    agents = [Agent(first.connect(), host(number, listener.port), job, ready) for number in numbers]
    leading = first.connect()
    Counted(leading).get("warm")
    coordinator = Coordinator(Means(leading, job, host(numbers[0], listener.port), retire, Silent()))
    for agent in agents:
        agent.start()
    threading.Thread(target=drain, args=(listener,), daemon=True).start()
    gate.wait(PATIENCE)
    requests[0] = 0
    ready.wait(PATIENCE)
    if numbers[0] == 0:
        coordinator.start()
    deadline = time.monotonic() + PATIENCE
    while any(agent.cost is None for agent in agents if agent.is_alive()) and time.monotonic() < deadline:
        time.sleep(0.01)
    costs = [agent.cost for agent in agents if agent.cost is not None]
    first_round = requests[0]
    for agent in agents:
        agent.join(max(0.0, deadline - time.monotonic()))
    results.put(([agent.seated for agent in agents], costs, first_round))
    gate.wait(PATIENCE)
    coordinator.stop()


def drain(listener: Listener) -> None:
    """Take the connections off the queue, so that the port goes on answering."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            selector.select()
            listener.drain()


def host(number: int, port: int) -> Member:
    """One of the hosts, spelled as on a real machine."""
    name = f"x{number // 512 + 1000}c{number // 64 % 8}s{number // 8 % 8}b0n{number % 8}.hsn.cm.example.gov"
    return Member(f"{number:032x}", name, name.partition(".")[0], "127.0.0.1", port, 1, 12)


def measure(kind: str, agents: int, port: int) -> Row:
    """Form a round of ``agents`` hosts with one spare, lose one host, and form the next."""
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(PROCESSES + 1), context.Queue()
    shares = [list(range(part, agents, PROCESSES)) for part in range(PROCESSES)]
    workers = [
        context.Process(target=agents_process, args=(kind, port, share, agents, gate, results)) for share in shares
    ]
    for worker in workers:
        worker.start()
    store = connect(kind, port)
    gate.wait(PATIENCE)
    began = time.monotonic()
    opening = None
    while opening is None and time.monotonic() < began + PATIENCE:
        opening = store.wait("round/1/master", 60.0)
    time.sleep(2.0)  # every agent has its seat; the measurement of the loss starts from rest
    listener = Listener("127.0.0.1")
    spare = host(agents, listener.port)
    threading.Thread(target=drain, args=(listener,), daemon=True).start()
    store.renew(spare.id, 3000.0)
    store.append(encode(Joined(spare)))
    time.sleep(0.5)
    lost = time.monotonic()
    store.append(encode(Gone(host(agents - 1, 1).id, "refused")))
    told = [results.get(timeout=PATIENCE) for _ in workers]
    gate.wait(PATIENCE)
    for worker in workers:
        worker.join(30)
    seats = [seated for part in told for seated in part[0]]
    costs = [cost for part in told for cost in part[1]]
    wire = sum(part[2] for part in told) / agents if kind == "etcd" else statistics.mean(cost[1] for cost in costs)
    assert sum(len(seated) == 2 for seated in seats) == agents - 1, "everybody but the lost host sits in round 2"
    return Row(
        kind,
        agents,
        form=max(seated[0] for seated in seats) - began,
        replace=max(seated[1] for seated in seats if len(seated) == 2) - lost,
        operations=statistics.mean(cost[0] for cost in costs),
        requests=wire,
        sent=statistics.mean(cost[2] for cost in costs),
    )


# -- torch's own -------------------------------------------------------------------------------------------------------


def torch_process(port: int, numbers: Sequence[int], total: int, gate: Any, results: Any) -> None:
    """Some agents that use torch's dynamic rendezvous, as threads."""
    from datetime import timedelta

    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    seated: list[float] = []
    ready = threading.Barrier(len(numbers) + 1)

    def connect() -> TCPStore:
        wait = timedelta(seconds=PATIENCE)
        return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=wait)

    def agent(store: TCPStore) -> None:
        parameters = RendezvousParameters(
            "c10d", f"127.0.0.1:{port}", "scale", total, total, "127.0.0.1", join_timeout=int(TORCH_PATIENCE)
        )
        handler = create_handler(store, C10dRendezvousBackend(store, "scale"), parameters)
        ready.wait()
        with contextlib.suppress(RendezvousTimeoutError):
            handler.next_rendezvous()
            seated.append(time.monotonic())

    threads = [threading.Thread(target=agent, args=(connect(),), daemon=True) for _ in numbers]
    for thread in threads:
        thread.start()
    gate.wait(PATIENCE)
    ready.wait(PATIENCE)
    deadline = time.monotonic() + TORCH_PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    results.put(seated)
    gate.wait(PATIENCE)
    os._exit(0)


def measure_torch(agents: int) -> Row:
    """One rendezvous of torch's own."""
    from rendezvous.stores.tcpstore import serve_c10d

    server = serve_c10d("127.0.0.1")
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(PROCESSES + 1), context.Queue()
    shares = [list(range(part, agents, PROCESSES)) for part in range(PROCESSES)]
    workers = [context.Process(target=torch_process, args=(server.port, s, agents, gate, results)) for s in shares]
    for worker in workers:
        worker.start()
    gate.wait(PATIENCE)
    began = time.monotonic()
    seated = [moment for _ in workers for moment in results.get(timeout=PATIENCE)]
    gate.wait(PATIENCE)
    for worker in workers:
        worker.join(30)
    return Row("torch", agents, form=max(seated) - began if len(seated) == agents else None)


# -- the pure core -----------------------------------------------------------------------------------------------------


def measure_core(hosts: int) -> tuple[int, float, float, int]:
    """A job of ``hosts`` hosts and a hundredth more spares in virtual time: it forms, loses ten hosts one by one, ends.

    Returns:
        Hosts, mean and worst microseconds per event, bytes of the roster.
    """
    members = [host(number, 1) for number in range(hosts + hosts // 100)]
    membership = Membership(limits(hosts))
    times: list[float] = []
    roster = 0

    def apply(event: Event, now: float) -> None:
        nonlocal roster
        pending: list[Event] = [event]
        while pending:
            began = time.thread_time()  # what it needs, whatever else the machine does
            effects: list[Effect] = membership.apply(pending.pop(0), now)
            times.append(time.thread_time() - began)
            for effect in effects:
                if isinstance(effect, Open):
                    roster = len(encode(effect.opening))
                    pending.append(effect.opening)
                elif isinstance(effect, Decide):
                    pending.append(retire(effect.case))

    for member in members:
        apply(Joined(member), 0.0)
    for number in range(10):
        victim = membership.roster.members[number * 7]  # type: ignore[union-attr]
        apply(Gone(victim.id, "expired"), float(number))
        apply(Tick(), number + 0.5)
    current = membership.roster
    assert current is not None
    assert current.round == 11, "ten hosts were lost and replaced"
    for member in current.members:
        apply(Report(current.round, member.id, 0, Outcome.SUCCEEDED), 20.0)
    return hosts, 1e6 * statistics.mean(times), 1e6 * max(times), roster


# -- all of it ---------------------------------------------------------------------------------------------------------


def serve_etcd(directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    """One etcd member on loopback."""
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    client, peer = (f"http://127.0.0.1:{port}" for port in ports)
    binary = shutil.which("etcd", path=str(Path(sys.executable).parent)) or "etcd"
    command = [binary, f"--data-dir={directory}", f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
    command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", "--log-level=error"]
    process = subprocess.Popen([*command, f"--initial-cluster=default={peer}"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while socket.socket().connect_ex(("127.0.0.1", ports[0])) and time.monotonic() < deadline:
        time.sleep(0.05)
    return process, ports[0]


def measure_on(kind: str, agents: int) -> Row:
    """One size on one kind of store, served afresh."""
    if kind == "torch":
        return measure_torch(agents)
    if kind == "tcp":
        from rendezvous.stores.tcpstore import StoreServer

        server = StoreServer("127.0.0.1", 0, "scale")
        try:
            return measure(kind, agents, server.port)
        finally:
            server.close()
    with tempfile.TemporaryDirectory() as directory:
        process, port = serve_etcd(Path(directory) / "etcd")
        try:
            return measure(kind, agents, port)
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Measure, print the tables, compare with what must hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="64,128,256,1024,2048")
    parser.add_argument("--stores", default="tcp,etcd,torch")
    parser.add_argument("--core-only", action="store_true")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    core = [measure_core(hosts) for hosts in CORE]
    rows: list[Row] = []
    for agents in () if arguments.core_only else map(int, arguments.sizes.split(",")):
        for kind in arguments.stores.split(","):
            if kind != "torch" or agents in TORCH_SIZES:
                rows.append(measure_on(kind, agents))
                print(rows[-1], file=sys.stderr, flush=True)
    print(tables(rows, core), end="")
    if arguments.markdown:
        arguments.markdown.write_text(tables(rows, core))
    if arguments.svg and rows:
        arguments.svg.write_text(plot(rows))
    failed = [f"{mean:.0f} µs per event at {hosts} hosts" for hosts, mean, *_ in core[:1] if mean > LIMIT_US]
    formed = {(row.store, row.agents): row.form for row in rows}
    ours = formed.get(("tcp", COMPARED))
    if ours and ("torch", COMPARED) in formed:
        theirs = formed["torch", COMPARED]
        ratio = (theirs or TORCH_PATIENCE) / ours
        bound = "" if theirs else "more than "
        print(f"\nat {COMPARED} agents torch's own rendezvous takes {bound}{ratio:.1f} times as long")
        if ratio < LIMIT_SPEEDUP:
            failed.append(f"only {ratio:.1f} times faster than torch at {COMPARED} agents")
    for store in ("tcp", "etcd"):
        counts = [row.operations for row in rows if row.store == store and row.operations]
        if counts and max(counts) - min(counts) >= 0.5:
            failed.append(f"operations per agent on {store} are no constant: {counts}")
    for line in failed:
        print(f"does not hold: {line}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
