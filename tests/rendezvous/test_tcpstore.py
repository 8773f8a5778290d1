"""The embedded store against the promises of the protocol, over real sockets."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from support.cluster import free_port
from support.etcd import insist
from support.frozen import ServerProcess, server_process
from torch.distributed import DistNetworkError, TCPStore

from rendezvous.stores import StoreGone, StoreRefused, StoreUnavailable, sockets
from rendezvous.stores import tcpstore as module
from rendezvous.stores.tcpstore import AddressTaken, ForeignEndpoint, StoreServer, TcpStore


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that is there greets, sooner or later; the tests of those that do not have their own time for it."""
    monkeypatch.setattr(module, "GREETING_TIMEOUT", 60.0)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    made = StoreServer("127.0.0.1", 0, "run")
    yield made
    made.close()


@pytest.fixture
def store(server: StoreServer) -> TcpStore:
    return TcpStore("127.0.0.1", server.port, "run")


@pytest.fixture
def frozen() -> Iterator[ServerProcess]:
    with server_process() as made:
        yield made


def test_a_writer_that_died_between_number_and_message_holds_nobody_up(store, monkeypatch):
    monkeypatch.setattr("rendezvous.stores.tcpstore.HOLE_PATIENCE", 0.1)
    store.append(b"one")
    store._do(lambda client: client.add("ezpz/run/inbox", 1))  # the number is taken, the message never comes
    store.append(b"three")
    assert store.read(0, 0.0) == ([("ezpz/run/inbox/1", b"one")], 1)
    assert store.read(1, 60.0) == ([("ezpz/run/inbox/3", b"three")], 3)


def test_runs_do_not_see_each_other(server, store):
    store.create("k", b"v")
    with pytest.raises(ForeignEndpoint, match="serves the run 'run', not 'other'"):
        TcpStore("127.0.0.1", server.port, "other").get("k")


def test_a_taken_address_is_told_at_once(server):
    with pytest.raises(AddressTaken):
        StoreServer("127.0.0.1", server.port, "run")


