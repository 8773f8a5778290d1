"""What launchers and libraries print when things break, for a trainer that plays a whole job in one process.

The lines are in the form in which these programs print them (``signatures/`` has the sources); a made-up line would
only prove that a harness can match itself.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ezpz_elastic.faults.scene import Scene

__all__ = [
    "clean_walltime",
    "enospc",
    "enospc_named",
    "gloo_peer",
    "innocent_cascade",
    "rank_exit",
    "rank_sig9",
    "shepherd",
    "silent_fail",
    "ur_oom",
]

_TERMINATED = 143
"""What a shell sees of a job that SIGTERM ended: the scheduler's, or the launcher's own teardown."""

_ADDRESS = "10.119.7.21"
"""Of a peer, where hosts are not listed by address; nobody's in the job."""


def _end(code: int, *lines: str) -> NoReturn:
    sys.stdout.flush()
    for line in lines:
        print(line, file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)  # what plays a launcher has no interpreter to take down, which takes seconds where torch is imported


def shepherd(scene: Scene) -> None:
    """The launcher's daemon on one host was killed; the launcher names the host."""
    _end(1, f"{scene.host}: shepherd died from signal 9")


def rank_sig9(scene: Scene) -> None:
    """The launcher names the host whose rank was killed, and the ranks elsewhere that it tore down itself."""
    cascade = [f"{peer}: rank {number} died from signal 15" for number, peer in enumerate(scene.peers, 1)]
    _end(_TERMINATED, f"{scene.host}: rank 12 died from signal 9", *cascade)


def gloo_peer(scene: Scene) -> None:
    """One rank says that a peer on another host closed the connection."""
    peer = scene.peers[0] if scene.peers else ""
    address = peer if peer.replace(".", "").isdigit() else _ADDRESS
    where = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534]"
    _end(1, f"RuntimeError: {where} Connection closed by peer [{address}]:41220")


def ur_oom(scene: Scene) -> None:
    """A device runs out of resources."""
    del scene
    _end(1, "RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)")


def rank_exit(scene: Scene) -> None:
    """One rank ends with code 1 and the launcher tears the job down: not walltime, although the shell sees 143."""
    _end(_TERMINATED, f"{scene.host}: rank 7 exited with code 1")


def innocent_cascade(scene: Scene) -> None:
    """What every walltime kill looks like: ranks that SIGTERM ended."""
    _end(_TERMINATED, *(f"{host}: rank {n} died from signal 15" for n, host in enumerate((scene.host, *scene.peers))))


def clean_walltime(scene: Scene) -> None:
    """The end of the allocation, without a word."""
    del scene
    _end(_TERMINATED)


def silent_fail(scene: Scene) -> None:
    """A failure that no signature knows."""
    del scene
    _end(1, "something went wrong, giving up")


def enospc(scene: Scene) -> None:
    """A checkpoint's write meets a full storage target, and the launcher tears the job down."""
    _end(_TERMINATED, *_full_target(scene), *_teardown(scene))


def enospc_named(scene: Scene) -> None:
    """The same, with a line in the teardown that would name a healthy host if it stood alone."""
    _end(_TERMINATED, *_full_target(scene), f"{scene.host}: shepherd died from signal 9", *_teardown(scene))


def _full_target(scene: Scene) -> tuple[str, ...]:
    frame = '[rank23]:   File "/lus/venv/lib/python3.12/site-packages/torch/distributed/checkpoint/filesystem.py"'
    return (
        f"{frame}, line 422, in _write_files_from_queue",
        '[rank23]:     with create_stream(file_name, "wb") as stream:',
        f"{frame}, line 520, in create_stream",
        "[rank23]:     with path.open(mode) as stream:",
        "[rank23]: OSError: [Errno 28] No space left on device",
        f"{scene.host}: rank 16 exited with code 1",
    )


def _teardown(scene: Scene) -> tuple[str, ...]:
    return tuple(f"{peer}: rank {number} died from signal 15" for number, peer in enumerate(scene.peers))
