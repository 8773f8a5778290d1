"""How long a step may take, who is behind, and where a process stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.builders import member
from support.fake_store import FakeStore, World

from ezpz_elastic.observe import progress, stacks
from ezpz_elastic.observe.hang import BUSY, LEAST, Standing, StepClock, behind, to_blame
from ezpz_elastic.observe.stacks import Place, look
from ezpz_elastic.stall import StallWatch
from rendezvous.records import Roster
from rendezvous.seat import Seat

INF = float("inf")


def clock(steps: list[float], given: float | None = None, startup: float = 0.0) -> StepClock:
    made = StepClock(given, startup)
    made.begin(0.0)
    now = 5.0
    made.see(0, now)
    for number, seconds in enumerate(steps, 1):
        now += seconds
        made.see(number, now)
    return made


@pytest.mark.parametrize(
    ("steps", "given", "expected"),
    [
        ([], None, INF),  # one step says nothing about the next one
        ([0.1] * 100, None, LEAST),
        ([20.0] * 100, None, 200.0),
        ([1.0] * 500 + [70.0], None, 210.0),  # a pause that training came back from
        ([20.0] * 100, 7.0, 7.0),
        ([20.0] * 100, 0.0, INF),
    ],
)
def test_the_limit_is_learned_from_the_steps_or_given(steps, given, expected):
    assert clock(steps, given).limit() == expected


def test_before_the_first_step_the_start_up_limit_holds_in_every_life():
    made = StepClock(3.0, 40.0)
    made.begin(0.0)
    assert made.limit() == 40.0
    made.see(4, 30.0)
    assert (made.limit(), made.waiting(31.0)) == (3.0, 1.0)
    made.begin(50.0)
    assert (made.limit(), made.waiting(51.0)) == (40.0, 1.0)


def test_waiting_for_a_checkpoint_is_no_step_and_has_a_longer_limit():
    made = clock([0.1] * 100)
    made.see(100, 20.0, busy=True)
    assert made.limit() == BUSY
    made.see(100, 320.0)
    assert (made.limit(), made.waiting(321.0)) == (LEAST, 1.0)
    assert clock([100.0] * 100).limit() > BUSY
    given = clock([0.1] * 100, given=7.0)
    given.see(100, 20.0, busy=True)
    assert given.limit() == 7.0


def test_a_step_that_is_told_again_is_no_progress():
    made = clock([1.0])
    made.see(1, 100.0)
    assert made.waiting(100.0) == 94.0


def test_many_steps_between_two_looks_count_as_what_each_took():
    made = StepClock(None, 0.0)
    made.begin(0.0)
    made.see(0, 0.0)
    made.see(10, 100.0)
    assert made.limit() == max(LEAST, 3 * 100.0)


def rank(number: int, step: int | None = 5, state: str = "S", place: Place = Place.COLLECTIVE) -> Standing:
    return Standing(number, f"h{number // 2}", step, state, place)


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        ([], []),
        ([rank(0), rank(1), rank(2)], []),
        ([rank(0), rank(1, state="T"), rank(2, step=4)], [1]),
        ([rank(0), rank(1, state="D"), rank(2)], [1]),
        ([rank(0, state="T"), rank(1, state="T")], []),  # all of them: a person, or the whole job is frozen
        ([rank(0), rank(1, step=4), rank(2)], [1]),
        ([rank(0), rank(1, step=None), rank(2)], []),
        ([rank(0), rank(1, place=Place.ELSEWHERE), rank(2)], [1]),
        ([rank(0), rank(1, place=Place.ELSEWHERE), rank(2, place=Place.UNKNOWN)], []),
        ([rank(0, place=Place.ELSEWHERE), rank(1, place=Place.ELSEWHERE)], []),
        ([rank(0), rank(1, place=Place.ELSEWHERE)], [1]),
        # What most ranks do is how this program waits: for a device, or in a call that Python frames do not show.
        ([rank(0), rank(1, place=Place.ELSEWHERE), rank(2, place=Place.ELSEWHERE)], []),
        ([rank(0, step=6), rank(1), rank(2)], []),
    ],
)
def test_who_is_behind(standings, expected):
    assert [item.rank for item in behind(standings)] == expected


def test_who_was_looked_at_first_is_not_behind_a_job_that_goes_on():
    """Our own signal may end the sleep that a rank was stuck in; it is looked at after it has made further steps."""
    looks = [rank(0, step=126), rank(1, step=132)]
    assert behind(looks) == [looks[0]], "so it looks"
    assert to_blame(looks, {0: 132, 1: 132}, 2) == []
    assert to_blame(looks, {0: 126, 1: 133}, 2) == []
    assert to_blame(looks, {0: 126, 1: 132}, 2) == [looks[0]], "it still stands there, and the other is ahead"


def test_nobody_is_behind_ranks_of_which_nothing_is_known():
    looks = [rank(0), rank(1, place=Place.ELSEWHERE)]
    assert to_blame(looks, {0: 5, 1: 5}, 2) == [looks[1]]
    assert to_blame(looks, {0: 5, 1: 5}, 3) == [], "one rank's agent has not told"
    assert to_blame(looks, {0: 5}, 2) == [], "nobody knows whether rank 1 has gone on"
    stopped = [rank(0), rank(1, state="T")]
    assert to_blame(stopped, {0: 5}, 3) == [stopped[1]], "a stopped process is what it is"


class Counting(FakeStore):
    """A store that counts what is asked of it."""

    asked = 0

    def create(self, key: str, value: bytes) -> bytes:
        self.asked += 1
        return super().create(key, value)

    def get(self, key: str) -> bytes | None:
        self.asked += 1
        return super().get(key)

    def wait(self, key: str, timeout: float) -> bytes | None:
        self.asked += 1
        return super().wait(key, timeout)


class Standstill:
    """A round in which no rank makes steps: one on each host, and one of them has made fewer than the others."""

    def __init__(self, hosts: int, last: int) -> None:
        self.world, self.last = World(), last
        self.roster = Roster(1, tuple(member(f"h{slot}") for slot in range(hosts)))
        self.watches: list[StallWatch] = []

    def standing(self, slot: int) -> Standing:
        return Standing(slot, f"h{slot}", 6 if slot == self.last else 7, "S", Place.COLLECTIVE)

    def told(self, slots: range) -> None:
        """These hosts' agents have told of their ranks."""
        store = FakeStore(self.world)
        for slot in slots:
            rank = self.standing(slot)
            store.create(f"round/1/stall/{slot}", msgspec.json.encode([rank]))
            store.create(f"round/1/stalled/{slot}", msgspec.json.encode({rank.rank: rank.step}))

    def watch(self, slot: int) -> Counting:
        """Begin to watch as this slot's agent."""
        rank, store = self.standing(slot), Counting(self.world)
        ranks: Any = SimpleNamespace(
            step=lambda: 7, busy=lambda: False, look=lambda: [rank], steps=lambda: {slot: rank.step}
        )
        seat = Seat(self.roster, slot, "127.0.0.1", 1)
        self.watches.append(StallWatch(ranks, StepClock(0.1, 0.0), seat, store, lambda: False, lambda: None))
        return store

    def found(self) -> list[tuple[tuple[int, str], ...]]:
        """Whom each of the watches has found to be behind."""
        for watch in self.watches:
            watch.join(60)
            watch.stop()
        return [watch.found.behind for watch in self.watches if watch.found is not None]


