"""The demo's training script, as a user would write it: DDP, gloo, progress every step, a checkpoint every few steps.

``torchrun … -m ezpz_elastic.demo.trainer --checkpoints DIR --receipts DIR``. Nothing in it knows of the faults to come,
but for one thing: when a save fails it leaves a receipt of the error it met before it goes down with it.
"""

from __future__ import annotations

import time

_STARTED = time.monotonic()

import argparse  # noqa: E402  # the time that imports take is one of the spans the demo shows
import os  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.elastic.multiprocessing.errors import record  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from ezpz_elastic import progress  # noqa: E402
from ezpz_elastic.checkpoint import CheckpointManager, SaveFailed  # noqa: E402
from ezpz_elastic.checkpoint.facts import tell  # noqa: E402
from ezpz_elastic.demo.disk import narrowed  # noqa: E402
from ezpz_elastic.demo.model import ByteTransformer, windows  # noqa: E402
from ezpz_elastic.demo.receipts import Fault, Receipt, write_receipt  # noqa: E402
from ezpz_elastic.demo.text import read_corpus  # noqa: E402

BATCH = 16
VALIDATION_BATCH = 64
LEARNING_RATE = 3e-3


class _Spans:
    """Tells how long each part of the start took; only rank 0 does, so that each is told once."""

    def __init__(self, rank: int) -> None:
        self._rank, self._last = rank, _STARTED

    def end(self, name: str) -> None:
        now = time.monotonic()
        if self._rank == 0:
            tell("span", name=name, seconds=round(now - self._last, 6))
        self._last = now


def _save(manager: CheckpointManager, step: int, state: dict[str, object], receipts: Path) -> None:
    try:
        with narrowed(manager.directory.parent):
            manager.save(step, state)
    except SaveFailed as error:
        rank = dist.get_rank()
        write_receipt(
            receipts,
            Receipt(
                fault=Fault.DISK_FULL,
                round=int(os.environ.get("EZPZ_ROUND", "1")),
                landed=error.errno is not None,
                step=step,
                errno=error.errno,
                text=str(error).splitlines()[1] if "\n" in str(error) else str(error),
                witness=f"rank {rank}",
            ),
            suffix=f"-rank{rank}",
        )
        raise


def _train(arguments: argparse.Namespace, spans: _Spans) -> None:
    """Train to the end, from wherever the last complete checkpoint is."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = ByteTransformer()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    corpus = read_corpus()
    held_out = windows(corpus.validation, VALIDATION_BATCH, seed=0)
    spans.end("build")

    # The demo wants the disk itself to refuse a save that does not fit, so nothing asks for room beforehand.
    manager = CheckpointManager(arguments.checkpoints, keep_last=2, preflight=False)
    state: dict[str, object] = {"model": model, "optimizer": optimizer}
    step = manager.restore(state) or 0
    spans.end("restore")

    def validate() -> None:
        if rank == 0:
            with torch.no_grad():
                loss = float(model(held_out))
            tell("progress", step=step, validation_loss=round(loss, 4))
            print(f"step {step} validation loss {loss:.3f}", flush=True)

    validate()
    first = True
    while step < arguments.steps:
        optimizer.zero_grad()
        loss = parallel(windows(corpus.train, BATCH, seed=step * dist.get_world_size() + rank))
        loss.backward()
        optimizer.step()
        step += 1
        progress(step)
        print(f"step {step} loss {float(loss.detach()):.3f}", flush=True)
        if first:
            first = False
            spans.end("first_step")
        if step % arguments.save_every == 0 or step == arguments.steps:
            _save(manager, step, state, arguments.receipts)
    validate()
    manager.close()


@record  # type: ignore[untyped-decorator]  # torch is not followed by mypy
def main() -> None:
    """Join the others, train, leave."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--receipts", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    arguments = parser.parse_args()
    spans = _Spans(int(os.environ["RANK"]))
    spans.end("import")
    dist.init_process_group("gloo")
    spans.end("init_process_group")
    _train(arguments, spans)
    # DDP is gone by now. Were it the last to hold the process group, torch would join gloo's threads under the GIL that
    # these may be waiting for.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
