"""What a stop signal does, and when it no longer does anything."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from ezpz_elastic.signals import StopSignals

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture
def stop() -> Iterator[StopSignals]:
    before = {signum: signal.getsignal(signum) for signum in STOPS}
    yield StopSignals(lambda: None, threading.Event(), lambda: None)
    for signum, handler in before.items():
        signal.signal(signum, handler)


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


def test_under_nohup_the_end_of_the_terminal_is_not_the_end_of_the_job():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopSignals(lambda: None, threading.Event(), lambda: None)
        with stop:
            signal.signal(signal.SIGHUP, lambda *_: pytest.fail("torch's handler"))
            stop.install()
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.received is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.received == signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_without_nohup_it_is():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with StopSignals(lambda: None, threading.Event(), lambda: None) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received == signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)
