"""What a stop signal does, and when it no longer does anything."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from ezpz_elastic.signals import StopSignals


@pytest.fixture
def stop() -> Iterator[StopSignals]:
    before = signal.getsignal(signal.SIGTERM)
    yield StopSignals(lambda: None, threading.Event(), lambda: None)
    signal.signal(signal.SIGTERM, before)


def test_a_signal_is_noted_and_raises_nothing(stop):
    with stop:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.received == signal.SIGTERM


def test_what_was_there_before_is_put_back(stop):
    before = signal.getsignal(signal.SIGTERM)
    with stop:
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_after_the_exit_code_is_settled_does_not_replace_it(stop):
    with pytest.raises(SystemExit), stop:
        raise SystemExit(7)
    with pytest.raises(SystemExit) as again:
        os.kill(os.getpid(), signal.SIGTERM)
    assert again.value.code == 7
