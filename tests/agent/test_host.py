"""What a survey of a host says, and what of it speaks against the host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from ezpz_elastic.decide.classify import classify
from ezpz_elastic.decide.context import Context
from ezpz_elastic.decide.evidence import HostProbe, WorkerExit
from ezpz_elastic.decide.verdict import Cause
from ezpz_elastic.health import Health
from ezpz_elastic.journal import Journal
from ezpz_elastic.observe import host as host_module
from ezpz_elastic.observe.ask import NoAnswer, ask
from ezpz_elastic.observe.host import gone_since, survey


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine may take its time to run a probe that ends."""
    monkeypatch.setattr(host_module, "DEADLINE", 30.0)


def program(directory: Path, name: str, text: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)


def by_name(found: list[HostProbe]) -> dict[str, HostProbe]:
    return {item.probe: item for item in found}


def test_a_survey_tells_what_a_person_would_look_at(tmp_path):
    with subprocess.Popen(["sleep", "100"]) as process:
        found = by_name(survey("h0", tmp_path, [process.pid]))
        process.kill()
    assert {"memory", "load", "shm", "tmp disk", "run_dir disk", "processes"} <= found.keys()
    assert "GiB available" in found["memory"].detail
    assert "of the inodes in use" in found["run_dir disk"].detail
    assert found["processes"].detail == "0 zombies"
    assert all(item.host == "h0" for item in found.values())


def test_the_users_own_probes_speak_by_their_exit_code(tmp_path):
    own = tmp_path / "probes"
    program(own, "fine", "echo all well")
    program(own, "broken", "echo fan 3 stands; exit 4")
    (own / "readme.txt").write_text("not a program")
    found = by_name(survey("h0", tmp_path, probes_dir=own))
    assert (found["fine"].healthy, found["fine"].detail) == (True, "all well")
    assert (found["broken"].healthy, found["broken"].detail) == (False, "exit code 4: fan 3 stands")
    assert "readme.txt" not in found


def test_a_probe_that_gives_no_answer_speaks_neither_against_a_host_nor_for_it(tmp_path, monkeypatch):
    own = tmp_path / "probes"
    program(own, "gpu slow", "exec sleep 100")
    monkeypatch.setattr(host_module, "DEADLINE", 0.5)
    slow = survey("h0", tmp_path, probes_dir=own)
    assert by_name(slow)["gpu slow"] == HostProbe("h0", "gpu slow", True, "no answer: not within 0.5 s")
    monkeypatch.setattr(host_module, "DEADLINE", 30.0)
    program(own, "gpu slow", "echo ECC; exit 1")
    broken = survey("h0", tmp_path, probes_dir=own)
    assert by_name(broken)["gpu slow"].detail == "exit code 1: ECC"
    assert gone_since(slow, broken) == [], "it may have been broken at the start"
    (own / "gpu slow").write_text("no program")
    assert by_name(survey("h0", tmp_path, probes_dir=own))["gpu slow"].detail.startswith("no answer: it does not start")
    program(own, "gpu slow", "kill -9 $$")
    killed = survey("h0", tmp_path, probes_dir=own)
    assert by_name(killed)["gpu slow"] == HostProbe("h0", "gpu slow", True, "no answer: signal 9 has ended it")
    program(own, "gpu slow", "exit 0")
    assert gone_since(survey("h0", tmp_path, probes_dir=own), killed) == []


def test_a_program_that_no_signal_ends_is_left_alone(monkeypatch):
    survivors: list[subprocess.Popen[bytes]] = []

    def survive(self: subprocess.Popen[bytes]) -> None:
        survivors.append(self)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "kill", survive)
        with pytest.raises(NoAnswer, match=r"not within 0\.1 s"):
            ask(["sleep", "100"], 0.1)
    (survivor,) = survivors
    assert survivor.poll() is None, "it lives on, as one in uninterruptible sleep does"
    survivor.kill()
    assert survivor.wait(10) == -9


