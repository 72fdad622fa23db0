"""What tables cannot hold, with numpy alone: the softmax of attention, and the layers after SAT.

Further layers have attention and a feed-forward block, as in `ade.model.TransformerLayer`; a model of one layer needs
attention alone. In the comments, n is a number of texts, T their tokens and H the heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ade.configuration import EPSILON, Config

MAX_SAFE_SCORE = 60.0  # attention scores up to here need no shift before the exponential
MIN_SAFE_SUM = 1e-25  # nor do rows whose exponentials sum to more than this
MAX_ATTENTION_SCORES = 1 << 23  # attention scores in memory at a time


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, real: np.ndarray) -> np.ndarray:
    """What attention gives each element, per head: (n, T, H, value).

    Queries and keys are (n, T, H, d / H), the scale of the scores included; values (n, T, H, value); `real` (n, T) is
    false for padding.
    """
    count, length, heads, width = value.shape
    query = query.transpose(0, 2, 1, 3)  # (n, H, T, d / H)
    key = key.transpose(0, 2, 3, 1)  # (n, H, d / H, T)
    if not real.all():
        value = value * real[:, :, None, None]

    # Long texts have many attention scores, so a part of the queries at a time.
    output = np.empty((count, length, heads, width), dtype=np.float32)
    step = max(1, MAX_ATTENTION_SCORES // (count * heads * length))
    for start in range(0, length, step):
        part = slice(start, start + step)
        weight, total = _attention_weights(query[:, :, part], key, real)
        target = output[:, part]
        np.matmul(weight, value.transpose(0, 2, 1, 3), out=target.transpose(0, 2, 1, 3))
        target /= total.transpose(0, 2, 1, 3)
    return output


def _attention_weights(query: np.ndarray, key: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Attention weights (n, H, Q, T) before they are normalised, and their sums over the real keys (n, H, Q, 1).

    The largest score is subtracted before the exponential only where it has to be, which is rare.
    """
    scores = query @ key
    if not scores.max() < MAX_SAFE_SCORE:
        _shift(scores, real)
    weight = np.exp(scores, out=scores)
    ones = real[:, None, :, None].astype(np.float32)
    total = weight @ ones
    if not total.min() > MIN_SAFE_SUM:  # every score of some row is far below 0
        scores = query @ key
        _shift(scores, real)
        weight = np.exp(scores, out=scores)
        total = weight @ ones
    return weight, total


def _shift(scores: np.ndarray, real: np.ndarray) -> None:
    """Subtract the largest real score of every row, in place: the softmax is the same, the exponential is safe."""
    scores -= np.where(real[:, None, None, :], scores, -np.inf).max(3, keepdims=True)
    np.minimum(scores, 0, out=scores)  # scores of padding may be larger


class Linear(NamedTuple):
    """Weights and biases of a linear layer, or of some of its outputs."""

    weight: np.ndarray  # (outputs, inputs)
    bias: np.ndarray  # (outputs,)

    def float32(self) -> "Linear":
        """Return the layer in float32."""
        return Linear(self.weight.astype(np.float32), self.bias.astype(np.float32))

    def of(self, x: np.ndarray) -> np.ndarray:
        """Apply the layer to (..., inputs)."""
        return x @ self.weight.T + self.bias


@dataclass(frozen=True, eq=False)
class ExtraLayer:
    """A layer after SAT."""

    norms: Mapping[str, tuple[np.ndarray, np.ndarray]]  # gain and shift of `attention_norm` and `norm`
    linears: Mapping[str, Linear]  # sat.projection, sat.output, inner, outer
    heads: int

    def __call__(self, x: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Return the layer's output (n, T, d) for vectors (n, T, d), of which `real` (n, T) are no padding."""
        count, length, dim = x.shape
        projected = self.linears["sat.projection"].of(layer_norm(x, *self.norms["attention_norm"]))
        split = projected.reshape(count, length, 3, self.heads, dim // self.heads)
        query, key, value = split.transpose(2, 0, 1, 3, 4)  # each (n, T, H, d / H)
        mixed = attend(query * np.float32((dim // self.heads) ** -0.5), key, value, real)
        x = x + self.linears["sat.output"].of(mixed.reshape(count, length, dim))
        inner = np.maximum(self.linears["inner"].of(layer_norm(x, *self.norms["norm"])), 0)
        return x + self.linears["outer"].of(inner)


@dataclass(frozen=True, eq=False)
class ExtraLayers:
    """All layers after SAT, and the pooling score and class scores of what they return."""

    layers: tuple[ExtraLayer, ...]
    readout: Linear  # (1 + C, d)

    @property
    def outputs(self) -> int:
        """1 + C: pooling score and class scores."""
        return len(self.readout.bias)

    def __call__(self, x: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Return pooling score and class scores (n, T, 1 + C) of SAT's output (n, T, d)."""
        for layer in self.layers:
            x = layer(x, real)
        return self.readout.of(x)


def layer_norm(x: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return vectors (..., d) with mean 0 and variance 1, then scaled and shifted."""
    centred = x - x.mean(-1, keepdims=True)
    variance = np.einsum("...d,...d->...", centred, centred) / np.float32(x.shape[-1])
    return centred / np.sqrt(variance + np.float32(EPSILON))[..., None] * gain + shift


def read_layers(layers: Mapping[str, np.ndarray], config: Config) -> tuple[ExtraLayer, ...]:
    """Return the layers after SAT of a model's weights."""

    def parts(name: str) -> tuple[np.ndarray, np.ndarray]:
        return layers[f"{name}.weight"], layers[f"{name}.bias"]

    found = []
    for i in range(config.layers - 1):
        norms = {name: parts(f"layers.{i}.{name}") for name in ("attention_norm", "norm")}
        names = ("sat.projection", "sat.output", "inner", "outer")
        found.append(ExtraLayer(norms, {name: Linear(*parts(f"layers.{i}.{name}")) for name in names}, config.heads))
    return tuple(found)
