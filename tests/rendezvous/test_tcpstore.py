"""The embedded store against the promises of the protocol, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.cluster import free_port

from rendezvous.stores import StoreGone, StoreUnavailable
from rendezvous.stores.tcpstore import AddressTaken, ForeignEndpoint, StoreServer, TcpStore


@pytest.fixture
def server() -> Iterator[StoreServer]:
    made = StoreServer("127.0.0.1", 0, "run")
    yield made
    made.close()


@pytest.fixture
def store(server: StoreServer) -> TcpStore:
    return TcpStore("127.0.0.1", server.port, "run")


def test_the_first_writer_of_a_record_wins(store):
    assert store.get("k") is None
    assert store.create("k", b"mine") == b"mine"
    assert store.connect().create("k", b"theirs") == b"mine"
    assert store.get("k") == b"mine"


def test_messages_of_many_writers_keep_one_order_and_none_is_lost(store):
    def write(writer: int) -> None:
        own = store.connect()
        for number in range(50):
            own.append(f"{writer}:{number}".encode())

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    seen: list[bytes] = []
    cursor = 0
    while len(seen) < 200:
        messages, cursor = store.read(cursor, 5.0)
        assert messages, "a message is missing"
        seen += messages
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 200
    for writer in range(4):
        assert [m for m in seen if m.startswith(f"{writer}:".encode())] == [f"{writer}:{n}".encode() for n in range(50)]
    assert store.connect().read(0, 0.0)[0] == seen


def test_a_writer_that_died_between_number_and_message_holds_nobody_up(store, monkeypatch):
    monkeypatch.setattr("rendezvous.stores.tcpstore.HOLE_PATIENCE", 0.1)
    store.append(b"one")
    store._do(lambda client: client.add("ezpz/run/inbox", 1))  # the number is taken, the message never comes
    store.append(b"three")
    assert store.read(0, 0.0) == ([b"one"], 1)
    assert store.read(1, 5.0) == ([b"three"], 3)


def test_waiting_ends_with_the_record_with_the_time_or_with_the_wakeup(store):
    other = store.connect()
    threading.Timer(0.1, lambda: other.create("late", b"v")).start()
    assert store.wait("late", 5.0) == b"v"
    assert store.wait("never", 0.05) is None
    wakeup = threading.Event()
    threading.Timer(0.1, wakeup.set).start()
    began = time.monotonic()
    assert store.wait("never", 30.0, wakeup) is None
    assert time.monotonic() - began < 10


def test_a_lease_is_a_number_that_changes_when_it_is_renewed(store):
    assert store.leases(["a", "b"]) == [None, None]
    store.renew("a", 1.0)
    before = store.leases(["a", "b"])
    store.renew("a", 1.0)
    after = store.leases(["a", "b"])
    assert before[0] != after[0]
    assert after[1] is None
    assert store.leases([]) == []


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


def test_a_closed_connection_ends_a_wait_in_another_thread(store):
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            store.wait("never", 30.0)
        except StoreUnavailable as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    store.close()
    thread.join(10)
    assert not thread.is_alive()
