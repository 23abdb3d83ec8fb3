"""The models that the probes train and run: small, without buffers, and every sum at most 64 terms long."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_probe.draw import Draw

WORDS, LENGTH, WIDTH = 40, 16, 32
_FEATURES, _HIDDEN, _OUTPUTS, _HEADS = 32, 64, 16, 2


class MLP(nn.Sequential):
    """Three linear layers with GELU between: (rows, 32) to (rows, 16)."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(_FEATURES, _HIDDEN),
            nn.GELU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.GELU(),
            nn.Linear(_HIDDEN, _OUTPUTS),
        )


class Block(nn.Module):
    """Attention written out (softmax, then a product), and an MLP, each behind a norm and added to its input."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        x = x + self.out(self._attend(self.norm1(x)))
        y: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + y

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5, dim=-1)
        mixed: Tensor = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return mixed


class Transformer(nn.Module):
    """Embeddings of tokens and positions, one block, a norm and a head: (batch, length) to (tokens, words)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.block = Block(WIDTH, _HIDDEN, _HEADS)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 (batch, length) to logits (batch * length, words)."""
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        y: Tensor = self.head(self.norm(self.block(x)))
        return y.flatten(0, 1)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error, written out: torch 2.5 has no low F.mse_loss on a CPU, and `op.mse` asks for that."""
    return (output - target).square().mean()


def numbers(draw: Draw) -> tuple[Tensor, Tensor]:
    """A batch for MLP: 32 rows of inputs, and targets that it can come near."""
    return draw.normal(32, _FEATURES), draw.normal(32, _OUTPUTS)


def sentences(draw: Draw) -> tuple[Tensor, Tensor]:
    """A batch for Transformer: 2 sequences of 16 tokens, and the 32 tokens that follow.

    No more: torch's CPU layer_norm adds up a low-precision weight's gradient in the low dtype, and 64 terms of that lie
    at the limit (`op.layer_norm[long_reduction]` asks for many).
    """
    return draw.integers(2, LENGTH, high=WORDS), draw.integers(2 * LENGTH, high=WORDS)
