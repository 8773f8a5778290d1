"""Two-digit addition, written out: ``37+85=221`` (the sum 122, its last digit first), every problem there is.

The order in which problems are seen depends on the seed and on nothing else: neither on how many ranks there are nor on
who they are. A *serial* counts problems from the start of training; each serial is seen once.
"""

from __future__ import annotations

import functools

import torch

__all__ = ["ANSWER", "CONTEXT", "HELD_OUT", "PROMPT", "VOCABULARY", "batch", "exact_match", "held_out", "problems"]

VOCABULARY = 12
"""The ten digits, ``+`` and ``=``."""

PROMPT, ANSWER = 6, 3
"""Tokens of ``ab+cd=`` and of the sum."""

CONTEXT = PROMPT + ANSWER - 1
"""Tokens a model sees: all but the last one."""

HELD_OUT = 1000
"""Problems that are never trained on."""

_PLUS, _EQUALS = 10, 11


def _written(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    total = left + right
    plus, equals = torch.full_like(left, _PLUS), torch.full_like(left, _EQUALS)
    digits = (left // 10, left % 10, plus, right // 10, right % 10, equals)
    return torch.stack([*digits, total % 10, total // 10 % 10, total // 100], dim=1)


@functools.lru_cache
def problems() -> tuple[torch.Tensor, torch.Tensor]:
    """All problems but the held-out ones, and those: (9000, 9) and (1000, 9), int64."""
    pairs = torch.randperm(10_000, generator=torch.Generator().manual_seed(20))
    everything = _written(pairs // 100, pairs % 100)
    return everything[HELD_OUT:], everything[:HELD_OUT]


def held_out() -> torch.Tensor:
    """The problems that are never trained on: (HELD_OUT, 9), int64."""
    return problems()[1]


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int) -> torch.Tensor:
    return torch.randperm(len(problems()[0]), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def batch(seed: int, serials: range) -> torch.Tensor:
    """The problems with these serials: (len(serials), 9), int64."""
    training = problems()[0]
    where = [int(_order(seed, serial // len(training))[serial % len(training)]) for serial in serials]
    return training[where]


@torch.no_grad()
def exact_match(model: torch.nn.Module, asked: torch.Tensor) -> float:
    """The part of the problems whose every digit a model gets right, writing one after the other.

    Args:
        model: called with tokens and rows; its mode is restored.
        asked: (problems, 9), int64.
    """
    from scenarios.gpt import Rows

    training = model.training
    model.eval()
    written = asked[:, :PROMPT]
    for _ in range(ANSWER):
        following = model(written, Rows(0, len(written), len(written)))[:, -1].argmax(-1)
        written = torch.cat([written, following[:, None]], dim=1)
    model.train(training)
    return float((written == asked).all(dim=1).float().mean())
