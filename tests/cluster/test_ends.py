"""What is told of a worker's end, and what of it counts."""

from __future__ import annotations

import os
import resource
import signal
import time
import uuid
from pathlib import Path

import psutil
import pytest
from support.cluster import JOBS, Cluster, Event
from support.marked import lives

from ezpz_elastic.worker_groups import WorkerGroups

PACE = str(JOBS / "pace.py")
WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(100)\n"


def script(cluster: Cluster, text: str) -> list[str]:
    (cluster.directory / "script.py").write_text(text)
    return ["script.py"]


def ended(cluster: Cluster, round_number: int) -> Event:
    """The first end of a worker in a round that was not its agent's doing."""
    found = lambda: [e for e in cluster.events("worker_exited") if e["round"] == round_number and not e["by_agent"]]  # noqa: E731
    cluster.await_true(found, "the end of a worker")
    return found()[0]


def workers(cluster: Cluster, round_number: int, count: int, host: int = 2) -> list[int]:
    """Pids of all workers of a round, which may be at work before their agent has written them down."""
    cluster.await_true(lambda: len(cluster.workers(host, round_number)) == count, f"{count} workers in the journal")
    return cluster.workers(host, round_number)


def finish(cluster: Cluster, host: int = 2) -> None:
    cluster.agents[host].send_signal(signal.SIGTERM)
    cluster.wait(host, 25)
    cluster.assert_nothing_left()


def test_a_killed_worker_is_a_killed_worker_whatever_it_had_printed_and_survived(cluster):
    text = (
        "import os, signal, time, traceback\n"
        "for step in range(3):\n"
        "    try:\n"
        "        raise ValueError('batch 3 is empty')\n"
        "    except ValueError:\n"
        "        traceback.print_exc()\n"
        "print('CUDA error: an illegal memory access was encountered', flush=True)\n"
        "if os.environ['EZPZ_ROUND'] == '1':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    cluster.start(2, script(cluster, text), nnodes="1:1")
    assert cluster.wait(2) == 0
    found = ended(cluster, 1)
    assert (found["signal"], found["error"], found["sent_by"], found["core"]) == (9, None, "", False)
    assert "batch 3 is empty" in str(found["stderr_tail"])
    verdict = cluster.events("verdict")[0]
    assert (verdict["kind"], verdict["cause"]) == ("retryable_unattributed", "worker_killed")
    assert "illegal memory access" in str(verdict["set_aside"]), "its last signature lines are told"
    cluster.assert_nothing_left()


def test_a_fault_is_told_with_its_core_dump_and_the_kernels_words_on_it(cluster):
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    text = "import ctypes, resource\n"
    text += f"resource.setrlimit(resource.RLIMIT_CORE, ({limit}, {limit}))\n"
    text += "ctypes.string_at(0)\n"
    cluster.start(2, script(cluster, text), nnodes="1:1", max_restarts=0, conf="warm=off")
    assert cluster.wait(2) == 128 + signal.SIGSEGV
    found = ended(cluster, 1)
    assert found["signal"] == signal.SIGSEGV
    reason = str(cluster.events("verdict")[0]["reason"])
    if limit != 0 and not pattern.startswith(("|", "/")):
        assert found["core"] is True
        assert "core dumped" in reason
    if found["sent_by"]:  # where this user may read the kernel log; tests/agent/test_workers.py insists on it
        assert "the kernel: segfault at 0" in reason
    cluster.assert_nothing_left()


def test_the_agents_own_stop_is_written_down_and_is_no_evidence(cluster):
    cluster.start(2, script(cluster, WAIT), nnodes="1:1", nproc=3)
    cluster.await_true(lambda: "ready" in cluster.text("rounds/1/2/stdout.log"), "three workers")
    os.kill(workers(cluster, 1, 3)[1], signal.SIGKILL)
    cluster.await_true(lambda: "ready" in cluster.text("rounds/2/2/stdout.log"), "the next round")
    ends = {e["rank"]: (e["signal"], e["by_agent"]) for e in cluster.events("worker_exited") if e["round"] == 1}
    assert ends == {0: (signal.SIGTERM, True), 1: (signal.SIGKILL, False), 2: (signal.SIGTERM, True)}
    verdict = cluster.events("verdict")[0]
    assert verdict["cause"] == "worker_killed"
    assert "rank 0" not in str(verdict)
    finish(cluster)


def test_a_worker_that_dies_of_the_nudge_to_save_was_not_killed_by_anybody_else(cluster):
    deadline = time.time() + 6
    cluster.start(2, script(cluster, WAIT), nnodes="1:1", nproc=2, conf=f"deadline={deadline},margin=4,nudge=on")
    cluster.wait(2)
    ends = [(e["signal"], e["by_agent"]) for e in cluster.events("worker_exited")]
    assert ends == [(signal.SIGUSR1, True)] * 2
    assert [e["kind"] for e in cluster.events("verdict")] == ["walltime"]
    cluster.assert_nothing_left()


ESCAPED = """
import os, subprocess, time
child = subprocess.Popen(["env", "-i", "setsid", "sleep", "600"])
while "sleep" not in open(f"/proc/{child.pid}/comm").read():
    time.sleep(0.01)
open("escaped", "w").write(str(child.pid))
time.sleep(600)
"""


def escaped(cluster: Cluster) -> psutil.Process:
    file = cluster.directory / "escaped"
    cluster.await_true(lambda: file.exists() and file.read_text(), "a child that gave up everything")
    child = psutil.Process(int(file.read_text()))
    assert child.environ() == {}, "the agent's tag is gone"
    assert os.getsid(child.pid) == child.pid, "and it has left the worker's session"
    return child


@pytest.mark.parametrize("how", ["stop", "lost agent"])
@pytest.mark.parametrize("conf", ["", "warm=off"])
def test_a_process_that_drops_its_environment_and_session_is_ended_by_its_control_group(cluster, how, conf):
    groups = WorkerGroups(uuid.uuid4().hex)
    if groups.directory is None:
        pytest.skip("this user may make no control group here; tests/agent/test_process_tree.py has them faked")
    groups.close()
    cluster.start(2, script(cluster, ESCAPED), nnodes="1:1", conf=conf)
    child = escaped(cluster)
    if how == "stop":
        finish(cluster)
    else:
        cluster.agents[2].send_signal(signal.SIGKILL)
        cluster.wait(2)
    cluster.await_true(lambda: not lives(child.pid), "its end", 25)
    cluster.assert_nothing_left()


FREEZER = Path("/sys/fs/cgroup/freezer")


def test_a_process_that_outlives_sigkill_makes_its_host_a_suspect_and_delays_no_later_stop(cluster):
    """A frozen process of cgroup v1 takes no signal at all, as one in uninterruptible sleep."""
    group = FREEZER / f"ezpz-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no process can be frozen here ({error}); tests/agent/test_process_tree.py has the rest")
    try:
        cluster.start(2, [PACE, "--apart"], nnodes="1:1", nproc=2, conf="grace=0.5")
        cluster.await_step(3)
        frozen, other = workers(cluster, 1, 2)
        (group / "cgroup.procs").write_text(str(frozen))
        (group / "freezer.state").write_text("FROZEN")
        cluster.await_true(lambda: (group / "freezer.state").read_text().strip() == "FROZEN", "that it freezes")
        os.kill(other, signal.SIGKILL)
        cluster.await_step(3, 2)
        assert psutil.Process(frozen).is_running(), "it has outlived SIGKILL"
        told = cluster.events("unkillable")
        assert [event["pids"] for event in told] == [[frozen]]
        os.kill(workers(cluster, 2, 2)[0], signal.SIGKILL)
        cluster.await_step(3, 3)
        assert len(cluster.events("unkillable")) == 1, "nobody waits for it a second time"
        first, second = cluster.events("verdict")
        assert "outlive" not in str(first)
        assert any("outlive SIGKILL" in str(item) for item in second["suspects"]), second
        assert second["cause"] == "worker_killed"
        assert cluster.text("bad_nodes.txt") == ""
    finally:
        (group / "freezer.state").write_text("THAWED")
        cluster.await_true(lambda: not (group / "cgroup.procs").read_text(), "that it ends")
        group.rmdir()
    finish(cluster)


