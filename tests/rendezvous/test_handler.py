"""torch's ``RendezvousHandler`` contract, kept by handlers on a real embedded store."""

from __future__ import annotations

import errno
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest
from support.builders import decision, job, member, report, retire_the_lost
from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from rendezvous import handler as module
from rendezvous import meeting
from rendezvous.handler import EzpzRendezvousHandler, new_id
from rendezvous.liveness import Listener
from rendezvous.records import Action, Decision, Opening, Retirement, encode
from rendezvous.replay import decision_key, opening_key
from rendezvous.stores import StoreUnavailable
from rendezvous.stores.tcpstore import StoreServer, TcpStore


class Silent:
    """A ledger nobody reads, but for how the job ended."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, list[str]]] = []

    def ended(self, last: Decision, retired: Sequence[Retirement]) -> None:
        self.ends.append((last.kind, [item.host for item in retired]))

    def opened(self, *_: object) -> None:
        """Nothing is written down."""

    def decided(self, *_: object) -> None:
        """Nothing is written down."""


class Job:
    """Handlers of one job."""

    def __init__(self) -> None:
        self.server = StoreServer("127.0.0.1", 0, "run")
        self.handlers: list[EzpzRendezvousHandler] = []
        self.infos: dict[str, RendezvousInfo] = {}
        self.errors: dict[str, BaseException] = {}
        self.threads: list[threading.Thread] = []

    def add(self, name: str, **limits: object) -> EzpzRendezvousHandler:
        listener = Listener("127.0.0.1")
        values: dict[str, object] = {"run_id": "run", "last_call": 0.5, "join_timeout": 60.0, "lease_ttl": 10.0}
        made = EzpzRendezvousHandler(
            store=TcpStore("127.0.0.1", self.server.port, "run"),
            job=job(**{**values, **limits}),
            member=member(name, id=new_id(), port=listener.port),
            listener=listener,
            decider=retire_the_lost,
            ledger=Silent(),
        )
        self.handlers.append(made)
        return made

    def next(self, handler: EzpzRendezvousHandler) -> None:
        """``next_rendezvous`` in a thread."""

        def go() -> None:
            try:
                self.infos[handler.member.host] = handler.next_rendezvous()
            except BaseException as error:
                self.errors[handler.member.host] = error

        self.threads.append(threading.Thread(target=go))
        self.threads[-1].start()

    def until(self, what: Callable[[], object], why: str) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, f"{why}; errors: {self.errors}"
            time.sleep(0.01)

    def close(self) -> None:
        for handler in self.handlers:
            handler.interrupted.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        for handler in self.handlers:
            assert handler.shutdown()
        self.server.close()


@pytest.fixture
def running() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def formed(job_: Job, *names: str, **limits: object) -> list[EzpzRendezvousHandler]:
    handlers = [job_.add(name, **limits) for name in names]
    for handler in handlers:
        job_.next(handler)
    job_.until(lambda: len(job_.infos) == len(names), "the round is formed")
    return handlers


def test_every_method_of_torchs_interface_is_there():
    assert issubclass(EzpzRendezvousHandler, RendezvousHandler)
    assert not EzpzRendezvousHandler.__abstractmethods__


def test_next_rendezvous_gives_ranks_a_world_and_a_store_that_the_application_may_use(running):
    a, b = formed(running, "h1", "h0")
    infos = [running.infos[name] for name in ("h0", "h1")]
    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    infos[0].store.set("greeting", "hello")
    assert infos[1].store.get("greeting") == b"hello"
    addresses = {(i.bootstrap_store_info.master_addr, i.bootstrap_store_info.master_port) for i in infos}
    assert len(addresses) == 1
    assert [a.use_agent_store, a.get_backend(), a.get_run_id()] == [True, "ezpz", "run"]
    assert [a.is_closed(), b.is_closed()] == [False, False]


def test_a_later_round_has_another_store(running):
    a, b = formed(running, "h0", "h1")
    first = running.infos["h0"].bootstrap_store_info.master_port
    running.infos["h1"].store.set("k", "of round 1")
    running.infos.clear()
    a._store.connect().append(encode(report(a.member, 1, conclusive=True)))
    running.next(a)
    running.next(b)
    running.until(lambda: len(running.infos) == 2, "round 2")
    assert running.infos["h0"].bootstrap_store_info.master_port != first
    assert not running.infos["h0"].store.check(["k"])


def test_one_node_closes_and_the_others_soon_observe_it(running):
    a, b = formed(running, "h0", "h1")
    a.set_closed()
    assert a.is_closed()
    running.until(b.is_closed, "it spreads")
    for handler in (a, b):
        with pytest.raises(RendezvousClosedError):
            handler.next_rendezvous()


def test_a_node_that_waits_for_its_turn_hears_that_the_rendezvous_was_closed(running, monkeypatch):
    monkeypatch.setattr(module, "REFUSAL_LOOK", 0.1)
    a, _ = formed(running, "h0", "h1")
    late = running.add("h2")
    running.next(late)
    running.until(lambda: late._joined, "it stands by")
    a.set_closed()
    running.until(lambda: "h2" in running.errors, "it is told")
    assert isinstance(running.errors["h2"], RendezvousClosedError)


def test_a_job_that_is_over_is_closed(running):
    a, _ = formed(running, "h0", "h1")
    a._store.connect().create(decision_key(1), encode(decision(1, Action.FINISH, kind="success")))
    with pytest.raises(RendezvousClosedError):
        a.next_rendezvous()
    assert a.is_closed()


def test_nodes_waiting_are_those_that_would_enlarge_the_group_and_no_others(running):
    a, _ = formed(running, "h0", "h1", max_hosts=3)
    assert a.num_nodes_waiting() == 0
    for count, name in enumerate(("h2", "h3"), start=1):
        late = running.add(name, max_hosts=3)
        running.next(late)
        running.until(lambda late=late: late._joined, "it stands by")
        running.until(lambda: a.num_nodes_waiting() == 1, f"{count} there, one of them wanted")


def test_shutdown_closes_everything_and_may_be_repeated(running):
    a, _ = formed(running, "h0", "h1")
    assert a.shutdown()
    assert a.shutdown()
    threads = [thread.name for thread in threading.enumerate() if thread in (a._heart, a._coordinator)]
    assert threads == []
    running.until(lambda: a.member.id not in str(running.handlers[1]._store.leases([])), "it is gone")


def test_no_store_in_time_is_a_timeout_and_a_person_who_waits_is_told_before(running, monkeypatch, caplog):
    monkeypatch.setattr(module, "STORE_PATIENCE", 0.1)
    late = running.add("h0", join_timeout=0.9)
    now = 0.0  # of a clock that goes on while the agent pauses, and by nothing else

    def pause(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    monkeypatch.setattr(late.interrupted, "wait", pause)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    late._store = TcpStore("127.0.0.1", 1, "run")
    with pytest.raises(RendezvousTimeoutError, match=r"no store within 0\.9 s"):
        late.next_rendezvous()
    assert [record.message.partition(", ")[0] for record in caplog.records] == [
        "h0 has found no store in 0.1 s and looks on"
    ]


def test_a_store_that_does_not_come_back_is_a_lost_connection(running, monkeypatch):
    monkeypatch.setattr(module, "GONE_PATIENCE", 0.5)
    a, b = formed(running, "h0", "h1")
    running.infos.clear()
    running.server.close()
    for handler in (a, b):
        with pytest.raises(RendezvousConnectionError, match="did not come back"):
            handler.next_rendezvous()
        assert handler.num_nodes_waiting() == 0
        assert not handler.is_closed()
    running.server = StoreServer("127.0.0.1", 0, "run")


def test_how_the_job_ended_is_told_by_everybody_who_knows_when_the_store_went_with_its_host(running):
    a, b = formed(running, "h0", "h1")
    running.server.close()
    for handler in (a, b):
        handler.obey(decision(1, Action.RESTART, "h7"))
        with pytest.raises(RendezvousClosedError):
            handler.obey(decision(2, Action.STOP, "h8", kind="exhausted"))
        assert handler.shutdown()
        assert handler._ledger.ends == [("exhausted", ["h7"])]
    running.server = StoreServer("127.0.0.1", 0, "run")


class Flaky:
    """A connection on which four operations in ten fail, half of these after they took place."""

    def __init__(self, store) -> None:  # type: ignore[no-untyped-def]
        self._store, self.failures, self._random = store, 0, random.Random(7)

    def connect(self) -> Flaky:
        return Flaky(self._store.connect())

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        method = getattr(self._store, name)
        if name in {"wake", "scale", "close"}:
            return method

        def call(*arguments):  # type: ignore[no-untyped-def]
            luck = self._random.random()
            if luck < 0.2:
                self.failures += 1
                raise StoreUnavailable("before it was done")
            answer = method(*arguments)
            if luck < 0.4:
                self.failures += 1
                raise StoreUnavailable("after it was done")
            return answer

        return call


def test_a_store_that_fails_at_many_operations_delays_the_round_and_ends_nobody(running, monkeypatch):
    monkeypatch.setattr(module, "SLICE", 0.02)
    handlers = [running.add(name) for name in ("h0", "h1")]
    for handler in handlers:
        handler._store = Flaky(handler._store)
        running.next(handler)
    running.until(lambda: len(running.infos) == 2, "the round is formed")
    assert all(handler._store.failures > 0 for handler in handlers)
    assert running.errors == {}


class Slow:
    """Connections of which each takes as long as ``open`` is not set: a name service that does not answer."""

    def __init__(self, store, opened: threading.Event) -> None:  # type: ignore[no-untyped-def]
        self._store, self._opened = store, opened

    def connect(self) -> Slow:
        return Slow(self._store.connect(), self._opened)

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        self._opened.wait(60)
        return getattr(self._store, name)


def test_a_heart_that_is_slow_to_connect_delays_its_joining_and_loses_no_lease(running, monkeypatch):
    connected = threading.Event()
    handler = running.add("h0", min_hosts=1, max_hosts=1)
    observer, connect = handler._store.connect(), handler._store.connect
    others = iter([Slow(connect(), connected)])
    monkeypatch.setattr(handler._store, "connect", lambda: next(others, None) or connect())
    running.next(handler)
    running.until(lambda: observer.get("job"), "the agent has agreed on the job")
    assert observer.read(0, 0.3) == ([], 0)
    assert observer.leases([handler.member.id]) == [None]
    connected.set()
    running.until(lambda: running.infos, "the round is formed")
    assert observer.leases([handler.member.id]) != [None]


class Busy:
    """A store whose one operation lasts until it is let go: a thread that is inside torch's C++."""

    def __init__(self) -> None:
        self.inside, self.let_go = threading.Event(), threading.Event()

    def renew(self, lease: str, ttl: float) -> None:
        self.inside.set()
        self.let_go.wait(60)

    def close(self) -> None:
        threading.Timer(0.2, self.let_go.set).start()


