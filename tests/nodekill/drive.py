"""Runs ``nodekill.pbs`` as PBS would, on one machine: four loopback hosts, Hydra, and a stand-in for pbsdsh."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cluster import free_port
from support.marked import MARK, end, marked

ROOT = Path(__file__).parents[2]
HOSTS = tuple(f"127.0.0.{number}" for number in (2, 3, 4, 5))
DEADLINE = 240.0

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "NODEKILL_PYTHON": sys.executable,
    "NODEKILL_PPN": "1",
    "NODEKILL_EVERY": "10",
    "NODEKILL_PACE": "0.1",  # 39 s in which the kill has to come, of which it needs one
    "NODEKILL_PACE_RESUMED": "0.001",
    "NODEKILL_SHARD_MIB": "1",
    "NODEKILL_PATIENCE": "120",
}


def require_hydra() -> None:
    """MPICH's launcher. A run in CI must have one; elsewhere the test is skipped."""
    if shutil.which("mpiexec.hydra") is None:
        why = "no mpiexec.hydra: install Debian's mpich"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)


class DryRun:
    """One submission.

    Args:
        directory: an empty one.
        mode: ``KILL_MODE``.
        settings: further environment.
        hosts: the allocation.
        told_to_stop: it gets SIGTERM when it has printed this, as from PBS when the time is over.
    """

    def __init__(
        self,
        directory: Path,
        mode: str,
        settings: Mapping[str, str] | None = None,
        hosts: tuple[str, ...] = HOSTS,
        told_to_stop: str = "",
    ) -> None:
        require_hydra()
        self.submitted = directory / "submitted"
        self.run = self.submitted / f"nodekill-77-{mode}"
        self.output = ""
        spool, programs, nodefile = directory / "spool", directory / "bin", directory / "nodefile"
        for made in (self.submitted, spool, programs):
            made.mkdir()
        script = shutil.copy(ROOT / "benchmarks/sunspot/nodekill.pbs", spool / "77.SC")
        for standin in (Path(__file__).parent / "standins").iterdir():
            shutil.copy(standin, programs / standin.name)
            (programs / standin.name).chmod(0o755)
        nodefile.write_text("".join(f"{host}\n" for host in hosts))
        mark = uuid.uuid4().hex
        environ = {**os.environ, **_allocation(nodefile, self.submitted, programs), **SETTINGS}
        environ |= {"KILL_MODE": mode, MARK: mark, **(settings or {})}
        self.code = self._submit(script, environ, told_to_stop)
        self.left = _left(mark)

    def _submit(self, script: Path, environ: Mapping[str, str], told_to_stop: str) -> int:
        command = ["bash", str(script)]
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        with subprocess.Popen(
            command, cwd=self.submitted, env=environ, stdin=subprocess.DEVNULL, stdout=pipe, stderr=both
        ) as job:
            alarm = threading.Timer(DEADLINE, job.kill)
            alarm.start()
            assert job.stdout is not None
            for line in job.stdout:
                self.output += line.decode(errors="replace")
                if told_to_stop and told_to_stop.encode() in line:
                    job.terminate()
        alarm.cancel()
        return job.returncode

    def said(self, name: str) -> str:
        """What the report says of a check, without its detail."""
        found = [line for line in self.output.splitlines() if f": {name}" in line]
        assert len(found) == 1, self.output
        return found[0].partition(":")[0]

    def overall(self) -> str:
        """The last word."""
        found = [line for line in self.output.splitlines() if line.startswith("OVERALL: ")]
        assert len(found) == 1, self.output
        return found[0].removeprefix("OVERALL: ")

    def bad_nodes(self) -> str:
        """``bad_nodes.txt``."""
        path = self.run / "job/bad_nodes.txt"
        return path.read_text() if path.exists() else ""

    def active(self) -> list[str]:
        """The last roster."""
        return (self.run / "job/active.hostfile").read_text().splitlines()


def _allocation(nodefile: Path, submitted: Path, programs: Path) -> dict[str, str]:
    """What a job finds in its environment, and how Hydra gets to its hosts on this machine."""
    return {
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PBS_JOBID": "77.dry-run",
        "PBS_NODEFILE": str(nodefile),
        "PBS_O_WORKDIR": str(submitted),
        "EZPZ_ELASTIC_HOME": str(ROOT),
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(programs / "remote"),
        "HYDRA_IFACE": "lo",
        "NODEKILL_PORT": str(free_port(HOSTS[0])),
    }


def _left(mark: str) -> list[str]:
    """What the run left running; each is ended, so that one failed test does not disturb the next."""
    deadline = time.monotonic() + 60
    while (found := list(marked(mark))) and time.monotonic() < deadline:
        time.sleep(0.05)  # what is on its way out may take its time
    end(mark)
    return [str(process) for process in found]
