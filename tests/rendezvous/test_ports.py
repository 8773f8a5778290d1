"""A host whose own name is a loopback address (``127.0.1.1 node7``, as Debian has it) is reached by the others."""

from __future__ import annotations

import errno
import socket

import pytest
from support.builders import member

from rendezvous.liveness import Listener, refused
from rendezvous.ports import listen
from rendezvous.stores.tcpstore import AddressTaken, StoreServer, TcpStore, greet

ELSEWHERE = "127.0.0.77"
"""Another address of this machine: what the other hosts take ``node7`` for."""


@pytest.fixture
def own_name(monkeypatch: pytest.MonkeyPatch) -> str:
    ask = socket.getaddrinfo

    def answer(host: str, *arguments: object, **more: object) -> object:
        return ask({"node7": "127.0.1.1", "node8": "203.0.113.7"}.get(host, host), *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return "node7"


def test_an_agent_that_knows_itself_by_a_loopback_address_is_not_taken_for_gone(own_name: str):
    listener = Listener(own_name)
    seen = member("a", addr=ELSEWHERE, port=listener.port)
    assert refused([seen], 30.0) == []
    listener.close()
    assert refused([seen], 30.0) == [seen]


def test_a_store_at_this_machines_own_name_serves_the_others_whatever_that_name_means_here():
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, 0)
    except OSError:
        pytest.skip(f"{name} does not know its own name")
    server = StoreServer(name, 0, "job")
    assert greet(ELSEWHERE, server.port).run_id == "job"
    assert TcpStore(ELSEWHERE, server.port, "job").create("key", b"value") == b"value"
    with pytest.raises(AddressTaken):
        StoreServer(name, server.port, "job")
    server.close()


def test_an_address_in_figures_is_that_one_alone():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((ELSEWHERE, port), timeout=5)


def test_a_name_answers_under_both_kinds_of_address(own_name: str):
    if not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6")
    with listen(own_name, 0) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), timeout=5).close()


def test_the_name_of_another_machine_is_refused(own_name: str):
    del own_name
    with pytest.raises(OSError) as caught:  # noqa: PT011
        listen("node8", 0)
    assert caught.value.errno == errno.EADDRNOTAVAIL
