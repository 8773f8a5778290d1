"""Where the job's store is: ``--rdzv-endpoint`` and the keys of ``--rdzv-conf`` that belong to it -> a connection.

``HOST:PORT`` is the embedded store, served by the agent on that host. ``etcd://H1:P1,H2:P2`` is etcd, ``etcds://``
etcd over TLS. Who we are to etcd comes from ``EZPZ_ETCD_USER`` and ``EZPZ_ETCD_PASSWORD``, and from nowhere else.
"""

from __future__ import annotations

import socket
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz_elastic.errors import UsageError
from ezpz_elastic.settings import Settings
from rendezvous.stores import Store
from rendezvous.stores.tcpstore import AddressTaken, ForeignEndpoint, StoreServer, TcpStore, greet

if TYPE_CHECKING:
    from rendezvous.stores.etcd_client import Login

__all__ = ["find_store", "reach_store"]

DEFAULT_PORT = 29500
"""torchrun's own default port."""

SILENCE_PATIENCE = 10.0
"""Seconds in which whoever has the port of an endpoint on this machine has to speak: another agent of the job does so
in milliseconds, but perhaps not on a machine that is this busy."""

SILENCE_LOOK = 0.25
"""Seconds between two attempts meanwhile; the port may be given back, too."""

ETCD_PORT = 2379
"""etcd's own default port."""

ETCD_USER, ETCD_PASSWORD = "EZPZ_ETCD_USER", "EZPZ_ETCD_PASSWORD"

_HINT = "the first host's address and a free port, the same on every host: --rdzv-endpoint=HOST:29500"
_ETCD_HINT = "name etcd's members: --rdzv-endpoint=etcd://HOST:2379,HOST:2379,HOST:2379"


def find_store(
    endpoint: str, run_id: str, settings: Settings, local_addr: str | None, environ: MutableMapping[str, str]
) -> tuple[Store, StoreServer | None]:
    """The agent's first connection, and the server behind it if this agent has to serve the store.

    Args:
        endpoint: ``--rdzv-endpoint``.
        run_id: ``--rdzv-id``.
        settings: from ``--rdzv-conf``.
        local_addr: ``--local-addr``.
        environ: where the login is; the password is taken out, so that no worker inherits it.

    Raises:
        UsageError: something in it cannot be; nothing has been started.
    """
    if _etcd_members(endpoint, settings) is not None:
        return reach_store(endpoint, run_id, settings, environ), None
    host, port = _one_host(endpoint)
    server = _serve(host, port, run_id) if _is_mine(host, local_addr) else None
    return TcpStore(host, server.port if server is not None else port, run_id), server


def reach_store(endpoint: str, run_id: str, settings: Settings, environ: MutableMapping[str, str]) -> Store:
    """A connection to a store that others serve; arguments and errors as of ``find_store``."""
    members = _etcd_members(endpoint, settings)
    if members is None:
        return TcpStore(*_one_host(endpoint), run_id)
    from rendezvous.stores.etcd import EtcdStore
    from rendezvous.stores.etcd_client import Credentials, EtcdClient

    files = {"ca": settings.etcd_ca, "cert": settings.etcd_cert, "key": settings.etcd_key}
    given = {name: Path(path) for name, path in files.items() if path}
    secure = endpoint.strip().startswith("etcds://")
    if given and not secure:
        raise UsageError(f"etcd_{next(iter(given))} without TLS", expected=f"etcds:// in --rdzv-endpoint={endpoint}")
    if ("cert" in given) != ("key" in given):
        raise UsageError("etcd_cert and etcd_key belong together", expected="both or none in --rdzv-conf")
    try:
        tls = Credentials(**given).load() if secure else None
    except OSError as error:
        raise UsageError(f"cannot read a certificate: {error}", expected="readable PEM files") from error
    return EtcdStore(EtcdClient(members, tls, _login(environ)), run_id, keep=settings.keep == "on")


def _login(environ: MutableMapping[str, str]) -> Login | None:
    from rendezvous.stores.etcd_client import Login

    user, password = environ.get(ETCD_USER, ""), environ.pop(ETCD_PASSWORD, "")
    if bool(user) != bool(password):
        missing = ETCD_PASSWORD if user else ETCD_USER
        raise UsageError(f"{missing} is not set", expected=f"both {ETCD_USER} and {ETCD_PASSWORD}, or neither")
    return Login(user, password) if user else None


def _etcd_members(endpoint: str, settings: Settings) -> list[tuple[str, int]] | None:
    """etcd's members; ``None`` if the endpoint means the embedded store."""
    scheme, separator, rest = endpoint.strip().rpartition("://")
    if not separator and settings.store != "etcd":
        return None
    if separator and scheme not in {"etcd", "etcds"}:
        expected = "HOST:PORT, etcd://HOST:PORT,… or etcds://HOST:PORT,…"
        raise UsageError(f"--rdzv-endpoint={endpoint}: no store of kind {scheme!r}", expected=expected, hint=_HINT)
    if "@" in rest:
        told = f"a login in --rdzv-endpoint={scheme or 'etcd'}://…"
        raise UsageError(told, expected=f"{ETCD_USER} and {ETCD_PASSWORD} in the environment", hint=_ETCD_HINT)
    members = [_host_and_port(member, ETCD_PORT) for member in rest.strip("/").split(",") if member]
    wrong = [member for member in members if member is None]
    if wrong or not members:
        raise UsageError(f"--rdzv-endpoint={endpoint}", expected="etcd://HOST:PORT,HOST:PORT,…", hint=_ETCD_HINT)
    return [member for member in members if member is not None]


def _one_host(endpoint: str) -> tuple[str, int]:
    if not endpoint.strip():
        raise UsageError("no --rdzv-endpoint", expected="HOST:PORT", hint=_HINT)
    found = _host_and_port(endpoint, DEFAULT_PORT)
    if found is None:
        raise UsageError(f"--rdzv-endpoint={endpoint}", expected="HOST:PORT", hint=_HINT)
    return found


def _host_and_port(text: str, default: int) -> tuple[str, int] | None:
    host, colon, port = text.strip().rpartition(":")
    if not colon or text.strip().endswith("]"):
        return text.strip().strip("[]"), default
    if not host or not port.isdigit() or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)


def _addresses(host: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise UsageError(f"cannot resolve {host!r}: {error}", expected="a host name or address") from error


def _is_mine(endpoint: str, local_addr: str | None) -> bool:
    """Whether this agent is the one at the endpoint: by ``--local-addr``, else by the addresses of this machine.

    Many a machine knows its own name by a loopback address, which ``--local-addr`` is not: its name is its own anyway.
    """
    addresses = _addresses(endpoint)
    if local_addr:
        own = {socket.gethostname().lower(), socket.getfqdn().lower()}
        return endpoint.lower() in own or bool(addresses & _addresses(local_addr))
    return any(_can_bind(address) for address in addresses)


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _serve(host: str, port: int, run_id: str) -> StoreServer | None:
    """Serve the store; ``None`` if another agent of this job on this machine does so already."""
    deadline = time.monotonic() + SILENCE_PATIENCE
    while True:
        try:
            return StoreServer(host, port, run_id)
        except AddressTaken as error:
            try:
                greet(host, port)
            except (ForeignEndpoint, OSError) as answer:
                if isinstance(answer, ForeignEndpoint) or time.monotonic() >= deadline:
                    hint = "choose another port in --rdzv-endpoint, or end what uses this one"
                    raise UsageError(f"port {port} on {host} is taken by another program", hint=hint) from error
                time.sleep(SILENCE_LOOK)
            else:
                return None
