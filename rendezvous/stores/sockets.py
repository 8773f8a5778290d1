"""Time limits for the connections of torch's store client, which has none of its own.

torch limits how long it waits for a key, and nothing else: a request to a server that has stopped, or whose host has
lost its power, blocks for ever, and one that was sent into a short cut of the network waits for TCP's long pauses. The
kernel limits both if the socket asks for it. torch does not give its socket away, so it is looked for: it is one of
this process's that lead to the store's port and were not there before. If another thread dials the same store in the
same moment its socket may be given these limits first; it sets its own afterwards, and whoever is cut off dials anew.
A process may have thousands, so only the descriptors from the lowest free one on are looked at: the new one is among
them, unless a lower one was closed in that moment. Then all are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

__all__ = ["limited"]

logger = logging.getLogger(__name__)

_HEARD = struct.Struct("=Q")
_HEARD_AT = 128
"""Where Linux's ``struct tcp_info`` has ``tcpi_bytes_received``."""


@contextmanager
def limited(port: int, answer: float, unheard: float | None = None) -> Iterator[None]:
    """Limit the connection to ``port`` that is made inside this context.

    Args:
        port: the store's.
        answer: seconds after which a request without an answer fails, and a first contact without one too.
        unheard: seconds after which a connection fails on which the other host acknowledges nothing; the system's
            quarter of an hour if ``None``.

    Raises:
        OSError: the process may not open another descriptor.
    """
    lowest = _lowest_free()
    before, made = _sockets(lowest).keys(), threading.Event()
    words = (port, before, lowest, answer, made)
    guard = threading.Thread(target=_end_silent, args=words, name="ezpz-dial", daemon=True)
    guard.start()
    try:
        yield
    finally:
        made.set()
        guard.join()
    for connection in _made_since(before, lowest, port):
        _limit(connection, answer, unheard)


def _limit(connection: socket.socket, answer: float, unheard: float | None) -> None:
    seconds = struct.pack("@ll", int(answer), int(answer % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
    if unheard is not None:
        # For what was sent; and, by questions of the kernel's own once a second, for an answer that was lost.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(unheard * 1000)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)


def _end_silent(port: int, before: Set[str], lowest: int, seconds: float, made: threading.Event) -> None:
    """While torch connects: end what was accepted and then never answered, which it would wait for without limit."""
    while not made.wait(seconds):
        for connection in _made_since(before, lowest, port):
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _HEARD_AT + _HEARD.size)
            if len(info) == _HEARD_AT + _HEARD.size and _HEARD.unpack_from(info, _HEARD_AT) == (0,):
                logger.debug("a connection to port %d was accepted and never answered", port)
                with contextlib.suppress(OSError):  # it has ended by itself
                    connection.shutdown(socket.SHUT_RDWR)


def _lowest_free() -> int:
    number = os.open("/proc/self/fd", os.O_RDONLY | os.O_CLOEXEC)
    os.close(number)
    return number


def _sockets(lowest: int) -> dict[str, int]:
    """This process's sockets from a descriptor on: the kernel's name, which outlives its reuse, and the descriptor."""
    found = {}
    for path in os.scandir("/proc/self/fd"):
        number = int(path.name)
        if number < lowest:
            continue
        with contextlib.suppress(OSError):  # closed meanwhile
            name = str(Path(path).readlink())
            if name.startswith("socket:"):
                found[name] = number
    return found


def _made_since(before: Set[str], lowest: int, port: int) -> Iterator[socket.socket]:
    """The sockets connected to ``port`` that were not there before, as descriptors of our own."""
    found = False
    for connection in _connected(before, lowest, port):
        found = True
        yield connection
    if not found and lowest:
        yield from _connected(before, 0, port)


def _connected(before: Set[str], lowest: int, port: int) -> Iterator[socket.socket]:
    for name, number in _sockets(lowest).items():
        if name in before:
            continue
        try:
            blocking, own = os.get_blocking(number), os.dup(number)
        except OSError:
            continue  # closed meanwhile
        try:
            connection = socket.socket(fileno=own)
        except OSError:  # another thread has opened a file under that number meanwhile
            os.close(own)
            continue
        with connection:
            os.set_blocking(own, blocking)  # a default timeout of this process's Python is not for torch's sockets
            if connection.family not in {socket.AF_INET, socket.AF_INET6} or connection.type != socket.SOCK_STREAM:
                continue
            with contextlib.suppress(OSError):  # not connected (any more)
                if connection.getpeername()[1] == port:
                    yield connection