def test_the_launchers_log_is_read_at_a_failure_by_the_agent_in_slot_0_and_by_no_other(cluster):
    log = cluster.directory / "launcher.log"
    limit = "slurmstepd: error: *** STEP 12.{} ON nid001 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    log.write_text(limit.format(0))  # of a job before this one
    for host in (2, 3):
        cluster.start(host, [PACE], conf=f"launcher_log={log}")
    cluster.await_step(3)
    first, second = (int(str(host).rpartition(".")[2]) for host in cluster.rosters()[0])
    os.kill(workers(cluster, 1, 1, second)[0], signal.SIGKILL)
    cluster.await_step(3, 2)
    with log.open("a") as file:
        file.write(limit.format(1))
    os.kill(workers(cluster, 2, 1, first)[0], signal.SIGKILL)
    assert [cluster.wait(host) for host in (2, 3)] == [128 + signal.SIGKILL] * 2
    assert [event["kind"] for event in cluster.events("verdict")] == ["retryable_unattributed", "walltime"]
    assert "STEP 12.1" in str(cluster.events("verdict")[1])
    cluster.assert_nothing_left()


def test_the_life_after_a_used_up_quota_is_asked_to_make_room(cluster):
    text = (
        "import os\n"
        "print('asked:', os.environ['EZPZ_CHORES'], flush=True)\n"
        "if os.environ['EZPZ_ROUND'] == '1':\n"
        "    raise OSError(122, os.strerror(122), '/home/u/step-3')\n"
    )
    cluster.start(2, script(cluster, text), nnodes="1:1", conf="warm=off", env={"EZPZ_CHORES": "of_an_outer_loop"})
    assert cluster.wait(2) == 0
    said = [cluster.text(f"rounds/{number}/0/stdout.log") for number in (1, 2)]
    assert said == ["asked: of_an_outer_loop\n", "asked: prune_checkpoints\n"]