def test_a_thousand_hosts_compare_their_ranks_with_few_operations_each():
    hang = Standstill(hosts=1000, last=700)
    hang.told(range(1, 1000))
    first = hang.watch(0)
    assert hang.found() == [((700, "h700"),)]
    assert first.asked <= 2 * 1000 + 10
    another = hang.watch(1)
    assert hang.found() == [((700, "h700"),)] * 2
    assert another.asked <= 10


def test_all_agents_find_the_same_however_they_meet():
    hang = Standstill(hosts=8, last=3)
    for slot in range(8):
        hang.watch(slot)
    assert hang.found() == [((3, "h3"),)] * 8


def test_a_rank_is_found_although_the_agent_that_noticed_it_first_tells_nothing_more(monkeypatch):
    wait = Counting.wait

    def hurried(self: Counting, key: str, timeout: float) -> bytes | None:
        """In vain, so not for long; what one of the others is about to say is waited for as ever."""
        return wait(self, key, 0.05 if key.endswith("/looked") else timeout)

    monkeypatch.setattr(Counting, "wait", hurried)
    hang = Standstill(hosts=3, last=2)
    FakeStore(hang.world).create("round/1/stall", b"0")
    hang.told(range(1))
    hang.watch(1)
    hang.watch(2)
    assert hang.found() == [((2, "h2"),)] * 2


def test_nobody_is_behind_if_the_agent_that_has_seen_all_ranks_is_gone(monkeypatch):
    monkeypatch.setattr("ezpz_elastic.stall.FIRST_PATIENCE", 0.05)
    hang = Standstill(hosts=3, last=2)
    FakeStore(hang.world).create("round/1/stall", b"0")
    FakeStore(hang.world).create("round/1/looked", b"all")
    hang.told(range(1))
    hang.watch(1)
    hang.watch(2)
    assert hang.found() == [()] * 2


