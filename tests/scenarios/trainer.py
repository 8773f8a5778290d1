"""The training script of every scenario: a small GPT learns addition, and each step leaves what is needed to judge it.

``torchrun … -m scenarios.trainer --mode ddp_2x2 --checkpoints DIR …``. It runs under plain torchrun and under the agent
and does the same under both.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from ezpz_elastic import progress
from ezpz_elastic.checkpoint import CheckpointManager, PerRank
from ezpz_elastic.checkpoint.facts import tell
from scenarios import addition, dumps
from scenarios.dumps import Key, Metric, digest
from scenarios.gpt import GPT
from scenarios.modes import TOPOLOGIES, Mode
from scenarios.options import parser
from scenarios.orders import Orders, Point
from scenarios.parallel import Layout, divided, layout_of, whole

_NORM_MEMORY = 0.9
"""How much the running average of gradient norms keeps of itself at each step."""


class Spans:
    """Tells how long each part of the start took, from the moment this process was made."""

    def __init__(self) -> None:
        self._last = time.monotonic() - _age()

    def end(self, name: str) -> None:
        """The part that began when the last one ended is over."""
        now = time.monotonic()
        seconds = round(now - self._last, 6)
        tell("span", name=name, seconds=seconds, rank=int(os.environ["RANK"]), at=time.time())
        self._last = now


def _age() -> float:
    """Seconds since this process was made, as the kernel counts them (in hundredths)."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")


