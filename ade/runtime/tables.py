"""Lookup tables for exact inference: everything linear in a trained model multiplied together once, with numpy alone.

Everything between the look-up and the attention softmax is linear in the layer's input x = row + position, and
everything after the softmax is linear in the attention output. So one matrix B gives all that is needed of a row:

  query and key of every head         (the scale of the attention scores and the biases included)
  value of every head                 its part of the pooling score and of the class scores, W_c W_o W_v x; the plain
                                      value vector where that is shorter
  own scores                          what the row adds to these scores through the residual connection, W_c x

`row B` is kept per token, `position B` per position. W is the number of columns of B, K the number of anchors, k the
most pairs of a token, C the number of labels. The tables are for attention over tokens; a model that attends over
anchors is run by torch, or by `ade/plain.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from ade.codebook import Codebook, CodedTable
from ade.configuration import EPSILON, Config
from ade.errors import InputError
from ade.folder import Saved
from ade.plain import sinusoidal
from ade.runtime.layers import ExtraLayers, Linear, layer_norm, read_layers

MAX_GRAM_ANCHORS = 2048  # up to here the inner products of all anchors are kept


class Columns(NamedTuple):
    """Which columns of a row hold what. Slices of parts a model does not have are empty."""

    query: slice  # d: the heads side by side
    key: slice  # d
    value: slice  # H value_width
    own_scores: slice  # 1 + C: pooling score, class scores

    @classmethod
    def of(cls, attention_width: int, values: int, scores: int) -> "Columns":
        """Return the slices one after the other."""
        widths = (attention_width, attention_width, values, scores)
        return cls(*(slice(start, stop) for start, stop in pairwise(accumulate(widths, initial=0))))

    @property
    def total(self) -> int:
        """W: the number of columns."""
        return int(self.own_scores.stop)


@dataclass(frozen=True, eq=False)
class AnchorRows:
    """Rows of tokens from a codebook, without composing a vector.

    LayerNorm divides by one number, the standard deviation of the composed token, which the inner products of the
    token's own anchors give; the rest is a weighted sum of rows of anchors.
    """

    codebook: Codebook
    anchor_rows: np.ndarray  # (K, W): B of every anchor, LayerNorm's weight included
    shift: np.ndarray  # (W,): B of LayerNorm's bias
    centred: np.ndarray  # (K, d): anchors less their mean, over sqrt(d)
    gram: np.ndarray | None  # (K, K): inner products of `centred`; None where K is large

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows of tokens (m,): (m, W)."""
        anchor, beta, _ = self.codebook.padded(ids)  # (m, k)
        gram = beta[:, :, None] * self._inner_products(anchor) * beta[:, None, :]  # (m, k, k)
        deviation = np.sqrt(np.maximum(gram.sum((1, 2)), 0) + EPSILON)
        weight = beta / deviation[:, None]
        return (weight[:, None] @ self.anchor_rows[anchor])[:, 0] + self.shift

    def _inner_products(self, anchor: np.ndarray) -> np.ndarray:
        if self.gram is not None:
            return self.gram[anchor[:, :, None], anchor[:, None, :]]
        own = self.centred[anchor]  # (m, k, d)
        return own @ own.swapaxes(1, 2)


@dataclass(frozen=True, eq=False)
class DecodedRows:
    """Rows of tokens from a coded table."""

    table: CodedTable
    gain: np.ndarray  # (d,): of LayerNorm
    shift: np.ndarray  # (d,)
    matrix: np.ndarray  # (W, d)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows of tokens (m,): (m, W)."""
        return layer_norm(self.table.rows(ids), self.gain, self.shift) @ self.matrix.T


@dataclass(frozen=True, eq=False)
class LookupTables:
    """A trained model as tables."""

    config: Config
    vocabulary: int
    rows: AnchorRows | DecodedRows
    columns: Columns
    matrix: np.ndarray  # (W, d): B
    bias: np.ndarray  # (W,)
    value_readout: np.ndarray | None  # (d, 1 + C): attention output -> scores, where values are plain vectors
    extra: ExtraLayers | None = None  # layers after SAT; the tables' scores are then SAT's output vectors

    @property
    def dim(self) -> int:
        """d, the width of an anchor."""
        return int(self.matrix.shape[1])

    @property
    def outputs(self) -> int:
        """C: the number of labels, or the width of the vectors."""
        return (self.columns.total - self.columns.own_scores.start if self.extra is None else self.extra.outputs) - 1

    @property
    def value_width(self) -> int:
        """Columns of one head's value."""
        return (self.columns.value.stop - self.columns.value.start) // self.config.heads

    @property
    def has_positions(self) -> bool:
        """Whether tokens have positions."""
        return self.config.positions != "none" and self.config.position_scale != 0

    def position_rows(self, count: int) -> np.ndarray:
        """Return B of the first `count` positions with its bias: (count, W); a single row where there are none."""
        if not self.has_positions:
            return self.bias[None]
        encoded = self.config.position_scale * sinusoidal(np.arange(count), self.dim)
        return encoded.astype(np.float32) @ self.matrix.T + self.bias


