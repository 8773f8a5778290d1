"""A training state small enough for a unit test and rich enough to lose something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


class Training:
    """A model, its Adam and scheduler, and the odds and ends a resumed run needs.

    Args:
        seed: of the initial weights.
        width: of the model; its parameters and Adam state take about ``12 * width ** 2`` bytes.
    """

    def __init__(self, seed: int = 0, width: int = 64) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 5])
        self.width = width
        self.plain: dict[str, Any] = {"position": 0, "seen": {}, 7: ("a", 2.5)}

    def step(self) -> None:
        """One optimizer step on random data."""
        self.model(torch.randn(4, self.width)).sum().backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.plain = {**self.plain, "position": self.plain["position"] + 4}

    def state(self) -> dict[str, Any]:
        """What to hand to a manager."""
        return {
            "model": self.model,
            "optim": self.optimizer,
            "sched": self.scheduler,
            "rng": torch.get_rng_state(),
            "data": self.plain,
            "note": "text",
            "loss": 1.25,
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """A copy of every tensor that training changes."""
        found = {f"model.{name}": value.clone() for name, value in self.model.state_dict().items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            found.update({f"optim.{index}.{name}": value.clone() for name, value in entries.items()})
        return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether both hold equal tensors under the same names."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def shards(step: Path) -> list[Path]:
    """The shard files of a step, in name order."""
    return sorted(step.glob("*.distcp"))


def flip_byte(path: Path, at: int) -> None:
    """Change one byte in place."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))
