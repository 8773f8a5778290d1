"""What goes wrong in an agent itself is told like a failure of its workers, and the agent obeys like any other."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.builders import decision, member
from support.fake_store import FakeStore, World
from torch.distributed.elastic.agent.server.api import Worker

from ezpz_elastic.agent import EzpzElasticAgent
from ezpz_elastic.console import Console
from ezpz_elastic.decide.evidence import Evidence, WorkerExit
from ezpz_elastic.journal import Journal
from ezpz_elastic.observe.hang import StepClock
from ezpz_elastic.observe.kernel import KernelLog
from ezpz_elastic.observe.launcher import LauncherLog
from ezpz_elastic.observe.oom import OomWatch
from ezpz_elastic.round_watch import Eyes, RoundWatch
from ezpz_elastic.walltime import Walltime
from rendezvous.links import RoundLink
from rendezvous.liveness import Listener
from rendezvous.records import Outcome, Report, Roster, decode_message, encode
from rendezvous.replay import decision_key
from rendezvous.seat import NotServed, Seat


class Lonely:
    """An agent in round 1 whose store is in memory; whatever it reports is answered by one decision."""

    def __init__(self, directory: Path) -> None:
        self.world, self.journal = World(), Journal(directory, "h1", "job")
        self.reports: list[Report] = []
        me = member("h1", workers=2)
        self.seat = Seat(Roster(1, (me,)), 0, "127.0.0.1", 1)
        read, write = os.pipe2(os.O_NONBLOCK)
        handler: Any = SimpleNamespace(
            member=me,
            journal=self.journal,
            round=1,
            listener=Listener("127.0.0.1"),
            watch=lambda seat, wake: RoundLink(FakeStore(self.world), seat.roster.round, wake),
            connection=lambda: FakeStore(self.world),
            coordination_failure=lambda: None,
            patience=10.0,
        )
        signals: Any = SimpleNamespace(received=None)
        agent: Any = EzpzElasticAgent.__new__(EzpzElasticAgent)
        agent._handler, agent._journal, agent._signals = handler, self.journal, signals
        agent._console, agent._logs = Console(), SimpleNamespace(files={})
        workers, spec = [Worker(0, 0, 0, 2, 2), Worker(1, 1, 1, 2, 2)], SimpleNamespace(local_world_size=2)
        agent._worker_group = SimpleNamespace(workers=workers, spec=spec)
        agent._pcontext, agent._watch, agent._unkillable = None, None, []
        agent._eyes = Eyes(
            handler=handler,
            console=agent._console,
            signals=signals,
            clock=StepClock(0, 0.0),
            oom=OomWatch(None, KernelLog()),
            health=SimpleNamespace(),  # type: ignore[arg-type]  # nobody fails here but the agent
            walltime=Walltime(None, 1.0, False),
            launcher=LauncherLog(None),
            wake_read=read,
            wake=lambda: os.write(write, b"."),  # type: ignore[arg-type, return-value]
        )
        self.agent = agent
        self.coordinator = threading.Thread(target=self._decide)
        self.coordinator.start()

    def _decide(self) -> None:
        with self.world.changed:
            assert self.world.changed.wait_for(lambda: self.world.inbox, timeout=30)
        message = decode_message(self.world.inbox[0], "inbox/1")
        assert isinstance(message, Report)
        self.reports.append(message)
        FakeStore(self.world).create(decision_key(1), encode(decision(1)))

    def evidence(self) -> list[Evidence]:
        self.coordinator.join(30)
        (report,) = self.reports
        assert report.outcome is Outcome.FAILED
        return msgspec.json.decode(report.evidence, type=list[Evidence])


def test_workers_that_cannot_be_started_are_failures_of_each_of_them(tmp_path: Path):
    lonely = Lonely(tmp_path)

    def no_space(seat: Seat) -> None:
        raise OSError(28, "No space left on device", "/runs/job/rounds/1/0")

    lonely.agent._begin = no_space
    assert lonely.agent._live_through(lonely.seat).round == 1
    told = lonely.evidence()
    assert [(item.rank, item.error.type) for item in told if isinstance(item, WorkerExit) and item.error] == [
        (0, "OSError"),
        (1, "OSError"),
    ]
    assert '"agent_failed"' in (tmp_path / "journal" / "h1.jsonl").read_text()


def test_a_rounds_store_that_cannot_be_served_is_told_like_workers_that_cannot_be_started(tmp_path: Path):
    lonely = Lonely(tmp_path)
    problem = NotServed("the round's store cannot be served at h1: [Errno 24] Too many open files")
    seat = replace(lonely.seat, master_port=0, problem=problem)
    assert lonely.agent._live_through(seat).round == 1
    exits = [item for item in lonely.evidence() if isinstance(item, WorkerExit)]
    assert [item.error for item in exits] == [None, None], "no exception of the program"
    assert exits[0].unseen == f"it was not started: {problem}"


def test_a_watch_that_cannot_begin_leaves_nothing_running_and_the_next_ones_report_is_no_repeat(tmp_path: Path):
    lonely, begin, links = Lonely(tmp_path), Walltime.begin, threading.Event()

    def once(walltime: Walltime, files: Any) -> None:
        links.set()
        raise OSError(24, "Too many open files")

    before = next(lonely.agent._eyes.numbers)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Walltime, "begin", once)
        with pytest.raises(OSError, match="Too many open files"):
            RoundWatch(lonely.agent._eyes, lonely.seat, None, [], {})
    assert links.is_set()
    assert Walltime.begin is begin
    assert [thread.name for thread in threading.enumerate() if thread.name in {"ezpz-round", "ezpz-stall"}] == []
    lonely.agent._begin = lambda seat: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    assert lonely.agent._live_through(lonely.seat).round == 1
    lonely.evidence()
    assert lonely.reports[0].seq > before


def test_an_error_that_nobody_has_thought_of_is_no_exception_of_the_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    lonely = Lonely(tmp_path)

    def surprise(seat: Seat) -> None:
        raise KeyError("caf\udce9")

    lonely.agent._begin = surprise
    assert lonely.agent._live_through(lonely.seat).round == 1
    exits = [item for item in lonely.evidence() if isinstance(item, WorkerExit)]
    assert [item.error for item in exits] == [None, None]
    assert exits[0].unseen.startswith("its agent failed: KeyError")
    assert "the agent of h1 failed in round 1" in caplog.text
