"""The embedded store against the promises of the protocol, over real sockets."""

from __future__ import annotations

import errno
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace

import pytest
from support.cluster import free_port
from torch.distributed import DistNetworkError, TCPStore

from rendezvous.stores import StoreGone, StoreUnavailable
from rendezvous.stores import tcpstore as module
from rendezvous.stores.tcpstore import AddressTaken, ForeignEndpoint, StoreServer, TcpStore


@pytest.fixture
def server() -> Iterator[StoreServer]:
    made = StoreServer("127.0.0.1", 0, "run")
    yield made
    made.close()


@pytest.fixture
def store(server: StoreServer) -> TcpStore:
    return TcpStore("127.0.0.1", server.port, "run")


def test_a_writer_that_died_between_number_and_message_holds_nobody_up(store, monkeypatch):
    monkeypatch.setattr("rendezvous.stores.tcpstore.HOLE_PATIENCE", 0.1)
    store.append(b"one")
    store._do(lambda client: client.add("ezpz/run/inbox", 1))  # the number is taken, the message never comes
    store.append(b"three")
    assert store.read(0, 0.0) == ([("ezpz/run/inbox/1", b"one")], 1)
    assert store.read(1, 5.0) == ([("ezpz/run/inbox/3", b"three")], 3)


def test_runs_do_not_see_each_other(server, store):
    store.create("k", b"v")
    with pytest.raises(ForeignEndpoint, match="serves the run 'run', not 'other'"):
        TcpStore("127.0.0.1", server.port, "other").get("k")


def test_a_taken_address_is_told_at_once(server):
    with pytest.raises(AddressTaken):
        StoreServer("127.0.0.1", server.port, "run")


def test_another_program_at_the_endpoint_is_recognised_whether_it_speaks_or_not():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(ForeignEndpoint, match="taken by another program"):
            TcpStore("127.0.0.1", silent.getsockname()[1], "run").get("k")


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
        return TCPStore(*arguments, timeout=timeout, **options)

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
