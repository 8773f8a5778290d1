"""Ports that other hosts can reach, whatever this machine calls itself.

Many systems know their own name by a loopback address (``127.0.1.1 node7`` in ``/etc/hosts``), and a name may stand for
several addresses. Who listens on the first of them only is refused by everybody else, and a refusal means here that the
process is gone.
"""

from __future__ import annotations

import ipaddress
import socket

__all__ = ["bound", "listen"]


def listen(host: str, port: int) -> socket.socket:
    """Listen at ``host:port``; arguments and errors as of ``bound``."""
    listener = bound(host, port)
    try:
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def bound(host: str, port: int) -> socket.socket:
    """A socket at ``host:port`` that does not listen yet; port 0 lets the system choose.

    It keeps nobody else from binding the port: the first one to listen has it, and ``listen`` tells the others.

    An address in figures (and ``localhost``) is bound exactly, so that several "hosts" of one machine do not see each
    other's ports. A name is served on all interfaces, for IPv4 and, where the system has it, IPv6.

    Raises:
        OSError: it is not one of this machine, or something listens there already (``EADDRINUSE``).
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if _is_literal(host) or host == "localhost":
        family, _, _, _, address = found[0]
        return _bound(family, address)  # with its zone, where it has one
    _check_own([(family, str(address[0])) for family, _, _, _, address in found])
    if socket.has_dualstack_ipv6():
        try:
            return _bound(socket.AF_INET6, ("::", port), dual=True)
        except OSError:
            pass  # compiled in and switched off; if the port is taken the next attempt says so, too
    return _bound(socket.AF_INET, ("", port))


def _bound(family: int, address: tuple[object, ...], dual: bool = False) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _check_own(addresses: list[tuple[int, str]]) -> None:
    """Whether a name is one of this machine's: one of its addresses can be bound."""
    problem: OSError | None = None
    for family, address in addresses:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address, 0))
        except OSError as error:
            problem = error
        else:
            return
    if problem is not None:
        raise problem


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