def test_an_agent_whose_goodbye_fails_still_waits_for_its_threads(running, monkeypatch):
    """Python ends a process in which another thread is inside C++ with SIGABRT."""
    handler = running.add("h0", min_hosts=1, max_hosts=1)
    running.next(handler)
    running.until(lambda: running.infos, "the round is formed")
    heart, busy = handler._heart, Busy()
    monkeypatch.setattr(heart, "_store", busy)
    assert busy.inside.wait(60)

    def gone(value: bytes) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(handler._store, "append", gone)
    handler.leave()
    assert busy.let_go.is_set()
    assert not heart.is_alive()


class NotServed:
    """``serve_c10d`` on a host where something is missing for a while: an address, descriptors, what torch wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self._errors, self._serve = list(errors), meeting.serve_c10d
        monkeypatch.setattr(meeting, "serve_c10d", self.serve)

    def serve(self, host: str) -> TCPStore:
        if self._errors:
            raise self._errors.pop(0)
        return self._serve(host)


def test_what_keeps_the_rounds_store_from_being_served_for_a_moment_delays_the_round(running, monkeypatch):
    lacking = NotServed(
        monkeypatch,
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        OSError(errno.EMFILE, "Too many open files"),
        DistNetworkError("the server socket has failed to listen"),
    )
    formed(running, "h0", "h1")
    assert lacking._errors == []
    assert running.errors == {}


def test_a_store_of_the_round_that_cannot_be_served_is_the_agents_to_report_and_the_others_go_on(running, monkeypatch):
    monkeypatch.setattr(meeting, "SERVE_PATIENCE", 0.1)
    NotServed(monkeypatch, *[OSError(errno.EMFILE, "Too many open files")] * 2)
    a, b = running.add("h0"), running.add("h1")
    running.next(b)
    seat = a.next_seat()
    assert (seat.slot, seat.problem.__cause__.errno) == (0, errno.EMFILE)
    assert "cannot be served at 127.0.0.1: [Errno 24] Too many open files" in str(seat.problem)
    running.next(a)
    a._store.connect().append(encode(report(a.member, 1)))
    running.until(lambda: len(running.infos) == 2, "the next round is formed")
    assert [handler.round for handler in (a, b)] == [2, 2]


@pytest.mark.parametrize("record", ["nowhere", "127.0.0.1 x", "127.0.0.1 99999999", " 1", "²"])
def test_a_malformed_address_of_the_rounds_store_is_a_corrupt_state(running, record):
    TcpStore("127.0.0.1", running.server.port, "run").create("round/1/master", record.encode())
    for name in ("h0", "h1"):
        running.next(running.add(name))
    running.until(lambda: len(running.errors) == 2, "both stop cleanly")
    assert all("malformed record at 'round/1/master'" in str(error) for error in running.errors.values())


@pytest.mark.parametrize(
    "record",
    [
        b"{]",
        b"\xff\xfe",
        b"null",
        encode(Opening(7, ended=decision(7))),
        encode(Opening(1)),
        b'{"round":1,"roster":{"round":1,"members":[]}}',
        b"[" * 100_000,
    ],
)
def test_a_malformed_record_is_a_corrupt_state_that_names_its_key(running, record, caplog):
    if record.startswith(b"\xff"):
        record = "ÿþ".encode()  # the embedded store carries text only
    TcpStore("127.0.0.1", running.server.port, "run").create(opening_key(1), record)
    for name in ("h0", "h1"):
        running.next(running.add(name))
    running.until(lambda: len(running.errors) == 2, "both stop cleanly")
    for error in running.errors.values():
        assert isinstance(error, RendezvousStateError)
        assert "malformed record at 'round/1/opening'" in str(error)
    assert "Traceback" not in caplog.text
