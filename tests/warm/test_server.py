"""The fork server and its keeper: what is imported ahead, what is refused, what happens when one of them is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.fake_store import FakeStore, World
from support.frozen import halt

from ezpz_elastic.warm import client as client_module
from ezpz_elastic.warm import keeper as keeper_module
from ezpz_elastic.warm.client import UNKNOWN, ServerGone, Unfit, WarmServer
from ezpz_elastic.warm.keeper import KEY, WarmWorkers, can_be_warm

SHOW = "import sys; print(*[n for n in ('colorsys', 'neighbour', 'sndhdr_none') if n in sys.modules], flush=True)"
THREADED = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "restless.py").write_text(THREADED)
    monkeypatch.setenv("PYTHONPATH", str(libraries))
    monkeypatch.setattr(keeper_module, "ALWAYS", ())
    monkeypatch.setattr(keeper_module, "STEP_LOOK", 0.01)
    monkeypatch.setattr(keeper_module, "STORE_LOOK", 0.01)
    program = tmp_path / "program"
    program.mkdir()
    (program / "neighbour.py").write_text("")
    (program / "script.py").write_text(SHOW + "\nimport colorsys, neighbour\nimport time\ntime.sleep(100)")
    return tmp_path


@pytest.fixture
def workers(place: Path) -> Iterator[Callable[..., WarmWorkers]]:
    made: list[WarmWorkers] = []

    def make(*more: str) -> WarmWorkers:
        made.append(WarmWorkers([sys.executable, "-u", "program/script.py"], more, "tag-of-a-test", place))
        return made[-1]

    yield make
    for item in made:
        item.close()


def never() -> bool:
    return False


def run(server: WarmServer, place: Path, record: Path | None = None) -> tuple[object, str]:
    """Start the script and wait for its line."""
    out = place / "out.txt"
    with out.open("w") as stdout:
        worker = server.fork(["program/script.py"], dict(os.environ), stdout.fileno(), 2, record)
    await_true(lambda: out.read_text().endswith("\n"))
    return worker, out.read_text()


def await_true(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_next_lives_have_what_the_first_one_imported_but_never_the_programs_own_modules(place, workers):
    store, kept = FakeStore(World()), workers()
    kept.learn(store)
    steps: list[int] = []
    record = kept.begin(0, lambda: bool(steps))
    first, text = run(kept.server(never), place, record)
    assert text.split() == []
    await_true(lambda: "neighbour" in record.read_text())
    assert store.get(KEY) is None, "nothing is published before the first step"
    steps.append(0)
    await_true(lambda: kept._successor is not None)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait(60).status == signal.SIGKILL
    old = kept.pids()
    second, text = run(kept.server(never), place)
    assert text.split() == ["colorsys"]
    assert kept.pids() < old, "the first server has ended"
    assert kept.begin(0, never) is None
    os.kill(second.pid, signal.SIGKILL)
    second.wait(60)


def test_a_module_that_is_run_by_its_name_is_not_imported_ahead(place):
    kept = WarmWorkers([sys.executable, "-u", "-m", "colorsys"], (), "tag-of-a-test", place)
    kept.begin(0, never).write_text("colorsys\ncolorsys.__main__\nwave\n")
    try:
        assert kept._noted() == ["wave"]
    finally:
        kept.close()


def test_a_spare_learns_from_the_store(place, workers):
    store = FakeStore(World())
    store.create(KEY, b'["colorsys", "restless", "no_such_module", "neighbour"]')
    kept = workers()
    kept.learn(store)
    await_true(lambda: kept._learned)
    server = kept.server(never)
    assert server.modules == ("colorsys", "no_such_module", "neighbour"), "what is unfit is left out"
    worker, text = run(server, place)
    assert text.split() == ["colorsys"]
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(60)


def test_a_spare_needs_no_second_server_to_learn_and_does_not_record(place, workers):
    store = FakeStore(World())
    store.create(KEY, b'["colorsys", "neighbour"]')
    kept = workers()
    (only,) = kept.pids()
    kept.learn(store)
    await_true(lambda: kept._learned)
    server = kept.server(never)
    assert (server.pid, kept.pids()) == (only, {only})
    worker, text = run(server, place)
    assert text.split() == ["colorsys"]
    assert kept.begin(0, never) is None
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(60)


def test_a_server_that_has_workers_is_left_alone(place, workers):
    store, kept = FakeStore(World()), workers()
    first = kept.server(never)
    worker, _ = run(first, place)
    store.create(KEY, b'["colorsys"]')
    kept.learn(store)
    await_true(lambda: kept._learned)
    assert first.modules == ()
    assert kept._successor is not first
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(60)


def test_a_module_that_leaves_a_thread_behind_is_named_and_left_out(place, workers):
    server = WarmServer(sys.executable, ["program/script.py"], ["colorsys", "restless"], "tag-of-a-test", place)
    with pytest.raises(Unfit, match="restless"):
        server.ready(60)
    server.close()
    kept = workers("colorsys", "restless")
    assert kept.server(never).modules == ("colorsys",)


def test_a_server_forks_from_a_single_thread_and_without_devices(place, workers):
    kept = workers("torch", "numpy")
    server = kept.server(never)
    worker, _ = run(server, place)  # the last fork ends the threads that libraries end before a fork
    process = psutil.Process(server.pid)
    assert process.num_threads() == 1
    assert not [f.path for f in process.open_files() if f.path.startswith("/dev/") and f.path != "/dev/null"]
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(60)


def test_a_program_that_closes_every_descriptor_imports_all_the_same(place, workers):
    script = (
        "import os\nos.closerange(3, 200)\nimport colorsys\nprint('colorsys', flush=True)\nimport time\ntime.sleep(100)"
    )
    (place / "program" / "script.py").write_text(script)
    worker, said = run(workers().server(never), place, place / "record.txt")
    assert said == "colorsys\n"
    assert "colorsys" in (place / "record.txt").read_text().splitlines()
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(60)


def test_a_server_ends_when_its_agent_is_gone(place):
    server = WarmServer(sys.executable, ["program/script.py"], [], "tag-of-a-test", place)
    assert server.ready(60)
    server._link.close()
    assert server._process.wait(60) == 0


def test_a_worker_whose_server_is_killed_ends_as_unknown_and_the_next_server_is_as_good(place, workers):
    kept = workers("colorsys")
    server = kept.server(never)
    worker, _ = run(server, place)
    os.kill(server.pid, signal.SIGKILL)
    assert (worker.wait(60).status, worker.wait(60).seen) == (UNKNOWN, False)
    os.kill(worker.pid, signal.SIGKILL)
    await_true(lambda: server._process.poll() is not None)
    other = kept.server(never)
    assert other is not server
    worker, text = run(other, place)
    assert text.split() == ["colorsys"]
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(60)


def test_where_the_successor_is_killed_its_replacement_serves_all_later_rounds(place, workers):
    store, kept = FakeStore(World()), workers()
    kept.server(never)
    store.create(KEY, b'["colorsys"]')
    kept.learn(store)
    await_true(lambda: kept._learned)
    successor = kept.server(never)
    assert successor.modules == ("colorsys",)
    os.kill(successor.pid, signal.SIGKILL)
    await_true(lambda: successor._process.poll() is not None)
    replacement = kept.server(never)
    assert replacement is not successor
    assert replacement.modules == ("colorsys",)
    assert [kept.server(never) for _ in range(2)] == [replacement] * 2
    assert kept.pids() == {replacement.pid}


def test_a_server_that_no_signal_ends_is_left_alone(place, monkeypatch):
    server = WarmServer(sys.executable, ["program/script.py"], [], "tag-of-a-test", place)
    assert server.ready(60)
    halt(server.pid)  # or it would end with its agent's socket
    monkeypatch.setattr(client_module, "KILL_PATIENCE", 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(server._process, "send_signal", lambda signum: None)
        server.close()
    assert server._process.poll() is None, "it lives on, as one in uninterruptible sleep does"
    server._process.kill()
    assert server._process.wait(60) == -signal.SIGKILL


def chatty(place: Path, name: str) -> str:
    (place / "libraries" / f"{name}.py").write_text(f"print({name!r}, end=' ')")
    return name


def test_a_server_that_is_forked_from_another_has_what_that_one_had_and_outlives_it(place):
    names = [chatty(place, "first_said"), chatty(place, "then_said")]
    (place / "program" / "script.py").write_text("import sys, time\nprint('colorsys' in sys.modules)\ntime.sleep(100)")
    first = WarmServer(sys.executable, ["program/script.py"], ["colorsys", names[0]], "tag", place)
    assert first.ready(60)
    branch = WarmServer(sys.executable, ["program/script.py"], [*first.modules, names[1]], "tag", place, first)
    assert branch.ready(60)
    assert psutil.Process(branch.pid).ppid() == first.pid
    assert os.getsid(branch.pid) == branch.pid
    old, text = run(first, place)
    assert text.split() == ["first_said", "True"]
    os.kill(old.pid, signal.SIGKILL)
    assert old.wait(60).status == signal.SIGKILL
    worker, text = run(branch, place)
    assert text.split() == ["first_said", "then_said", "True"]
    first.close()
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.wait(60).status == signal.SIGKILL, "who forked it lives on and saw it end"
    branch.close()
    with pytest.raises(ServerGone):
        branch.ready(1)


def test_a_branch_that_is_killed_is_gone_and_its_parent_is_as_good(place):
    first = WarmServer(sys.executable, ["program/script.py"], [], "tag", place)
    assert first.ready(60)
    branch = WarmServer(sys.executable, ["program/script.py"], ["colorsys"], "tag", place, first)
    os.kill(branch.pid, signal.SIGKILL)
    await_true(lambda: not psutil.pid_exists(branch.pid))  # its parent has waited for it
    with pytest.raises(ServerGone):
        branch.ready(1)
    worker, _ = run(first, place)
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.wait(60).status == signal.SIGKILL
    branch.close()
    first.close()
    with pytest.raises(ServerGone):
        WarmServer(sys.executable, ["program/script.py"], [], "tag", place, first)


def test_a_server_that_stands_still_when_another_is_to_be_forked_keeps_its_workers(place, monkeypatch):
    first = WarmServer(sys.executable, ["program/script.py"], [], "tag", place)
    assert first.ready(60)
    worker, _ = run(first, place)
    halt(first.pid)
    with monkeypatch.context() as patched:
        patched.setattr(client_module, "ANSWER", 0.5)
        with pytest.raises(ServerGone, match=r"does not answer within 0\.5 s"):
            WarmServer(sys.executable, ["program/script.py"], [], "tag", place, first)
    os.kill(first.pid, signal.SIGCONT)
    after, _ = run(first, place)
    assert psutil.Process(after.pid).ppid() == first.pid
    for one in (worker, after):
        os.kill(one.pid, signal.SIGKILL)
        assert one.wait(60).status == signal.SIGKILL
    await_true(lambda: not psutil.Process(first.pid).children())  # the server that came too late has found nobody
    first.close()


def test_a_server_that_stands_still_is_ended_and_the_next_one_serves(place, workers, monkeypatch):
    kept = workers()
    stopped = kept.server(never)
    halt(stopped.pid)
    with monkeypatch.context() as patched:
        patched.setattr(client_module, "ANSWER", 0.5)
        stopped._link.settimeout(client_module.ANSWER)
        with pytest.raises(ServerGone, match=r"does not answer within 0\.5 s"):
            run(stopped, place)
    following = kept.server(never)
    assert following.pid != stopped.pid
    worker, _ = run(following, place)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(60)


def test_a_server_that_stands_still_when_another_is_to_be_forked_holds_up_no_stop(place, workers, monkeypatch):
    monkeypatch.setattr(client_module, "ANSWER", 600.0)
    monkeypatch.setattr(keeper_module, "BIRTH", 0.1)
    store, kept = FakeStore(World()), workers()
    first = kept.server(never)
    halt(first.pid)
    store.create(KEY, b'["colorsys"]')
    kept.learn(store)
    await_true(kept._lock.locked)
    told: list[tuple[set[int], str]] = []

    def stop() -> None:
        told.append((kept.pids(), psutil.Process(first.pid).status()))
        kept.close()

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive()
    assert told == [({first.pid}, psutil.STATUS_STOPPED)], "a wrong set of servers, or the fault did not happen"
    assert not psutil.pid_exists(first.pid)


def test_a_server_that_cannot_start_is_said_to_be_gone(place):
    server = WarmServer("false", ["program/script.py"], [], "tag-of-a-test", place)
    with pytest.raises(ServerGone):
        server.ready(60)
    server.close()


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        ([sys.executable, "-u", "train.py"], None, True),
        ([sys.executable, "train.py"], None, False),  # --no-python python train.py
        (["sleep", "3"], None, False),  # --no-python
        (["sleep", "-u"], None, False),
        ([print, "train.py"], None, False),  # --run-path
        ([sys.executable, "-u", "train.py"], object(), False),  # --numa-binding
    ],
)
def test_only_a_plain_script_is_forked(command, options, expected):
    assert can_be_warm(command[0], command[1:], options) is expected
