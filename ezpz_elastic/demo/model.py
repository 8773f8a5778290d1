"""A small transformer that predicts the next byte."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["CONTEXT", "ByteTransformer", "windows"]

CONTEXT = 64
"""Bytes the model sees at once."""

_BYTES = 256


class ByteTransformer(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """Decoder-only, pre-norm, learned positions.

    Args:
        width: size of an embedding.
        depth: number of blocks.
        heads: attention heads per block.
    """

    def __init__(self, width: int = 64, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_BYTES, width)
        self.places = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, _BYTES)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text: torch.Tensor) -> Any:
        """Mean cross entropy (nats per byte) of predicting each byte from those before it.

        Args:
            text: bytes, (batch, CONTEXT + 1), int64.
        """
        seen, following = text[:, :-1], text[:, 1:]
        hidden = self.blocks(self.tokens(seen) + self.places, mask=self.mask, is_causal=True)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), following.flatten())


def windows(text: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Random pieces of the text; the same seed gives the same pieces, so a repeated step is the same step.

    Args:
        text: bytes, one-dimensional.
        count: how many pieces.
        seed: of the choice.

    Returns:
        (count, CONTEXT + 1), int64.
    """
    chance = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - CONTEXT - 1, (count, 1), generator=chance)
    return text[starts + torch.arange(CONTEXT + 1)].long()
