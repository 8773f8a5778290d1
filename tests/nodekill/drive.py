"""Runs ``nodekill.pbs`` as PBS would, on one machine: four loopback hosts, Hydra, and a stand-in for pbsdsh."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
HOSTS = tuple(f"127.0.0.{number}" for number in (2, 3, 4, 5))
MARK = "NODEKILL_TEST"
DEADLINE = 240.0


def hydra() -> str:
    """MPICH's launcher. A run in CI must have one; elsewhere the test is skipped."""
    found = shutil.which("mpiexec.hydra")
    if found is None:
        why = "no mpiexec.hydra: install Debian's mpich"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return found


class DryRun:
    """One submission.

    Args:
        directory: an empty one.
        mode: ``KILL_MODE``.
        settings: further environment.
        hosts: the allocation.
    """

    def __init__(
        self, directory: Path, mode: str, settings: Mapping[str, str] | None = None, hosts: tuple[str, ...] = HOSTS
    ) -> None:
        self.submitted = directory / "submitted"
        self.submitted.mkdir()
        self.run = self.submitted / f"nodekill-77-{mode}"
        spool, programs = directory / "spool", directory / "bin"
        spool.mkdir()
        programs.mkdir()
        script = shutil.copy(ROOT / "benchmarks/sunspot/nodekill.pbs", spool / "77.SC")
        # No link: Hydra looks for its daemon beside the name that it was called by.
        (programs / "mpiexec").write_text(f'#!/bin/sh\nexec {hydra()} "$@"\n')
        (programs / "mpiexec").chmod(0o755)
        for standin in (Path(__file__).parent / "standins").iterdir():
            shutil.copy(standin, programs / standin.name)
            (programs / standin.name).chmod(0o755)
        nodefile = directory / "nodefile"
        nodefile.write_text("".join(f"{host}\n" for host in hosts))
        mark = uuid.uuid4().hex
        environ = {
            **os.environ,
            "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PBS_JOBID": "77.dry-run",
            "PBS_NODEFILE": str(nodefile),
            "PBS_O_WORKDIR": str(self.submitted),
            "EZPZ_ELASTIC_HOME": str(ROOT),
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(programs / "remote"),
            "HYDRA_IFACE": "lo",
            "OMP_NUM_THREADS": "1",
            "KILL_MODE": mode,
            "NODEKILL_PYTHON": sys.executable,
            "NODEKILL_PPN": "1",
            "NODEKILL_PORT": str(_free_port()),
            "NODEKILL_PACE": "0.05",  # 20 s in which the kill has to come, of which it needs one
            "NODEKILL_PACE_RESUMED": "0.001",
            "NODEKILL_SHARD_MIB": "1",
            MARK: mark,
            **(settings or {}),
        }
        done = subprocess.run(
            ["bash", str(script)],
            cwd=self.submitted,
            env=environ,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=DEADLINE,
        )
        self.code, self.output = done.returncode, done.stdout
        self.left = _left(mark)

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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOSTS[0], 0))
        return int(probe.getsockname()[1])


def _left(mark: str) -> list[str]:
    """What the run left running; each is ended, so that one failed test does not disturb the next."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
