"""Several ranks with a gloo group, as real processes forked from a server that has torch loaded already."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

context = multiprocessing.get_context("forkserver")
# The package's names are loaded on use, so the modules themselves are named; the last one where the path allows it.
context.set_forkserver_preload(
    ["torch.distributed.tensor", "ezpz_elastic.checkpoint.manager", "ezpz_elastic.checkpoint.reader", "checkpoint.jobs"]
)

DEADLINE = 120.0


def _rank(answer: Connection, rendezvous: str, rank: int, world: int, work: Callable[..., Any], args: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    try:
        answer.send((True, work(rank, world, *args)))
    except Exception:
        answer.send((False, traceback.format_exc()))
        raise
    finally:
        dist.destroy_process_group()


def run_ranks(world: int, work: Callable[..., Any], *args: Any, killed: frozenset[int] = frozenset()) -> list[Any]:
    """``work(rank, world, *args)`` in ``world`` processes; their results in rank order.

    Args:
        world: how many ranks.
        work: a function that a fresh process can import.
        args: for it.
        killed: ranks that must die of SIGKILL; their result is ``None``.

    Raises:
        AssertionError: another rank raised, died or took longer than two minutes.
    """
    with tempfile.TemporaryDirectory() as scratch:
        pairs = []
        for rank in range(world):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(theirs, str(Path(scratch) / "store"), rank, world, work, args)
            )
            process.start()
            theirs.close()
            pairs.append((process, mine))
        try:
            answers = [_answer(process, mine) for process, mine in pairs]
        finally:
            for process, mine in pairs:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()
                mine.close()
        failed = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok and rank not in killed]
        assert not failed, "\n".join(failed)
        assert {rank for rank, (process, _) in enumerate(pairs) if process.exitcode == -signal.SIGKILL} == killed
        return [value if ok else None for ok, value in answers]


def _answer(process: Any, mine: Connection) -> tuple[bool, Any]:
    if not wait([mine], DEADLINE):
        return False, f"no answer within {DEADLINE} s"
    try:
        return mine.recv()
    except EOFError:
        process.join()
        return False, f"died with {process.exitcode}"
