"""Whom an agent's stop reaches, and what becomes of what no signal ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.marked import lives

from ezpz_elastic import guard, process_tree
from ezpz_elastic.process_tree import Family, Guard, stop_all
from ezpz_elastic.worker_groups import WorkerGroups

CHILD = """
import subprocess, sys, time
child = subprocess.Popen(["env", "-i", *sys.argv[1:], "sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""


class Started:
    """A worker in a session of its own, and a child that has dropped its environment."""

    def __init__(self, *how: str) -> None:
        self.tag = uuid.uuid4().hex
        self.worker = subprocess.Popen(
            [sys.executable, "-c", CHILD, *how],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, guard.TAG: self.tag},
        )
        assert self.worker.stdout is not None
        self.child = psutil.Process(int(self.worker.stdout.readline()))
        while self.child.name() != "sleep":
            os.sched_yield()

    def end(self) -> None:
        for process in (self.worker, self.child):
            if process.poll() is None if isinstance(process, subprocess.Popen) else process.is_running():
                process.kill()
        self.worker.wait()


@pytest.fixture
def started() -> Iterator[Started]:
    made = Started()
    yield made
    made.end()


def test_a_child_without_the_tag_is_known_by_the_session_even_if_its_worker_is_gone(started):
    assert started.child.environ() == {}
    pid = started.worker.pid
    assert guard.family(started.tag) == {pid, started.child.pid}
    os.kill(pid, signal.SIGKILL)
    started.worker.wait()
    assert guard.family(started.tag) == set(), "nothing living says so any more"
    family = Family(started.tag, None)
    family.leaders = {pid}
    assert family.find() == [started.child.pid]
    assert stop_all(family, signal.SIGTERM, 10) == []
    assert not lives(started.child.pid)


@pytest.mark.parametrize("guard_is_killed_before", [False, True])
def test_the_guard_ends_a_worker_that_has_overwritten_its_environment(guard_is_killed_before):
    with subprocess.Popen(["env", "-i", "sleep", "600"], start_new_session=True) as worker:
        watcher = Guard(uuid.uuid4().hex, [])
        if guard_is_killed_before:
            watcher._process.kill()
            watcher._process.wait(10)
        watcher.watch([worker.pid])
        assert watcher._process.stdin is not None
        watcher._process.stdin.close()  # what the kernel does when it ends the agent
        assert worker.wait(30) == -signal.SIGKILL
        assert watcher._process.wait(30) == 0


def test_a_guard_that_is_dismissed_ends_nobody():
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as worker:
        watcher = Guard(uuid.uuid4().hex, [])
        watcher.watch([worker.pid])
        watcher.dismiss()
        assert watcher._process.returncode == 0
        assert worker.poll() is None
        worker.kill()


def test_the_agents_own_session_is_never_taken_for_a_workers():
    tag = uuid.uuid4().hex
    with subprocess.Popen(["sleep", "600"], env={**os.environ, guard.TAG: tag}) as process:
        assert guard.family(tag, None, [os.getsid(0)]) == {process.pid}
        process.kill()


def test_what_outlives_sigkill_is_told_once_and_not_waited_for_again(started, monkeypatch):
    """Signals are withheld here; tests/cluster/test_ends.py has a process that really takes none."""
    reached: list[int] = []
    monkeypatch.setattr(process_tree.guard, "kill", lambda pids, signum: reached.extend([signum] * bool(list(pids))))
    family = Family(started.tag, None)
    left = stop_all(family, signal.SIGTERM, 0.05, patience=0.05)
    assert left == sorted([started.worker.pid, started.child.pid])
    assert reached[:2] == [signal.SIGTERM, signal.SIGCONT]
    assert signal.SIGKILL in reached
    assert family.find() == []
    assert stop_all(family, signal.SIGTERM, 100) == []


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EMFILE])
def test_where_the_kernel_tells_no_ends_they_are_looked_at(started, monkeypatch, error):
    def refuse(pid: int) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    family = Family(started.tag, None)
    assert stop_all(family, signal.SIGCONT, 0.2) == []  # SIGKILL follows; nobody has waited for the worker yet
    assert started.worker.wait(0) == -signal.SIGKILL


def cgroup_files(root: Path, version: int) -> Path:
    (root / "proc/self").mkdir(parents=True)
    kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,pids"
    place = root / "sys/fs/cgroup"
    own = place / "job"
    own.mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/job\n" if version == 2 else "8:pids:/job\n4:memory:/\n")
    (root / "proc/self/mountinfo").write_text(f"30 25 0:27 / /sys/fs/cgroup rw - {kind}\n")
    return own


@pytest.mark.parametrize("version", [1, 2])
def test_each_worker_gets_a_group_below_the_agents_own(tmp_path, version):
    own = cgroup_files(tmp_path, version)
    groups = WorkerGroups("tag", tmp_path)
    groups.add(0, os.getppid())
    entrance = groups.entrance(1)
    assert entrance == own / f"ezpz-{os.getpid()}-tag/1/cgroup.procs"
    with subprocess.Popen(["true"]) as gone:
        pass
    entrance.write_text(f"{os.getppid()}\n{gone.pid}\n")
    found = guard.family("no such tag", groups.directory)
    assert os.getppid() in found
    assert gone.pid not in found


def test_where_no_group_can_be_made_there_is_none_and_that_is_no_error(tmp_path):
    assert WorkerGroups("tag", tmp_path).directory is None
    own = cgroup_files(tmp_path, 2)
    (own / f"ezpz-{os.getpid()}-tag").write_text("in the way")
    groups = WorkerGroups("tag", tmp_path)
    groups.add(0, os.getpid())
    groups.close()
    assert groups.directory is None


def test_what_a_killed_agent_and_its_guard_have_left_is_removed_by_the_next_one(tmp_path):
    own = cgroup_files(tmp_path, 2)
    with subprocess.Popen(["true"]) as gone:
        pass
    for name in (f"ezpz-{gone.pid}-a/0", f"ezpz-{os.getppid()}-b/0", "ezpz-other"):
        (own / name).mkdir(parents=True)
    WorkerGroups("tag", tmp_path)
    left = {path.name for path in own.iterdir()}
    assert left == {f"ezpz-{os.getppid()}-b", "ezpz-other", f"ezpz-{os.getpid()}-tag"}


def test_a_real_group_holds_what_has_dropped_everything_else_and_can_be_removed_afterwards():
    groups = WorkerGroups(uuid.uuid4().hex)
    if groups.directory is None:
        pytest.skip("this user may make no control group here; faked above")
    directory = groups.directory
    with subprocess.Popen([sys.executable, "-c", f"input()\n{CHILD}", "setsid"], stdin=-1, stdout=-1) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        groups.add(0, worker.pid)
        worker.stdin.write(b"\n")
        worker.stdin.flush()
        child = int(worker.stdout.readline())
        assert guard.family("no such tag", directory) == {worker.pid, child}
        assert stop_all(Family("no such tag", directory), signal.SIGTERM, 10) == []
    groups.close()
    assert not directory.exists()
