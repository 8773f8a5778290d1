"""What a stop signal does, and when it no longer does anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from ezpz_elastic.signals import StopSignals

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture
def woken() -> threading.Event:
    return threading.Event()


@pytest.fixture
def stop(woken: threading.Event) -> Iterator[StopSignals]:
    before = {signum: signal.getsignal(signum) for signum in STOPS}
    yield StopSignals(woken.set, threading.Event(), lambda: None)
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_a_signal_is_noted_and_raises_nothing(stop, woken):
    with stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert woken.wait(30)
        assert stop.received == signal.SIGTERM


def test_whatever_lock_the_main_thread_holds_a_signal_does_what_it_has_to():
    """In a process of its own: where it does not, that process never ends."""
    code = """
import os, signal, threading
from ezpz_elastic.signals import StopSignals
flag, servers, hurried = threading.Event(), threading.Lock(), threading.Event()

def hurry():
    with servers:
        hurried.set()

with StopSignals(lambda: None, flag, hurry) as stop:
    with flag._cond:  # as Event.wait does, on its way to sleep and back
        os.kill(os.getpid(), signal.SIGTERM)
    assert flag.wait(30)
    with servers:
        os.kill(os.getpid(), signal.SIGINT)
    assert hurried.wait(30)
print(stop.received, flag.is_set())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "15 True\n"


def test_a_signal_to_a_process_that_was_forked_from_the_agent_is_that_processs_own(stop, woken):
    ready, tell = os.pipe()
    with stop:
        child = os.fork()
        if not child:
            os.write(tell, b".")
            for _ in range(3000):  # no longer than the test
                time.sleep(0.01)  # not one long call: a signal just before it would wait for its end
            os._exit(0)
        assert os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        assert woken.wait(30)
        assert stop.received == signal.SIGINT, "the first one that this process was sent"
    os.close(ready)
    os.close(tell)


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


def test_under_nohup_the_end_of_the_terminal_is_not_the_end_of_the_job(woken):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(woken.set, threading.Event(), lambda: None) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            assert woken.wait(30)
            assert stop.received == signal.SIGTERM
            shown = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)"]
            assert subprocess.check_output(shown) == b"True\n", "workers have it at its default, as torch's"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_without_nohup_it_is(woken):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with StopSignals(woken.set, threading.Event(), lambda: None) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert woken.wait(30)
        assert stop.received == signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)
