"""Ports as a test needs them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def mute() -> Iterator[int]:
    """A port at which somebody listens and takes nobody: whoever asks hears nothing."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            caller = stack.enter_context(socket.socket())
            caller.settimeout(0.5)
            try:
                caller.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()[1]
