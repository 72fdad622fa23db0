"""The layers after SAT with numpy alone: attention and feed-forward blocks, as in `ade.model.TransformerLayer`.

A model of one layer needs none of this: its tables hold everything. In the comments, n is a number of texts, T their
tokens and H the heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ade.config_values import EPSILON
from ade.runtime.attention import attend


@dataclass(frozen=True)
class Dense:
    """A linear layer, its weights transposed: x @ weight + bias."""

    weight: np.ndarray  # (inputs, outputs)
    bias: np.ndarray  # (outputs,)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Apply the layer to (..., inputs)."""
        return x @ self.weight + self.bias


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalisation with its learned gain and shift."""

    gain: np.ndarray  # (d,)
    shift: np.ndarray  # (d,)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Normalise vectors (..., d)."""
        centred = x - x.mean(-1, keepdims=True)
        variance = np.einsum("...d,...d->...", centred, centred) / np.float32(x.shape[-1])
        return centred / np.sqrt(variance + EPSILON)[..., None] * self.gain + self.shift


@dataclass(frozen=True)
class NumpyLayer:
    """A further layer; the scale of the attention scores is part of the query's weights."""

    attention_norm: LayerNorm
    projection: Dense  # (d, 3 d): query, key and value side by side
    output: Dense
    norm: LayerNorm
    inner: Dense
    outer: Dense

    def __call__(self, x: np.ndarray, real: np.ndarray, heads: int) -> np.ndarray:
        """The layer's output (n, T, d) for vectors (n, T, d), of which `real` (n, T) are no padding."""
        count, length, dim = x.shape
        projected = self.projection(self.attention_norm(x)).reshape(count, length, 3, heads, dim // heads)
        query, key, value = projected.transpose(2, 0, 1, 3, 4)  # each (n, T, H, d / H)
        x = x + self.output(attend(query, key, value, real).reshape(count, length, dim))
        return x + self.outer(np.maximum(self.inner(self.norm(x)), 0))


@dataclass(frozen=True)
class Depth:
    """All layers after SAT, and the pooling score and class scores of what they return."""

    layers: tuple[NumpyLayer, ...]
    readout: Dense  # (d, 1 + C)

    def __call__(self, x: np.ndarray, real: np.ndarray, heads: int) -> np.ndarray:
        """Pooling score and class scores (n, T, 1 + C) of SAT's output (n, T, d)."""
        for layer in self.layers:
            x = layer(x, real, heads)
        return self.readout(x)


def read_layers(
    dense: Callable[[str, int], tuple[np.ndarray, np.ndarray]], state: Mapping[str, np.ndarray], dim: int, heads: int
) -> tuple[NumpyLayer, ...]:
    """The further layers of a model; `dense` reads weights (outputs, inputs) and biases of a layer by its name."""

    def norm(name: str) -> LayerNorm:
        return LayerNorm(state[f"{name}.weight"].astype(np.float32), state[f"{name}.bias"].astype(np.float32))

    def linear(name: str, inputs: int) -> Dense:
        weight, bias = dense(name, inputs)
        return Dense(np.ascontiguousarray(weight.T.astype(np.float32)), bias.astype(np.float32))

    layers: list[NumpyLayer] = []
    while (prefix := f"ade.layers.{len(layers)}") + ".norm.weight" in state:
        projection = linear(f"{prefix}.sat.projection", dim)
        scale = np.ones(3 * dim, np.float32)
        scale[:dim] = (dim // heads) ** -0.5  # the query's
        inner = linear(f"{prefix}.inner", dim)
        layers.append(
            NumpyLayer(
                attention_norm=norm(f"{prefix}.attention_norm"),
                projection=Dense(projection.weight * scale, projection.bias * scale),
                output=linear(f"{prefix}.sat.output", dim),
                norm=norm(f"{prefix}.norm"),
                inner=inner,
                outer=linear(f"{prefix}.outer", len(inner.bias)),
            )
        )
    return tuple(layers)