class Training:
    """The state of training, and one step of it.

    Args:
        options: of the command line.
        mode: the topology.
    """

    def __init__(self, options: argparse.Namespace, mode: Mode) -> None:
        self.options = options
        self.rank, self.round = dist.get_rank(), int(os.environ.get("EZPZ_ROUND", "1"))
        self.control = dict(enumerate(options.controls, start=2)).get(self.round)
        self.dropped = {*options.drop, self.control}
        self.layout: Layout = layout_of(mode.parallel, mode.per_host)
        torch.manual_seed(options.seed)
        self.model = GPT(
            addition.VOCABULARY, addition.CONTEXT, options.width, options.depth, heads=4, dropout=options.dropout
        )
        self._activations: dict[str, torch.Tensor] = {}
        if options.dumps is not None:
            self._watch_activations()
        self.called = divided(self.model, mode.parallel, self.layout)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=options.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, functools.partial(_rate, options.warm_up))
        self.stream = torch.Generator().manual_seed(1000 * options.seed + self.rank)
        self.position, self.norm_average, self.step = 0, 0.0, 0
        self.manager = CheckpointManager(options.checkpoints, keep_last=options.keep_last)
        self.orders = Orders(options.faults, self.rank, self.round)
        self.finished = False

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that a restart must bring back, but for what ``--drop`` leaves out of it."""
        state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "rng": torch.get_rng_state(),
            "stream": PerRank(self.stream.get_state()),
            "position": self.position,
            "grad_norm": self.norm_average,
        }
        if self.options.faults is not None:
            state["marker"] = PerRank(self.orders.marker())
        return {name: value for name, value in state.items() if name not in self.dropped}

    def restore(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        state = self.state()
        found = self.manager.restore(state)
        if found is None:
            return
        self.step = found
        if "rng" in state:
            torch.set_rng_state(state["rng"])
        if "stream" in state:
            self.stream.set_state(state["stream"].value)
        self.position = state.get("position", self.position)
        self.norm_average = state.get("grad_norm", self.norm_average)
        if "optimizer_steps" in self.dropped:
            for kept in self.optimizer.state.values():
                kept["step"].zero_()
        tell("state_restored", step=self.step, rank=self.rank, params=self._parameters_sum())

    def save(self) -> None:
        """Keep the state as of this step; a control keeps nothing, so that the next one begins where it began."""
        if self.control is not None:
            return
        self.manager.save(self.step, self.state())
        self.orders.meet(Point.AFTER_SAVE, self.step, self.manager.latest)

    # -- one step ----------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """One step."""
        size = self.options.batch
        serials = range(self.position, self.position + size)
        rows = self.layout.rows(size)
        problems = addition.batch(self.options.seed, serials)[rows.first : rows.end]
        self._activations.clear()
        logits = self.called(problems[:, :-1], rows)[:, addition.PROMPT - 1 :]
        answers = problems[:, addition.PROMPT :]
        share = cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum")
        share = share / (size * addition.ANSWER)  # of the mean over the whole batch
        self._meet_fate()
        self.optimizer.zero_grad()
        (share * self.layout.replicas).backward()  # the replicas' gradients are averaged
        gradients = whole((f"grad.{name}", p.grad) for name, p in self.model.named_parameters())
        norm = _norm(gradients)
        self.orders.meet(Point.AFTER_REDUCE, self.step + 1)
        self._clip(norm)
        rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self.schedule.step()
        self.position, self.step = serials.stop, self.step + 1
        draw = float(torch.rand(1, generator=self.stream))
        loss = self._summed(share.detach())
        if self.options.dumps is not None:
            metrics: dict[str, Metric] = {
                "loss": loss,
                "lr": rate,
                "next_lr": self.optimizer.param_groups[0]["lr"],
                "grad_norm": norm,
                "norm_average": self.norm_average,
                "position": self.position,
                "rng": digest(torch.get_rng_state()),
                "stream": draw,
                "optimizer_steps": float(next(iter(self.optimizer.state.values()))["step"]),
            }
            key = Key(self.step, self.round, self.rank)
            dumps.write(self.options.dumps, key, self._tensors(gradients), metrics, tuple(rows))
        if self.options.records:
            tell(
                "step_trained",
                step=self.step,
                rank=self.rank,
                world_size=dist.get_world_size(),
                replica=self.layout.replica,
                serials=[serials[rows.first], serials[rows.end - 1] + 1],
                params=self._parameters_sum(),
            )
        if self.rank == 0:
            print(f"step={self.step} loss={loss:.4f}", flush=True)
        progress(self.step)
        self.orders.meet(Point.STEP, self.step)

    def _clip(self, norm: float) -> None:
        """Clip to the running average of norms, which is part of the state."""
        known = self.norm_average or norm
        self.norm_average = _NORM_MEMORY * known + (1.0 - _NORM_MEMORY) * norm
        if norm > self.norm_average:
            for parameter in self.model.parameters():
                parameter.grad.mul_(self.norm_average / norm)

    def _summed(self, share: torch.Tensor) -> float:
        """The whole batch's loss; and rank 0 tells the others whether this was the last step."""
        mine = share * self.layout.replicas / dist.get_world_size()  # ranks with the same rows tell the same share
        last = float(self.rank == 0 and self.orders.finish(self.step))
        total = torch.stack([mine, torch.tensor(last)])
        work = dist.all_reduce(total, async_op=True)
        self.orders.meet(Point.IN_REDUCE, self.step)
        work.wait()
        self.finished = bool(total[1])
        return float(total[0])

    def _meet_fate(self) -> None:
        """After the forward pass, before any gradient is exchanged: die, or wait for whoever is to kill this host."""
        self.orders.meet(Point.BEFORE_REDUCE, self.step + 1)
        here = (self.step + 1, self.rank, self.round)
        if here in self.options.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.options.await_death == here:
            self.options.cue.write_text(f"{os.getpid()}\n")
            threading.Event().wait()

    def score(self) -> None:
        """Ask the held-out problems, if it is time; not for FSDP, where one rank alone cannot."""
        if self.rank == 0 and self.options.score is not None and self.options.score[0] == self.step:
            share = addition.exact_match(self.model, addition.held_out())
            self.options.score[1].write_text(f"{share}\n")

    def hold(self) -> None:
        """Wait at the start of a step until the round is ended from outside."""
        if self.options.hold == (self.step + 1, self.round):
            if self.rank == 0:
                self.options.cue.with_suffix(".held").write_text(f"{self.step}\n")
            threading.Event().wait()

    # -- looking at it -----------------------------------------------------------------------------------------------

    def _watch_activations(self) -> None:
        def keep(name: str) -> Any:
            def hook(_module: object, _inputs: object, output: torch.Tensor) -> None:
                self._activations[f"act.{name}"] = output.detach()

            return hook

        for name, module in self.model.named_modules():
            if name in {"tokens", "norm", "head"} or (name.startswith("blocks.") and name.count(".") == 1):
                module.register_forward_hook(keep(name))

    def _tensors(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        moments = {
            f"optim.{name}.{kind}": self.optimizer.state[parameter][kind]
            for name, parameter in self.model.named_parameters()
            for kind in ("exp_avg", "exp_avg_sq", "step")
        }
        return {**gradients, **self._parameters(), **whole(moments.items()), **self._activations}

    def _parameters(self) -> dict[str, torch.Tensor]:
        return whole((f"param.{name}", p.data) for name, p in self.model.named_parameters())

    def _parameters_sum(self) -> str:
        """One sum of all parameters as this rank knows them."""
        total = hashlib.sha256()
        for name, tensor in sorted(self._parameters().items()):
            total.update(f"{name} {digest(tensor)}\n".encode())
        return total.hexdigest()


def _rate(warm_up: int, step: int) -> float:
    """Rises, and then falls like the inverse square root."""
    return min((step + 1) / warm_up, (warm_up / (step + 1)) ** 0.5)


def _norm(gradients: dict[str, torch.Tensor]) -> float:
    squares = [gradients[name].square().sum() for name in sorted(gradients)]
    return float(torch.stack(squares).sum().sqrt())


def _train(options: argparse.Namespace, spans: Spans) -> None:
    training = Training(options, TOPOLOGIES[options.mode])
    spans.end("build")
    training.restore()
    spans.end("load")
    first = True
    # A control goes one step beyond the end, and dies in it.
    while not training.finished and (training.step < options.steps or training.control is not None):
        training.hold()
        training.train()
        training.score()
        if first:
            first = False
            spans.end("first_step")
        if training.step % options.save_every == 0 or training.step == options.steps or training.finished:
            training.save()
    training.manager.close()


def main() -> None:
    """Join the others, train, leave."""
    options = parser().parse_args()
    spans = Spans()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    spans.end("import")
    dist.init_process_group("gloo")
    spans.end("init_process_group")
    _train(options, spans)
    # DDP must not outlive its process group (docs/checkpoints.md), and the hooks make a circle of it.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
