"""What a survey of a host says, and what of it speaks against the host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from ezpz_elastic.decide.classify import classify
from ezpz_elastic.decide.context import Context
from ezpz_elastic.decide.evidence import HostProbe, WorkerExit
from ezpz_elastic.decide.verdict import Cause
from ezpz_elastic.health import Health
from ezpz_elastic.journal import Journal
from ezpz_elastic.observe import host as host_module
from ezpz_elastic.observe.host import DEADLINE, gone_since, survey


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


def test_the_users_own_probes_speak_by_their_exit_code_within_a_limit(tmp_path):
    own = tmp_path / "probes"
    program(own, "fine", "echo all well")
    program(own, "broken", "echo fan 3 stands; exit 4")
    program(own, "endless", "exec sleep 100")
    (own / "readme.txt").write_text("not a program")
    began = time.monotonic()
    found = by_name(survey("h0", tmp_path, probes_dir=own))
    assert time.monotonic() - began < 30, "a probe without an end is not waited for"
    assert (found["fine"].healthy, found["fine"].detail) == (True, "all well")
    assert (found["broken"].healthy, found["broken"].detail) == (False, "exit code 4: fan 3 stands")
    assert (found["endless"].healthy, found["endless"].detail) == (False, f"no answer within {DEADLINE} s")
    assert "readme.txt" not in found


def test_a_vendors_tool_is_a_fact_whatever_it_answers(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    program(tools, "nvidia-smi", "echo 417, 2000 MiB, python")
    program(tools, "lfs", "exit 1")
    program(tools, "xpu-smi", "exec sleep 100")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    found = by_name(survey("h0", tmp_path))
    assert found["gpu processes"].detail == "nvidia-smi: 417, 2000 MiB, python"
    assert found["lustre"].detail == "lfs: exit code 1"
    assert found["xpu processes"].detail == "xpu-smi: no answer"
    assert all(found[name].healthy for name in ("gpu processes", "lustre", "xpu processes"))
    assert "sycl devices" not in found


def test_a_full_or_missing_file_system_is_unhealthy(tmp_path, monkeypatch):
    assert not by_name(survey("h0", tmp_path / "gone"))["run_dir disk"].healthy
    monkeypatch.setattr(host_module, "FULL", 0.0)
    assert not by_name(survey("h0", tmp_path))["run_dir disk"].healthy


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