def lookup_tables(saved: Saved, vectors: bool = False) -> LookupTables:
    """Multiply a model's layers into tables that give scores or, on request, the pooled vectors before the head."""
    config, layers, dim = saved.config, saved.layers, saved.table.dim
    if config.attend != "tokens":
        raise InputError("lookup tables are for attention over tokens; this model attends over anchors")

    # The pooler and the head read the same vectors, so they are one matrix: (1 + C, d).
    weight, bias = _linear(layers, "head")
    if vectors:
        weight, bias = np.eye(dim), np.zeros(dim)
        config = replace(config, mean=0.0, deviation=1.0)
    pooler = _linear(layers, "pooler").weight if config.pools else np.zeros((1, dim))  # its bias changes no softmax
    readout = Linear(np.vstack([pooler, weight]), np.append(0.0, bias))

    # With further layers, what the tables give is not yet read out: the identity takes the place of the head.
    extra = None
    if further := read_layers(layers, config):
        extra = ExtraLayers(further, readout.float32())
        readout = Linear(np.vstack([np.zeros(dim), np.eye(dim)]), np.zeros(1 + dim))
    scores = len(readout.bias)

    # A head's value is stored as its part of the scores, unless the vector is needed or is no longer than that.
    plain_values = scores > dim // config.heads
    parts, value_readout = [readout], None
    if config.sat:
        parts = _projected(layers, readout, config.heads, plain_values)
        if plain_values:
            value_readout = (readout.weight @ _linear(layers, "sat.output").weight).T.astype(np.float32)
    matrix, bias = (np.concatenate(each).astype(np.float32) for each in zip(*parts, strict=True))
    columns = Columns.of(dim if config.sat else 0, len(parts[2].weight) if config.sat else 0, scores)

    gain, shift = layers["norm.weight"], layers["norm.bias"]
    rows: AnchorRows | DecodedRows
    if isinstance(saved.table, Codebook):
        centred = saved.table.anchors - saved.table.anchors.mean(1, keepdims=True)
        scaled = centred * np.float32(dim**-0.5)
        gram = scaled @ scaled.T if len(scaled) <= MAX_GRAM_ANCHORS else None
        rows = AnchorRows(saved.table, (centred * gain) @ matrix.T, matrix @ shift, scaled, gram)
    else:
        rows = DecodedRows(saved.table, gain, shift, matrix)
    return LookupTables(config, saved.table.vocabulary, rows, columns, matrix, bias, value_readout, extra)


def _linear(layers: Mapping[str, np.ndarray], name: str) -> Linear:
    return Linear(*(layers[f"{name}.{part}"].astype(np.float64) for part in ("weight", "bias")))


def _projected(layers: Mapping[str, np.ndarray], readout: Linear, heads: int, plain_values: bool) -> list[Linear]:
    """Return query, key, value and own scores: the rows of B and its bias."""
    projection, output = _linear(layers, "sat.projection"), _linear(layers, "sat.output")
    parts = zip(np.split(projection.weight, 3), np.split(projection.bias, 3), strict=True)
    query, key, value = (Linear(*part) for part in parts)
    dim = len(query.bias)
    scale = (dim // heads) ** -0.5
    query = Linear(query.weight * scale, query.bias * scale)

    if not plain_values:
        of_head = (readout.weight @ output.weight).reshape(-1, heads, dim // heads).transpose(1, 0, 2)  # (H, 1+C, d/H)
        weight = of_head @ value.weight.reshape(heads, dim // heads, dim)  # (H, 1 + C, d)
        bias = of_head @ value.bias.reshape(heads, -1, 1)  # (H, 1 + C, 1)
        value = Linear(weight.reshape(-1, dim), bias.ravel())

    # The bias of the output layer is the same for every element, so it goes into the element's own scores.
    own_scores = Linear(readout.weight, readout.bias + readout.weight @ output.bias)
    return [query, key, value, own_scores]