@contextmanager
def program(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """The port of a program that takes one connection and does ``answer`` with it."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()

        def serve() -> None:
            connection, _ = door.accept()
            with connection:
                answer(connection)
                over.wait(60)

        over = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield door.getsockname()[1]
        finally:
            over.set()
            thread.join()


def hang_up(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("word", [b"SSH-2.0-x\r\n", b"{}", b'{"run_id":"run","port":1,"service":"other"}'])
def test_another_program_at_the_endpoint_is_recognised_by_what_it_says(word, ends, monkeypatch):
    monkeypatch.setattr(module, "GREETING_TIMEOUT", 60.0 if ends else 1.0)
    said, connect = threading.Event(), socket.create_connection

    def listening(*arguments: Any, **more: Any) -> socket.socket:
        connection = connect(*arguments, **more)
        assert said.wait(60)
        return connection

    monkeypatch.setattr(socket, "create_connection", listening)  # its time begins when the word is there

    def answer(connection: socket.socket) -> None:
        connection.sendall(word)
        if ends:
            hang_up(connection)
        said.set()

    with program(answer) as port, pytest.raises(ForeignEndpoint, match="taken by another program"):
        TcpStore("127.0.0.1", port, "run").get("k")


@pytest.mark.parametrize("answer", [lambda connection: None, lambda connection: connection.sendall(b'{"ru'), hang_up])
def test_who_says_nothing_at_the_endpoint_may_be_a_store_that_is_slow_and_is_asked_again(answer, monkeypatch):
    monkeypatch.setattr(module, "GREETING_TIMEOUT", 0.2)
    silence = "takes connections and says nothing"
    with program(answer) as port, pytest.raises(StoreUnavailable, match=silence) as caught:
        TcpStore("127.0.0.1", port, "run").get("k")
    assert not isinstance(caught.value, StoreRefused)


def test_the_endpoint_is_not_open_before_the_store_behind_it_is_there(monkeypatch):
    """Torch asks the name service before it serves, which may take 5 s; who connects meanwhile must not wait for a
    greeting, and another agent of this machine must not take the door for somebody else's."""
    serve, port, met = module.serve_c10d, free_port("127.0.0.1"), []

    def slow(host: str) -> TCPStore:
        with pytest.raises(ConnectionRefusedError) as caught:
            module.greet("127.0.0.1", port)
        met.append(caught)
        return serve(host)

    monkeypatch.setattr(module, "serve_c10d", slow)
    server = StoreServer("127.0.0.1", port, "run")
    assert met
    assert module.greet("127.0.0.1", port).run_id == "run"
    server.close()


def test_of_two_agents_that_serve_one_endpoint_at_the_same_moment_one_is_told(monkeypatch):
    serve, port, first = module.serve_c10d, free_port("127.0.0.1"), []

    def overtaken(host: str) -> TCPStore:
        if not first:
            first.append(None)
            first[0] = StoreServer("127.0.0.1", port, "run")
        return serve(host)

    monkeypatch.setattr(module, "serve_c10d", overtaken)
    with pytest.raises(AddressTaken):
        StoreServer("127.0.0.1", port, "run")
    assert TcpStore("127.0.0.1", port, "run").get("k") is None
    first[0].close()


OPERATIONS: dict[str, Callable[[TcpStore], object]] = {
    "create": lambda store: store.create("k", b"v"),
    "create much": lambda store: store.create("much", b"x" * (1 << 24)),
    "get": lambda store: store.get("k"),
    "append": lambda store: store.append(b"m"),
    "read": lambda store: store.read(0, 0.0),
    "leases": lambda store: store.leases(["a"]),
    "renew": lambda store: store.renew("a", 5.0),
}


def test_no_operation_waits_for_a_server_that_has_stopped(frozen, monkeypatch):
    """The kernel of its host takes what is sent and answers nothing, as when the power is off: torch waits for ever."""
    monkeypatch.setattr(module, "OP_TIMEOUT", 0.5)
    monkeypatch.setattr(module, "GREETING_TIMEOUT", 0.2)
    stores = {name: frozen.client() for name in OPERATIONS}
    assert insist(lambda: stores["get"].create("k", b"v")) == b"v"
    frozen.stop()
    told: dict[str, str] = {}

    def ask(name: str) -> None:
        try:
            OPERATIONS[name](stores[name])
        except StoreUnavailable as error:
            told[name] = str(error)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in OPERATIONS]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert frozen.is_stopped(), "the fault did not happen"
    assert told.keys() == OPERATIONS.keys()
    assert all("Socket Timeout" in words for words in told.values()), told
    with pytest.raises(StoreUnavailable, match="says nothing"):
        stores["get"].get("k")
    frozen.go_on()
    assert insist(lambda: frozen.client().get("k")) == b"v"


