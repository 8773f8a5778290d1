"""Runs the trainer: the baseline under plain torchrun, a target under real agents on loopback hosts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.cluster import Cluster, free_port

from scenarios.modes import Mode, Parallel

__all__ = [
    "DEADLINE",
    "FIRST_HOST",
    "baseline",
    "cluster",
    "host_name",
    "plain",
    "start",
    "start_all",
    "trainer",
]

_TESTS = Path(__file__).parent.parent

FIRST_HOST = 2
"""Host ``n`` of a run is ``127.0.0.<FIRST_HOST + n>``."""

DEADLINE = 120.0
"""Seconds that anything may take: many times what it needs on an idle machine."""

_IMPORTS = ("torch._dynamo", "ezpz_elastic.checkpoint")
"""What a worker needs beside torch; its host's warm process imports it once for all of them."""

_DIVIDED = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel")


def _conf(mode: Mode, more: str) -> str:
    modules = _IMPORTS if mode.parallel is Parallel.DDP else (*_IMPORTS, *_DIVIDED)
    return ",".join(filter(None, ("grace=5", f"warm_import={'+'.join(modules)}", more)))


def host_name(index: int) -> str:
    """What the journal calls host ``index``."""
    return f"127.0.0.{FIRST_HOST + index}"


def trainer(mode: Mode, directory: Path, steps: int, *more: str, dumps: bool = True) -> list[str]:
    """The command line of a run whose files are in ``directory``."""
    wanted = [f"--dumps={directory / 'dumps'}"] if dumps else []
    return [
        "-m",
        "scenarios.trainer",
        f"--mode={mode.name}",
        f"--steps={steps}",
        f"--checkpoints={directory / 'checkpoints'}",
        *wanted,
        *more,
    ]


def environment() -> dict[str, str]:
    """What a trainer needs beside what this process has."""
    path = os.pathsep.join(filter(None, (str(_TESTS), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def baseline(mode: Mode, directory: Path, steps: int, *more: str) -> None:
    """Train without a fault and without this project's agent, in one life.

    Raises:
        RuntimeError: torchrun failed; with the end of what it said.
    """
    plain(mode, directory, trainer(mode, directory, steps, *more))


def plain(mode: Mode, directory: Path, arguments: Sequence[str]) -> None:
    """Run something under plain torchrun, all ranks on one host.

    Raises:
        RuntimeError: torchrun failed; with the end of what it said.
    """
    directory.mkdir(parents=True)
    log = directory / "torchrun.log"
    command = [
        Cluster.torchrun(),
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port('127.0.0.1')}",
        f"--nproc-per-node={mode.ranks}",
        *arguments,
    ]
    with log.open("wb") as console:
        ended = subprocess.run(
            command,
            stdout=console,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=directory,
            env={**os.environ, **environment()},
            timeout=DEADLINE,
            check=False,
        )
    if ended.returncode != 0:
        raise RuntimeError(f"the baseline ended with {ended.returncode}:\n{log.read_text(errors='replace')[-3000:]}")


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Agents whose files are in ``directory``; all of them have ended afterwards, however it went."""
    directory.mkdir(parents=True, exist_ok=True)
    made = Cluster(directory, FIRST_HOST)
    try:
        yield made
        made.assert_nothing_left()
    finally:
        made.close()


def start(
    made: Cluster,
    index: int,
    mode: Mode,
    command: Sequence[str],
    *,
    least: int | None = None,
    conf: str = "",
    restarts: int = 3,
) -> None:
    """Start the agent of host ``index``.

    Args:
        made: the cluster.
        index: which host; those from ``mode.hosts`` on are spares.
        mode: the topology.
        command: what torchrun runs.
        least: hosts to go on with; ``mode.hosts`` by default.
        conf: more of ``--rdzv-conf``.
        restarts: the job's budget.
    """
    made.start(
        FIRST_HOST + index,
        command,
        nnodes=f"{least or mode.hosts}:{mode.hosts}",
        nproc=mode.per_host,
        max_restarts=restarts,
        conf=_conf(mode, conf),
        env=environment(),
    )


def start_all(made: Cluster, mode: Mode, command: Sequence[str], spares: int = 0, **more: Any) -> None:
    """Start all agents, the spares when the others have their slots: host 0, which serves the store, has slot 0.

    Args:
        made: the cluster.
        mode: the topology.
        command: what torchrun runs.
        spares: hosts beyond those that the mode needs.
        more: as for ``start``.
    """
    for index in range(mode.hosts):
        start(made, index, mode, command, **more)
    if spares:
        made.await_true(lambda: made.text("active.hostfile"), "the first round is open", DEADLINE)
    for index in range(mode.hosts, mode.hosts + spares):
        start(made, index, mode, command, **more)
    made.await_true(
        lambda: all(made.text(f"journal/{host_name(index)}.jsonl") for index in range(mode.hosts + spares)),
        "all hosts are there",
        DEADLINE,
    )
