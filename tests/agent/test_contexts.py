"""Workers are started without torch's handlers of signals, which raise wherever the agent stands."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, start_processes
from torch.distributed.elastic.multiprocessing.api import SignalException

from ezpz_elastic.contexts import cold_context
from ezpz_elastic.signals import StopSignals


class Interrupting(dict[int, tuple[str, ...]]):
    """Arguments of workers; while those of the second one are looked up, which starts it, a signal arrives."""

    def __getitem__(self, local_rank: int) -> tuple[str, ...]:
        if local_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().__getitem__(local_rank)


def arguments(directory: Path) -> dict[str, Any]:
    return {
        "name": "trainer",
        "entrypoint": "sleep",
        "args": Interrupting(dict.fromkeys(range(3), ("100",))),
        "envs": {rank: {"RANK": str(rank)} for rank in range(3)},
        "logs_specs": DefaultLogsSpecs(log_dir=str(directory)),
    }


def nap() -> None:
    signal.pause()


def test_a_signal_that_arrives_while_workers_are_started_is_ours_and_all_of_them_are_known(tmp_path: Path):
    woken = threading.Event()
    with StopSignals(woken.set, threading.Event(), lambda: None) as stop:
        context: PContext = cold_context("spawn", **arguments(tmp_path))
        try:
            context.start()
            assert woken.wait(30)
            assert stop.received == signal.SIGTERM
            assert len(context.pids()) == 3
        finally:
            context.close(signal.SIGKILL)


def test_under_torchs_own_start_it_is_an_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The witness of the test above. Whom torch has started by then nobody knows, so there is no second worker here."""
    monkeypatch.setattr("torch.distributed.elastic.multiprocessing.api.get_subprocess_handler", lambda **_: None)
    before = signal.getsignal(signal.SIGTERM)
    others = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)}
    try:
        with pytest.raises(SignalException):
            start_processes(**arguments(tmp_path))
    finally:
        for signum, handler in {**others, signal.SIGTERM: before}.items():
            signal.signal(signum, handler)


def test_workers_that_are_functions_leave_the_handlers_alone_too(tmp_path: Path):
    before = signal.getsignal(signal.SIGTERM)
    functions = {"entrypoint": nap, "args": dict.fromkeys(range(3), ())}
    context: PContext = cold_context("spawn", **{**arguments(tmp_path), **functions})
    try:
        context.start()
        assert signal.getsignal(signal.SIGTERM) is before
        assert len(context.pids()) == 3
    finally:
        context.close(signal.SIGKILL)
