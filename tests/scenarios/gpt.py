"""A small GPT whose dropout does not depend on how the batch is divided among ranks.

Every rank draws the masks of the whole batch from torch's default generator and keeps those of its own rows. So the
generator is in the same state on every rank, and a job that shrinks or grows goes on with the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

__all__ = ["GPT", "Block", "Rows"]


class Rows(NamedTuple):
    """The part of a batch that one rank works on.

    Args:
        first: its first row.
        end: one past its last row.
        batch: rows in all.
    """

    first: int
    end: int
    batch: int


class WholeBatchDropout(nn.Module):
    """Dropout with the masks of the whole batch."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        if not self.training or self.probability == 0.0:
            return hidden
        kept = torch.rand(rows.batch, *hidden.shape[1:])[rows.first : rows.end] >= self.probability
        return hidden * kept / (1.0 - self.probability)


class Block(nn.Module):
    """Attention and a feed-forward layer, both pre-norm. No biases: that of a key would have no gradient but noise.

    Args:
        width: size of an embedding.
        heads: attention heads.
        dropout: probability.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.size = width // heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.dropout = WholeBatchDropout(dropout)

    def forward(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        normed = self.before_attention(hidden)
        heads = [
            part(normed).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.query, self.key, self.value)
        ]
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        hidden = hidden + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)), rows)
        return hidden + self.dropout(self.down(functional.gelu(self.up(self.before_mlp(hidden)))), rows)


class GPT(nn.Module):
    """Decoder-only, learned positions.

    Args:
        vocabulary: number of tokens.
        context: tokens it sees at once.
        width, depth, heads: of the blocks.
        dropout: probability.
    """

    def __init__(self, vocabulary: int, context: int, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.1)  # with torch's 1.0 some seeds stay on a plateau
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Logits of the token after each.

        Args:
            tokens: (rows of this rank, at most context), int64.
            rows: which of the whole batch these are.

        Returns:
            (rows of this rank, tokens, vocabulary).
        """
        hidden = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            hidden = block(hidden, rows)
        return self.head(self.norm(hidden))