def test_a_host_that_tells_nothing_hides_no_stopped_process_behind_it(monkeypatch):
    monkeypatch.setattr("ezpz_elastic.stall.PATIENCE", 0.1)
    hang = Standstill(hosts=4, last=-1)
    hang.told(range(3))
    stopped = Standing(3, "h3", 7, "T")
    FakeStore(hang.world).create("round/1/stall/3", msgspec.json.encode([stopped]))
    for key in ("stall/2", "stalled/2"):
        del hang.world.records[f"round/1/{key}"]
    hang.watch(0)
    assert hang.found() == [((3, "h3"),)]


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([], Place.UNKNOWN),
        (["load (train.py:3)", "<module> (train.py:9)"], Place.ELSEWHERE),
        (["all_reduce (torch/distributed/distributed_c10d.py:3)", "step (train.py:9)"], Place.COLLECTIVE),
        (["__call__ (torch/_ops.py:1)", "f (torch/distributed/_functional_collectives.py:7)"], Place.COLLECTIVE),
        (["_engine_run_backward (torch/autograd/graph.py:8)", "step (train.py:9)"], Place.COLLECTIVE),
        # The model's own code is stuck, inside DDP's forward pass.
        (["forward (model.py:3)", "_call_impl (torch/nn/modules/module.py:1)", "f (torch/nn/parallel/ddp.py:2)"],
         Place.ELSEWHERE),
        (["write (torch/distributed/checkpoint/filesystem.py:2)", "save (train.py:9)"], Place.ELSEWHERE),
        (["gather (torch/distributed/distributed_c10d.py:3)", "f (torch/distributed/checkpoint/utils.py:2)"],
         Place.COLLECTIVE),
    ],
)  # fmt: skip
def test_where_a_rank_stands_is_what_its_innermost_telling_frame_says(frames, place):
    assert stacks._place(frames) is place


SCRIPT = """
import sys, threading
from ezpz_elastic import progress
def stuck():
    print("here", flush=True)
    threading.Event().wait()
progress(1)
stuck()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    progress.create(tmp_path / "progress")
    env = {
        **os.environ,
        progress.PROGRESS_FILE: str(tmp_path / "progress"),
        stacks.STACKS_FILE: str(tmp_path / "answer"),
    }
    (tmp_path / "script.py").write_text(SCRIPT)
    with subprocess.Popen([sys.executable, tmp_path / "script.py"], env=env, stdout=subprocess.PIPE) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == b"here\n"
        yield made
        made.kill()


def test_a_process_answers_by_signal_where_py_spy_cannot_be_had(process, tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "_by_spy", lambda pid: "")
    monkeypatch.setattr(stacks, "SIGNAL_PATIENCE", 60.0)
    seen = look(process.pid, tmp_path / "answer")
    assert seen.place is Place.ELSEWHERE
    assert "in stuck" in seen.text
    assert seen.frame.startswith("File ")
    assert process.poll() is None


HALTING = """
import os, signal, time
def answer(*_):
    with open(os.environ["ANSWER"], "w") as file:
        file.write("Thread 0x01 (most recent call first):\\n  File \\"queue.py\\", line 1 in all_reduce\\n")
        file.flush()
        time.sleep(0.2)  # far longer than from one look to the next
        file.write("\\nThread 0x02 (most recent call first):\\n  File \\"job.py\\", line 2 in load\\n")
        file.write("  File \\"job.py\\", line 9 in <module>\\n")
signal.signal(signal.SIGUSR2, answer)
print("here", flush=True)
while True:
    signal.pause()
"""


def test_an_answer_that_stops_for_a_while_is_awaited_to_the_main_threads_end(tmp_path, monkeypatch):
    """Else the frames of another thread would pass for the main thread's."""
    monkeypatch.setattr(stacks, "_by_spy", lambda pid: "")
    monkeypatch.setattr(stacks, "SIGNAL_PATIENCE", 60.0)
    answer = tmp_path / "answer"
    answer.touch()
    env = {**os.environ, "ANSWER": str(answer)}
    with subprocess.Popen([sys.executable, "-c", HALTING], env=env, stdout=subprocess.PIPE) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == b"here\n"
        seen = look(made.pid, answer)
        made.kill()
    assert "in all_reduce" in seen.text
    assert seen.frame == 'File "job.py", line 2 in load'


def test_a_process_that_answers_nothing_is_left_alone_and_the_kernel_still_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "_by_spy", lambda pid: "")
    with subprocess.Popen(["sleep", "100"]) as made:
        seen = look(made.pid, tmp_path / "answer")
        assert (seen.place, made.poll()) == (Place.UNKNOWN, None)
        assert "waits in" in seen.text
        made.kill()


def test_a_process_whose_name_is_no_text_can_be_looked_at(tmp_path):
    # A name is cut off after 15 bytes, in the middle of a character if need be.
    name = "ctypes.CDLL(None).prctl(15, 'entraînement-ü-é'.encode())"
    program = f"import ctypes, time; {name}; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as named:
        assert named.stdout is not None
        named.stdout.readline()
        with pytest.raises(UnicodeDecodeError):
            Path(f"/proc/{named.pid}/comm").read_bytes().decode()
        assert stacks.process_state(named.pid) in {"S", "R"}
        assert f"process {named.pid}" in look(named.pid, tmp_path / "none").text
        named.kill()


def test_a_stopped_process_is_seen_as_stopped(process, tmp_path):
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert look(process.pid, tmp_path / "answer").state == "T"


def test_a_process_that_is_gone_has_no_state(tmp_path):
    with subprocess.Popen(["true"]) as made:
        made.wait()
    assert look(made.pid, tmp_path / "answer").state == ""
