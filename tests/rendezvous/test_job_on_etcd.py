"""Real torchruns with their store in etcd: any host may be lost, the store may go away, and no secret gets out."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from support.cluster import JOBS, Cluster, free_port
from support.etcd import USER, Etcd, insist

from rendezvous.records import CoordinatorRecord, Joined, decode_message
from rendezvous.stores.etcd import EtcdStore

LEASE = 4.0
COUNT = ["--no-python", "sh", "-c", 'n=0; while [ $n -lt {steps} ]; do echo "step=$n "; n=$((n+1)); sleep 0.1; done']


def counting(steps: int) -> list[str]:
    """A worker that counts, ten steps a second."""
    return [*COUNT[:-1], COUNT[-1].format(steps=steps)]


def counting_until_a_failure(steps: int = 20) -> list[str]:
    """A worker that counts for ever in the first round and ``steps`` steps in the later ones."""
    code = COUNT[-1].format(steps="$steps")
    return [*COUNT[:-1], f"steps={steps}; [ $EZPZ_ROUND -gt 1 ] || steps=1000000; {code}"]


def counting_until_enough() -> list[str]:
    """A worker that counts until there is a file ``enough``."""
    return [*COUNT[:-1], COUNT[-1].replace("[ $n -lt {steps} ]", "[ ! -e enough ]")]


class EtcdJob(Cluster):
    """Agents whose store is an etcd of its own."""

    def __init__(self, directory: Path, etcd: Etcd) -> None:
        super().__init__(directory)
        self.etcd = etcd
        self.endpoint = etcd.endpoint
        self.conf = f"lease_ttl={LEASE:g},settle=0.5"

    def go(self, host: int, script: list[str], **more: object) -> None:
        self.start(host, script, conf=self.conf, **more)  # type: ignore[arg-type]

    def store(self) -> EtcdStore:
        return self.etcd.store("job")

    def coordinator(self) -> str:
        """The host that coordinates in the first term."""
        data = insist(lambda: self.store().get("coordinator/1"))
        assert data is not None
        return msgspec.json.decode(data, type=CoordinatorRecord).host

    def joined(self) -> list[str]:
        """The hosts that have joined, in order."""
        mail, _ = insist(lambda: self.store().read(0, 0.0))
        messages = [decode_message(data, key) for key, data in mail]
        return [message.member.host for message in messages if isinstance(message, Joined)]

    def step(self, round_number: int = 1) -> int:
        """The last step rank 0 has printed."""
        lines = self.text(f"rounds/{round_number}/0/stdout.log").split()
        return int(lines[-1].partition("=")[2]) if lines else -1

    def assert_nothing_left(self) -> None:
        self.endpoint = f"127.0.0.1:{free_port('127.0.0.1')}"  # etcd itself goes on
        super().assert_nothing_left()
        assert self.etcd.all_keys() == []


@pytest.fixture
def job(tmp_path: Path) -> Iterator[EtcdJob]:
    etcd = Etcd(tmp_path)
    made = EtcdJob(tmp_path, etcd)
    yield made
    made.close()
    etcd.close()


def test_the_host_of_coordinator_and_rank_0_is_lost_and_a_spare_goes_on_in_its_slot(job):
    script = [str(JOBS / "train.py"), "--checkpoints", str(job.directory / "ckpts"), "--steps=100000"]
    script += ["--interval=5", "--seconds-per-step=0.05"]
    job.conf = "lease_ttl=10,settle=0.5"  # a killed agent's port refuses at once; a slow one must not be taken for lost
    job.go(2, script)
    job.await_true(lambda: job.text("journal/127.0.0.2.jsonl"), "the first host")
    for host in (3, 4):
        job.go(host, script)
    job.await_true(lambda: len(job.joined()) == 3, "three hosts")
    job.await_step(7)
    assert job.coordinator() == "127.0.0.2"
    first = job.rosters()[0]
    assert first[0] == "127.0.0.2"
    spare = next(host for host in ("127.0.0.3", "127.0.0.4") if host not in first)
    job.kill_host(2, 1)
    job.await_step(9, round_number=2, timeout=90)
    assert job.rosters() == [first, [spare, first[1]]]
    assert "resumed 4" in job.text("rounds/2/0/stdout.log") or "resumed 9" in job.text("rounds/2/0/stdout.log")
    assert job.text("bad_nodes.txt") == "127.0.0.2  lost  attempt=1\n"
    for host in (3, 4):
        job.agents[host].send_signal(signal.SIGTERM)
    assert [job.wait(host) for host in (3, 4)] == [143, 143]
    job.assert_nothing_left()


@pytest.mark.parametrize(
    ("outage", "lease"), [(2 * LEASE, LEASE), pytest.param(60.0, 5.0, marks=pytest.mark.soak)], ids=["short", "60 s"]
)
def test_an_outage_while_running_touches_no_worker(job, outage, lease):
    job.conf = f"lease_ttl={lease:g},settle=0.5"
    for host in (2, 3):
        job.go(host, counting_until_enough())
    job.await_step(3)
    workers = job.workers(2, 1) + job.workers(3, 1)
    job.etcd.signal(0, signal.SIGKILL)
    at = job.step()
    time.sleep(outage)  # the outage itself
    job.await_true(lambda: job.step() > at + 5 * outage, "training goes on")
    assert all(psutil.pid_exists(pid) for pid in workers)
    job.etcd.start(0)
    job.etcd.await_ready()
    back = job.step()
    job.await_true(lambda: job.step() > back + 35, "training goes on with the store that is back")
    assert all(psutil.pid_exists(pid) for pid in workers)
    (job.directory / "enough").touch()
    assert [job.wait(host, 120) for host in (2, 3)] == [0, 0]
    assert job.rosters() == [["127.0.0.2", "127.0.0.3"]]
    assert job.outcome()["kind"] == "success"
    job.assert_nothing_left()


def test_an_outage_while_forming_only_delays_the_round(job):
    job.go(2, counting(5))
    job.await_true(lambda: job.joined() == ["127.0.0.2"], "the first host")
    job.etcd.signal(0, signal.SIGKILL)
    job.go(3, counting(5))
    job.await_true(lambda: job.text("journal/127.0.0.3.jsonl") or job.agents[3].poll() is None, "the second host")
    time.sleep(1.5 * LEASE)  # the outage itself
    assert job.rosters() == []
    assert [job.agents[host].poll() for host in (2, 3)] == [None, None]
    job.etcd.start(0)
    assert [job.wait(host) for host in (2, 3)] == [0, 0]
    assert job.rosters() == [["127.0.0.2", "127.0.0.3"]]
    job.assert_nothing_left()


def test_an_outage_while_deciding_delays_the_decision_and_blames_no_host(job):
    for host in (2, 3):
        job.go(host, counting_until_a_failure())
    job.await_step(3)
    victim = job.worker(3, 1)
    job.etcd.signal(0, signal.SIGKILL)
    os.kill(victim, signal.SIGKILL)
    job.await_true(lambda: job.events("worker_exited"), "the agent sees its worker die")
    time.sleep(1.5 * LEASE)  # the outage itself
    assert job.events("decision") == []
    job.etcd.start(0)
    assert [job.wait(host) for host in (2, 3)] == [0, 0]
    assert job.rosters() == [["127.0.0.2", "127.0.0.3"]] * 2
    assert job.text("bad_nodes.txt") == ""
    assert [event["action"] for event in job.events("decision")] == ["restart", "finish"]
    job.assert_nothing_left()


@pytest.mark.parametrize("last", ["FINISH", "RESTART"])
def test_what_a_coordinator_has_decided_is_written_down_although_it_dies_of_it(job, last):
    """Killed between the commit and its first line about it; the others write the line."""
    job.conf = "lease_ttl=10,settle=0.5"
    dying = [sys.executable, str(JOBS / "last_word.py"), last, "--rdzv-backend=ezpz"]
    limits = {"nnodes": "2:2"}
    job.go(2, counting(5) if last == "FINISH" else counting_until_a_failure(), command=dying, **limits)
    job.await_true(lambda: job.joined() == ["127.0.0.2"], "the first host")
    spare = [] if last == "FINISH" else [4]
    for host in [3, *spare]:
        job.go(host, counting(5) if last == "FINISH" else counting_until_a_failure(), **limits)
    if spare:
        job.await_true(lambda: len(job.joined()) == 3, "the spare")
        job.await_step(2)
        first = job.rosters()[0]
        assert first[0] == "127.0.0.2"
        second = int(first[1].rpartition(".")[2])  # whichever of the two was first
        job.await_true(lambda: job.workers(second, 1), "its worker")
        os.kill(job.worker(second, 1), signal.SIGKILL)
    assert job.wait(2) == -signal.SIGKILL, "the coordinator was to die"
    assert [job.wait(host) for host in [3, *spare]] == [0] * (1 + len(spare))
    written = [(event["round"], event["action"]) for event in job.events("decision")]
    assert written[0] == (1, last.lower())
    assert job.events("decision")[0]["host"] != "127.0.0.2"
    assert written[-1][1] == "finish"
    assert len(written) == len(set(written)), "written twice"
    assert job.outcome()["kind"] == "success"
    assert [event["kind"] for event in job.events("finished")] == ["success"]
    if last == "RESTART":  # else the records wait for the end of the dead agent's lease, and expire
        job.assert_nothing_left()


class Fault:
    """What may happen to an etcd of three members.

    Args:
        etcd: the members.
        kind: ``leader`` or ``member`` (killed), or ``outage``: all of them, and back after ``seconds``.
    """

    def __init__(self, etcd: Etcd, kind: str, seconds: float) -> None:
        self._etcd, self._kind, self._seconds = etcd, kind, seconds

    def strike(self) -> None:
        """Do it, and see that it was done."""
        leader = self._etcd.leader()
        others = [member for member in range(3) if member != leader]
        for member in {"leader": [leader], "member": others[:1], "outage": [leader, *others]}[self._kind]:
            self._etcd.signal(member, signal.SIGKILL)
        if self._kind == "leader":
            deadline = time.monotonic() + 60
            while (found := self._leader(others)) is None:
                assert time.monotonic() < deadline, "no new leader"
                time.sleep(0.05)
            assert found != leader

    def _leader(self, members: list[int]) -> int | None:
        try:
            return next((member for member in members if self._etcd.leads(member)), None)
        except RuntimeError:
            return None

    def over(self) -> None:
        """Wait until an outage is over."""
        if self._kind == "outage":
            time.sleep(self._seconds)  # the outage itself
            for member in range(3):
                self._etcd.start(member)


SOAK = pytest.mark.soak
FAULTS = [
    pytest.param("leader", "running", 0.0, id="leader-running"),
    *(pytest.param("leader", when, 0.0, id=f"leader-{when}", marks=SOAK) for when in ("forming", "deciding")),
    *(
        pytest.param("member", when, 0.0, id=f"member-{when}", marks=SOAK)
        for when in ("running", "forming", "deciding")
    ),
    *(pytest.param("outage", when, 60.0, id=f"60 s-{when}", marks=SOAK) for when in ("running", "forming", "deciding")),
]


@pytest.fixture
def wide_job(tmp_path: Path) -> Iterator[EtcdJob]:
    etcd = Etcd(tmp_path, members=3)
    made = EtcdJob(tmp_path, etcd)
    yield made
    made.close()
    etcd.close()


@pytest.mark.parametrize(("kind", "when", "seconds"), FAULTS)
def test_a_fault_of_the_store_touches_no_worker_and_the_job_goes_on(wide_job, kind, when, seconds):
    job, fault = wide_job, Fault(wide_job.etcd, kind, seconds)
    job.conf = "lease_ttl=10,settle=0.5"
    script = counting(20) if when == "forming" else counting_until_a_failure()
    job.go(2, script)
    if when == "forming":
        job.await_true(lambda: job.joined() == ["127.0.0.2"], "the first host")
        fault.strike()
        job.go(3, script)
        fault.over()
        job.await_step(3, timeout=120)
    else:
        job.go(3, script)
        job.await_step(3)
        job.await_true(lambda: job.workers(2, 1) and job.workers(3, 1), "both hosts' workers")
        workers = job.workers(2, 1) + job.workers(3, 1)
        at = job.step()
        fault.strike()
        if when == "deciding":
            os.kill(workers.pop(), signal.SIGKILL)
            job.await_true(lambda: job.events("worker_exited"), "the agent sees its worker die")
        fault.over()
        if when == "running":
            job.await_true(lambda: job.step() > at + 20, "training goes on")
            assert all(psutil.pid_exists(pid) for pid in workers)
            os.kill(workers[1], signal.SIGKILL)
        # The store that is left, or that is back, carries a failure, a decision and another round.
        job.await_step(3, round_number=2, timeout=120)
    assert [job.wait(host, 180) for host in (2, 3)] == [0, 0]
    assert job.rosters() == [["127.0.0.2", "127.0.0.3"]] * (1 if when == "forming" else 2)
    assert job.text("bad_nodes.txt") == ""
    assert job.outcome()["kind"] == "success"


def test_a_run_that_is_to_be_kept_leaves_its_records_for_a_postmortem(job):
    command = [str(Path(sys.executable).parent / "ezpz-elastic"), "run", "--keep"]
    job.go(2, counting(1), nnodes="1:1", command=command)
    assert job.wait(2) == 0
    assert {"/ezpz/job/round/1/opening", "/ezpz/job/round/1/decision"} <= set(job.etcd.all_keys())


@pytest.fixture
def guarded_job(tmp_path: Path) -> Iterator[EtcdJob]:
    etcd = Etcd(tmp_path, tls=True)
    etcd.add_users()
    made = EtcdJob(tmp_path, etcd)
    tls = etcd.credentials
    assert tls is not None
    made.conf += f",etcd_ca={tls.ca},etcd_cert={tls.cert},etcd_key={tls.key}"
    yield made
    made.close()
    etcd.close()


def test_the_password_is_in_no_log_no_journal_no_error_no_command_line_and_no_worker(guarded_job):
    job, (user, word) = guarded_job, USER
    verbose = {"TORCHELASTIC_LOG_LEVEL": "DEBUG", "LOGLEVEL": "DEBUG"}
    login = {**verbose, "EZPZ_ETCD_USER": user, "EZPZ_ETCD_PASSWORD": word}
    script = "env; while [ ! -e seen ]; do sleep 0.1; done; exit 3"
    job.go(2, ["--no-python", "sh", "-c", script], env=login, nnodes="1:1", max_restarts=1, cold=True)
    job.await_true(lambda: "EZPZ_ETCD_USER" in job.text("rounds/1/0/stdout.log"), "the worker shows its environment")
    commands = [
        " ".join(process.info["cmdline"] or [])
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"]
    ]
    (job.directory / "seen").touch()
    assert any("--rdzv-endpoint=etcds://" in command for command in commands)
    assert not any(word in command for command in commands if "etcdctl" not in command)
    assert job.wait(2) != 0
    wrong = {**verbose, "EZPZ_ETCD_USER": user, "EZPZ_ETCD_PASSWORD": "the-wrong-word"}
    job.go(3, counting(1), env=wrong, nnodes="1:1", cold=True)
    assert job.wait(3) == 2
    assert "authentication failed" in job.output(3)
    assert "Traceback" not in job.output(3)
    ours = [
        path
        for path in job.directory.rglob("*")
        if path.is_file() and "m0" not in path.relative_to(job.directory).parts[0]
    ]
    assert len(ours) > 4
    for path in ours:
        text = path.read_bytes()
        assert word.encode() not in text, path
        assert b"the-wrong-word" not in text, path
    job.assert_nothing_left()
