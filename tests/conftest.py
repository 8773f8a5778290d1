"""For all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Signals as a terminal would leave them.

    A run in the background (``nohup``, a shell's ``&``) inherits them ignored, and so would every process of a test.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
