"""Networks beyond the essential two: a convnet with batch norm, an LSTM, and a transformer with float32 islands."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_probe.draw import Draw
from amp_probe.probes.models import LENGTH, WIDTH, WORDS

_COLOURS, _CHANNELS, _SIZE, _CLASSES, _HEADS = 3, 8, 2, 16, 2


class Convnet(nn.Module):
    """Two convolutions, the second grouped, each with batch norm, then a pool and a head: (n, 3, h, w) to (n, 16).

    SiLU, where most have ReLU: at a kink a rounding turns a whole gradient on or off, which is nobody's fault. Without
    biases before batch norm, as usual: their gradients are 0 but for rounding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(_COLOURS, _CHANNELS, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, groups=2, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(_CHANNELS), nn.BatchNorm2d(_CHANNELS)
        self.head = nn.Linear(_CHANNELS, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, height, width) to logits (batch, 16)."""
        x = F.silu(self.norm1(self.conv1(x)))
        x = F.silu(self.norm2(self.conv2(x)))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class Recurrent(nn.Module):
    """Embeddings, an LSTM and a head: int64 (batch, length) to logits (batch * length, words)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 (batch, length) to logits (batch * length, words)."""
        states, _ = self.lstm(self.words(tokens))
        logits: Tensor = self.head(states)
        return logits.flatten(0, 1)


class Islands(nn.Module):
    """A transformer block whose author asked for float32 where it matters: norms, softmax, and the residual stream.

    The float32 softmax feeds a product with low-precision values, as written in many models.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm1, self.norm2, self.norm = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 (batch, length) to logits (batch * length, words)."""
        x = wide(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        x = x + self.out(self._attend(_norm(self.norm1, x)))
        x = x + self.down(F.gelu(self.up(_norm(self.norm2, x))))
        logits: Tensor = self.head(_norm(self.norm, x))
        return logits.flatten(0, 1)

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, _HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) * (width // _HEADS) ** -0.5
        mixed: Tensor = torch.softmax(wide(scores), dim=-1) @ v
        return mixed.transpose(1, 2).reshape(batch, length, width)


def wide(x: Tensor) -> Tensor:
    """In float32, or float64 where it is that already (the reference)."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(wide(x), norm.normalized_shape, wide(norm.weight), wide(norm.bias), norm.eps)


def pictures(draw: Draw) -> tuple[Tensor, Tensor]:
    """A batch for Convnet: 16 pictures of 2 by 2, so that sums over them are 64 long, and their classes.

    Of fewer pictures and classes it learns all in 30 steps, and what is left of its gradients is cancellation.
    """
    return draw.normal(16, _COLOURS, _SIZE, _SIZE), draw.integers(16, high=_CLASSES)