def test_neither_a_survey_nor_the_end_of_an_agent_waits_for_what_hangs(tmp_path):
    """A process of its own, since the end of the interpreter is part of it."""
    own = tmp_path / "probes"
    program(own, "gpu", "exec sleep 100")
    code = f"""
import os, pathlib, subprocess, threading
from ezpz_elastic.health import Health
from ezpz_elastic.journal import Journal
from ezpz_elastic.observe import host
host.DEADLINE = 0.5
subprocess.Popen.kill = lambda self: print("survives", self.pid, flush=True)
ask = os.statvfs
os.statvfs = lambda path: threading.Event().wait() if str(path) == "/tmp" else ask(path)
run = pathlib.Path({str(tmp_path / "run")!r})
health = Health("h0", Journal(run, "h0", "job"), pathlib.Path({str(own)!r}))
health.start()
health.close()
print((run / "journal/h0.jsonl").read_text())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    (survivor,) = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("survives")]
    os.kill(survivor, 9)  # it was still there
    assert '"tmp disk":"no answer: not within 1 s"' in done.stdout
    assert '"gpu":"no answer: not within 0.5 s"' in done.stdout
    assert '"unhealthy":[]' in done.stdout
    assert "probe gpu: no answer" in done.stderr


def test_a_vendors_tool_is_a_fact_whatever_it_answers(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    program(tools, "nvidia-smi", "echo 417, 2000 MiB, python")
    program(tools, "lfs", "exit 1")
    program(tools, "xpu-smi", "kill -9 $$")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    found = by_name(survey("h0", tmp_path))
    assert found["gpu processes"].detail == "nvidia-smi: 417, 2000 MiB, python"
    assert found["lustre"].detail == "lfs: exit code 1"
    assert found["xpu processes"].detail == "xpu-smi: no answer: signal 9 has ended it"
    assert all(found[name].healthy for name in ("gpu processes", "lustre", "xpu processes"))
    assert "sycl devices" not in found


def test_a_missing_file_system_is_unhealthy(tmp_path):
    assert not by_name(survey("h0", tmp_path / "gone"))["run_dir disk"].healthy


@pytest.mark.parametrize(
    ("blocks", "free", "inodes", "inodes_free", "healthy"),
    [
        pytest.param(1 << 50, 1 << 42, 1 << 40, 1 << 30, True, id="99.6 % of 4 EiB, and 16 PiB are left"),
        pytest.param(1 << 30, 1000, 1 << 30, 1 << 29, False, id="4 MB left of 4 TiB"),
        pytest.param(1 << 14, 1 << 10, 0, 0, True, id="a small one with room, that counts no inodes"),
        pytest.param(1 << 14, 50, 0, 0, False, id="a small one without"),
        pytest.param(1 << 30, 1 << 29, 10**9, 3 * 10**6, True, id="99.7 % of the inodes, and millions are left"),
        pytest.param(1 << 30, 1 << 29, 10**9, 3, False, id="no inodes left"),
        pytest.param(1 << 30, 1 << 29, 5000, 2500, True, id="few inodes, half of them in use"),
    ],
)
def test_a_file_system_is_full_where_hardly_anything_is_left(
    tmp_path, monkeypatch, blocks, free, inodes, inodes_free, healthy
):
    told = SimpleNamespace(f_blocks=blocks, f_bavail=free, f_frsize=4096, f_files=inodes, f_favail=inodes_free)
    monkeypatch.setattr(os, "statvfs", lambda path: told)
    assert by_name(survey("h0", tmp_path))["run_dir disk"].healthy is healthy


def test_only_what_has_changed_since_the_start_speaks_against_a_host():
    def probe(name: str, detail: str, healthy: bool = True) -> HostProbe:
        return HostProbe("h0", name, healthy, detail)

    before = [probe("link hsn0", "up"), probe("link hsn1", "down"), probe("fan", "stands", False), probe("shm", "")]
    now = [
        probe("link hsn0", "down"),
        probe("link hsn1", "down"),
        probe("fan", "stands", False),
        probe("shm", "", False),
    ]
    assert [item.probe for item in gone_since(before, now)] == ["shm", "link hsn0"]
    assert gone_since(before, before) == []


def test_a_lustre_client_that_has_lost_servers_speaks_of_storage_and_of_no_host(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    program(tools, "lfs", "echo scratch-OST0001-osc-ffff: active.")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    before = survey("h0", tmp_path)
    program(tools, "lfs", "echo \"lfs check: error: check 'scratch-OST0001': Connection timed out (110)\"; exit 110")
    (lost,) = gone_since(before, survey("h0", tmp_path))
    assert (lost.probe, lost.healthy) == ("lustre", False)
    assert "exit code 110: lfs check: error" in lost.detail
    killed = WorkerExit("h0", 0, exit_code=1)
    verdict = classify([killed, lost], Context(hosts=("h0", "h1"), live=True))
    assert (verdict.cause, verdict.hosts) == (Cause.STORAGE, ())
    assert gone_since([lost], [lost]) == [], "it was so before"


def test_a_failure_is_surveyed_in_a_thread_and_reports_what_is_wrong(tmp_path):
    own, journal = tmp_path / "probes", Journal(tmp_path / "run", "h0", "job")
    program(own, "fan", "exit 0")
    health = Health("h0", journal, own)
    health.start()
    health.close()
    program(own, "fan", "echo stands; exit 1")
    told: list[HostProbe] = []
    health.failed(1, [psutil.Process().pid], told.extend)
    health.close()
    assert [(item.probe, item.detail) for item in told] == [("fan", "exit code 1: stands")]
    assert (tmp_path / "run/journal/h0.jsonl").read_text().count('"host_probed"') == 2


def test_it_imports_no_torch():
    code = "import sys, ezpz_elastic.observe.host; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