def test_a_first_contact_that_is_never_answered_ends(monkeypatch):
    """The server stops between its greeting and torch's handshake, which torch does not limit."""
    monkeypatch.setattr(module, "OPEN_TIMEOUTS", (0.2, 0.2))
    monkeypatch.setattr(module, "OP_TIMEOUT", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        greeting = module.Greeting("run", silent.getsockname()[1])
        monkeypatch.setattr(module, "greet", lambda *_: greeting)
        caught: list[BaseException] = []

        def ask() -> None:
            try:
                TcpStore("127.0.0.1", 1, "run").get("k")
            except StoreUnavailable as error:
                caught.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(60)
        assert caught


def test_a_server_that_greets_and_does_not_answer_in_time_gets_twice_the_time(server, store, monkeypatch):
    monkeypatch.setattr(module, "OPEN_TIMEOUTS", (60.0,))
    given: list[float] = []
    limit = module.limited
    monkeypatch.setattr(module, "limited", lambda *words: (given.append(words[1]), limit(*words))[1])

    def busy(client: TCPStore) -> None:
        raise DistNetworkError("Socket Timeout")

    for _ in range(6):
        with pytest.raises(StoreUnavailable):
            store._do(busy)
    assert given == [5.0, 10.0, 20.0, 40.0, 40.0, 40.0]
    store.get("k")
    with pytest.raises(StoreUnavailable):
        store._do(busy)
    store.get("k")
    assert given[6:] == [40.0, 10.0]


def test_a_connection_whose_descriptor_is_lower_than_the_lowest_that_was_free_is_found_too(server, monkeypatch):
    before = sockets._sockets(0).keys()
    monkeypatch.setattr(sockets, "_lowest_free", lambda: 1 << 20)  # many were closed in that moment
    store = TcpStore("127.0.0.1", server.port, "run")
    assert store.get("k") is None
    (limit,) = (
        made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
        for made in sockets._made_since(before, 0, module.greet("127.0.0.1", server.port).port)
    )
    assert limit == struct.pack("@ll", 5, 0)


def test_the_limits_are_for_the_stores_own_connection_and_for_no_other(server):
    before, port = sockets._sockets(0).keys(), module.greet("127.0.0.1", server.port).port
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_connection(other.getsockname()) as beside:
        store = TcpStore("127.0.0.1", server.port, "run")
        store.renew("a", 5.0)
        limits = [
            (
                made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16),
                made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                os.get_blocking(made.fileno()),
            )
            for made in sockets._made_since(before, 0, port)
        ]
        assert limits == [(struct.pack("@ll", 5, 0), 500, True)], "five seconds, and a beat of the lease"
        assert beside.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) == bytes(16)


def test_a_server_that_is_gone_is_unavailable_and_nothing_blocks():
    server = StoreServer("127.0.0.1", 0, "run")
    store = TcpStore("127.0.0.1", server.port, "run")
    store.create("k", b"v")
    server.close()
    with pytest.raises(StoreUnavailable):
        store.get("k")
    with pytest.raises(StoreGone):
        store.get("k")
    with pytest.raises(StoreGone):
        store.connect().get("k")


def test_a_server_that_was_never_there_may_still_come():
    with pytest.raises(StoreUnavailable) as caught:
        TcpStore("127.0.0.1", free_port("127.0.0.1"), "run").get("k")
    assert not isinstance(caught.value, StoreGone)


def test_a_slow_name_service_may_delay_the_first_contact_and_nothing_after_it(server, monkeypatch):
    allowed = []

    def connect(*arguments, timeout, **options):  # type: ignore[no-untyped-def]
        allowed.append(timeout.total_seconds())
        if len(allowed) in {1, 2}:
            raise DistNetworkError("timed out")
        return TCPStore(*arguments, timeout=timedelta(seconds=60), **options)

    monkeypatch.setattr(module, "TCPStore", connect)
    store = TcpStore("127.0.0.1", server.port, "run")
    store.create("k", b"v")
    assert allowed == [2.0, 5.0, 15.0]  # the short ones first: the store may have gone, and torch takes each twice
    assert store._client.timeout == timedelta(seconds=module.OP_TIMEOUT)
    store._client = None  # a connection that breaks later begins with the short one again
    store.get("k")
    assert allowed[3:] == [2.0]


def test_a_store_that_goes_while_torch_connects_to_it_is_not_tried_for_long(monkeypatch):
    server, allowed = StoreServer("127.0.0.1", 0, "run"), []

    def connect(*arguments, timeout, **options):  # type: ignore[no-untyped-def]
        allowed.append(timeout.total_seconds())
        server.close()  # what torch does then takes its whole time, and ends so:
        raise DistNetworkError("timed out")

    monkeypatch.setattr(module, "TCPStore", connect)
    store = TcpStore("127.0.0.1", server.port, "run")
    with pytest.raises(StoreUnavailable, match="refused"):
        store.create("k", b"v")
    assert allowed == [2.0]


