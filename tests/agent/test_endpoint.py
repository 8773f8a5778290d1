"""``--rdzv-endpoint``: which store it means, who we are to it, and what is refused before anything starts."""

from __future__ import annotations

import socket

import pytest

from ezpz_elastic import endpoint as module
from ezpz_elastic.endpoint import find_store
from ezpz_elastic.errors import UsageError
from ezpz_elastic.settings import Settings
from rendezvous.stores.etcd import EtcdStore
from rendezvous.stores.tcpstore import ForeignEndpoint, StoreServer, TcpStore

SECRET = "no-one-may-read-this"


def find(endpoint: str, environ: dict[str, str] | None = None, **settings: str):  # type: ignore[no-untyped-def]
    store, server = find_store(
        endpoint, "run", Settings(**settings), "127.0.0.9", environ if environ is not None else {}
    )
    store.close()
    return store, server


@pytest.mark.parametrize(
    ("endpoint", "members"),
    [
        ("etcd://h1:1,h2:2,h3:3", [("h1", 1), ("h2", 2), ("h3", 3)]),
        ("etcd://h1", [("h1", 2379)]),
        ("etcds://[fd00::1]:4,[fd00::2]", [("fd00::1", 4), ("fd00::2", 2379)]),
        ("etcd://h1:1/", [("h1", 1)]),
    ],
)
def test_etcd_is_named_by_its_members(endpoint, members):
    store, server = find(endpoint)
    assert isinstance(store, EtcdStore)
    assert server is None
    assert store._client._endpoints == members


def test_the_key_store_makes_a_plain_address_mean_etcd():
    assert isinstance(find("h1:2379", store="etcd")[0], EtcdStore)
    assert isinstance(find("127.0.0.8:1", store="tcp")[0], TcpStore)


@pytest.mark.parametrize(
    ("endpoint", "settings", "words"),
    [
        ("redis://h:1", {}, "no store of kind 'redis'; expected HOST:PORT, etcd://"),
        ("etcd://", {}, "expected etcd://HOST:PORT,HOST:PORT,…"),
        ("etcd://h:http", {}, "expected etcd://HOST:PORT,HOST:PORT,…"),
        (f"etcd://u:{SECRET}@h:1", {}, "a login in --rdzv-endpoint=etcd://…; expected EZPZ_ETCD_USER"),
        ("etcd://h:1", {"etcd_ca": "/x"}, "etcd_ca without TLS; expected etcds://"),
        ("etcds://h:1", {"etcd_ca": "/no/such.pem"}, "cannot read a certificate"),
        ("etcds://h:1", {"etcd_cert": "/x"}, "etcd_cert and etcd_key belong together"),
    ],
)
def test_what_cannot_be_is_one_line(endpoint, settings, words):
    with pytest.raises(UsageError) as caught:
        find(endpoint, **settings)
    assert words in caught.value.line()
    assert SECRET not in caught.value.line()


def test_a_password_is_taken_out_of_the_environment_that_workers_inherit():
    environ = {"EZPZ_ETCD_USER": "u", "EZPZ_ETCD_PASSWORD": SECRET}
    store, _ = find("etcd://h:1", environ)
    assert environ == {"EZPZ_ETCD_USER": "u"}
    assert SECRET not in repr(vars(store._client))


@pytest.mark.parametrize("there", ["EZPZ_ETCD_USER", "EZPZ_ETCD_PASSWORD"])
def test_half_a_login_is_refused_without_showing_it(there):
    with pytest.raises(UsageError, match=r"EZPZ_ETCD_\w+ is not set") as caught:
        find("etcd://h:1", {there: SECRET})
    assert SECRET not in caught.value.line()


def test_a_machine_that_knows_its_name_by_a_loopback_address_serves_at_its_name(monkeypatch):
    ask = socket.getaddrinfo
    named = {"node7": "127.0.1.1", "node8": "192.0.2.8"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: ask(named.get(host, host), *rest, **more))
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    assert module._is_mine("node7", "192.0.2.7")
    assert not module._is_mine("node8", "192.0.2.7")


@pytest.fixture
def holder():
    with socket.create_server(("127.0.0.9", 0)) as made:
        yield made


def endpoint_of(holder: socket.socket) -> str:
    return f"127.0.0.9:{holder.getsockname()[1]}"


@pytest.mark.parametrize("error", [TimeoutError, ConnectionRefusedError, ConnectionResetError])
def test_whoever_has_the_port_of_the_own_endpoint_and_says_nothing_may_still_go_or_speak(holder, error, monkeypatch):
    def goes(host: str, port: int) -> None:
        holder.close()
        raise error

    monkeypatch.setattr(module, "greet", goes)
    _, server = find(endpoint_of(holder))
    assert isinstance(server, StoreServer)
    server.close()


@pytest.mark.parametrize(("error", "patience"), [(TimeoutError, 0.0), (ForeignEndpoint, 3600.0)])
def test_a_port_of_the_own_endpoint_is_taken_after_a_wrong_word_at_once_and_after_a_long_silence(
    holder, error, patience, monkeypatch
):
    asked = []

    def says(host: str, port: int) -> None:
        asked.append(port)
        raise error

    monkeypatch.setattr(module, "SILENCE_PATIENCE", patience)
    monkeypatch.setattr(module, "greet", says)
    with pytest.raises(UsageError, match=r"port \d+ on 127.0.0.9 is taken by another program"):
        find(endpoint_of(holder))
    assert len(asked) == 1


def test_another_agent_of_the_job_on_this_machine_that_speaks_late_serves_it(monkeypatch):
    server = StoreServer("127.0.0.9", 0, "run")
    greet, early = module.greet, [TimeoutError()]

    def late(host: str, port: int) -> object:
        if early:
            raise early.pop()
        return greet(host, port)

    monkeypatch.setattr(module, "greet", late)
    store, second = find(server.endpoint)
    assert second is None
    assert isinstance(store, TcpStore)
    assert early == []
    server.close()