class Bell:
    """Rings never, or once; every wait takes as long as it was asked to, on a clock of its own."""

    def __init__(self):
        self.now, self.pauses, self.rings = 0.0, [], False

    def wait(self, pause):
        self.now += pause
        self.pauses.append(pause)
        return self.rings

    def clear(self):
        self.rings = False

    def pauses_of(self, wait):
        self.pauses.clear()
        wait()
        return list(self.pauses)


@pytest.fixture
def bell(store, monkeypatch):
    assert store.get("k") is None  # connected
    store._bell = made = Bell()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


first, longest = module.POLL


def test_a_wait_that_is_begun_again_goes_on_with_the_long_pause_it_had_come_to(store, bell):
    pauses = bell.pauses_of(lambda: store.read(0, 10 * longest))
    assert pauses[:3] == [first, 2 * first, 4 * first]
    assert max(pauses) == longest
    assert bell.pauses_of(lambda: store.read(0, longest)) == [longest]
    assert bell.pauses_of(lambda: store.wait("never", longest)) == [longest]


@pytest.mark.parametrize("event", ["a wake", "a message", "a record", "a message of its own", "a record of its own"])
def test_after_anything_that_happens_a_client_looks_often_again(store, bell, event):
    other = store.connect()
    store.read(0, 10 * longest)
    cursor = 0
    match event:
        case "a wake":
            bell.rings = True
            assert store.wait("never", 10 * longest) is None
        case "a message":
            other.append(b"m")
            _, cursor = store.read(0, longest)
            assert cursor == 1
        case "a record":
            other.create("k", b"v")
            assert store.wait("k", longest) == b"v"
        case "a message of its own":
            store.append(b"m")
            cursor = 1
        case "a record of its own":
            store.create("k", b"v")
    assert bell.pauses_of(lambda: store.read(cursor, longest))[0] == first


def test_the_more_agents_the_less_often_each_connection_of_an_agent_looks_whenever_it_was_made(store, bell):
    store.connect().scale(20_000)
    pauses = bell.pauses_of(lambda: store.read(0, 60))
    assert max(pauses) == 20_000 * module.WAITING / module.LOOKS
    store.connect().scale(2)
    assert max(bell.pauses_of(lambda: store.read(0, 60))[1:]) == longest


_SERVE = """
import resource, sys
from rendezvous.stores.tcpstore import StoreServer
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
server = StoreServer("127.0.0.1", 0, "job")
print(server.port, flush=True)
sys.stdin.read()
"""


def test_the_store_serves_more_agents_than_its_process_was_given_descriptors():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 200
    process = subprocess.Popen([sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        stores = [TcpStore("127.0.0.1", port, "job") for _ in range(50)]
        assert [store.create(f"key/{n}", b"x") for n, store in enumerate(stores)] == [b"x"] * 50
        process.stdin.close()


def test_an_endpoint_that_could_not_take_one_caller_takes_the_next(server):
    door, failed = server._door, []

    class Door:
        def accept(self):
            if not failed:
                failed.append(1)
                raise OSError(errno.EMFILE, "Too many open files")
            return door.accept()

        def __getattr__(self, name):
            return getattr(door, name)

    server._door = Door()
    host, port = server.endpoint.rsplit(":", 1)
    for _ in range(3):  # the first one is still taken by the accept that was under way
        assert module.greet(host, int(port)).run_id == "run"
    assert failed


def test_a_number_under_which_another_thread_has_opened_a_file_meanwhile_is_passed_over(server, monkeypatch):
    real, files = os.dup, []

    def dup(number: int) -> int:
        if not files:
            files.append(os.open(os.devnull, os.O_RDONLY))
            return files[0]
        return real(number)

    monkeypatch.setattr(os, "dup", dup)
    TcpStore("127.0.0.1", server.port, "run").create("k", b"v")
    assert files
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(files[0])
