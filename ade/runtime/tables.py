"""Lookup tables for exact inference: everything linear in a trained model multiplied together once, with numpy alone.

Everything between the look-up and the attention softmax is linear in the layer's input x = row + position, and
everything after the softmax is linear in the attention output. So one matrix B gives all that is needed of a row:

  query and key of every head         (the scale of the attention scores and the biases included)
  value of every head                 its part of the pooling score and of the class scores, W_c W_o W_v x; the plain
                                      value vector where that is shorter
  own scores                          what the row adds to these scores through the residual connection, W_c x

`row B` is kept per token, `position B` per position. W is the number of columns of B, C that of labels. The
tables are for attention over tokens; a model that attends over anchors is run by torch, or by `ade/plain.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from ade.codebook import Codebook, Table
from ade.configuration import EPSILON, Config
from ade.errors import InputError
from ade.folder import Saved
from ade.plain import sinusoidal


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


class Linear(NamedTuple):
    """Weights and biases of a linear layer, or of some of its outputs."""

    weight: np.ndarray  # (outputs, inputs)
    bias: np.ndarray  # (outputs,)


@dataclass(frozen=True, eq=False)
class LookupTables:
    """A trained model as tables."""

    config: Config
    table: Table
    layers: Mapping[str, np.ndarray]
    columns: Columns
    matrix: np.ndarray  # (W, d): B
    bias: np.ndarray  # (W,): of the layers, and B of LayerNorm's bias
    value_readout: np.ndarray | None  # (d, 1 + C): attention output -> scores, where values are plain vectors
    readout: Linear  # (1 + C, d): pooling score and class scores of what the last layer gives
    anchor_rows: np.ndarray | None = None  # (K, W + d): `undivided` of the anchors; None for a coded table

    @property
    def dim(self) -> int:
        """d, the width of an anchor."""
        return self.table.dim

    @property
    def outputs(self) -> int:
        """C: the number of labels, or the width of the vectors."""
        return len(self.readout.bias) - 1

    @property
    def value_width(self) -> int:
        """Columns of one head's value."""
        return (self.columns.value.stop - self.columns.value.start) // self.config.heads

    @property
    def has_positions(self) -> bool:
        """Whether tokens have positions."""
        return self.config.positions != "none" and self.config.position_scale != 0

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return B of the normalised rows of tokens (m,): (m, W).

        LayerNorm is linear but for one number that it divides by, so a token's is a weighted sum of its anchors'.
        """
        if self.anchor_rows is None or not isinstance(self.table, Codebook):
            undivided = self.undivided(self.table.rows(ids))
        else:
            anchor, beta, _ = self.table.padded(ids)  # (m, k)
            undivided = (beta[:, None] @ self.anchor_rows[anchor])[:, 0]  # (m, W + d)
        rows, centred = np.split(undivided, [len(self.bias)], 1)
        return rows / np.sqrt((centred**2).mean(1, keepdims=True) + np.float32(EPSILON))

    def undivided(self, vectors: np.ndarray) -> np.ndarray:
        """Return B of vectors (m, d) before LayerNorm divides, then the centred vectors: (m, W + d)."""
        centred = vectors - vectors.mean(1, keepdims=True)
        return np.hstack([(centred * self.layers["norm.weight"]) @ self.matrix.T, centred])

    def position_rows(self, count: int) -> np.ndarray:
        """Return B of the first `count` positions with its bias: (count, W); a single row where there are none."""
        if not self.has_positions:
            return self.bias[None]
        encoded = self.config.position_scale * sinusoidal(np.arange(count), self.dim)
        return encoded.astype(np.float32) @ self.matrix.T + self.bias


def lookup_tables(saved: Saved) -> LookupTables:
    """Multiply a model's layers into tables."""
    config, layers, dim = saved.config, saved.layers, saved.table.dim
    if config.attend != "tokens":
        raise InputError("lookup tables are for attention over tokens; this model attends over anchors")

    # The pooler and the head read the same vectors, so they are one matrix: (1 + C, d).
    head = _linear(layers, "head")
    pooler = _linear(layers, "pooler").weight if config.pools else np.zeros((1, dim))  # its bias changes no softmax
    readout = Linear(np.vstack([pooler, head.weight]), np.append(0.0, head.bias))

    # With further layers, what the tables give is not yet read out: the identity takes the place of the head.
    given = readout
    if config.layers > 1:
        given = Linear(np.vstack([np.zeros(dim), np.eye(dim)]), np.zeros(1 + dim))

    # A head's value is stored as its part of the scores, unless the vector is needed or is no longer than that.
    scores = len(given.bias)
    plain_values = scores > dim // config.heads
    parts, value_readout = [given], None
    if config.sat:
        parts = _projected(layers, given, config.heads, plain_values)
        if plain_values:
            value_readout = (given.weight @ _linear(layers, "sat.output").weight).T.astype(np.float32)
    matrix, bias = (np.concatenate(each).astype(np.float32) for each in zip(*parts, strict=True))
    columns = Columns.of(dim if config.sat else 0, len(parts[2].weight) if config.sat else 0, scores)
    last = Linear(*(each.astype(np.float32) for each in readout))
    bias = bias + matrix @ layers["norm.bias"]
    tables = LookupTables(config, saved.table, layers, columns, matrix, bias, value_readout, last)
    if isinstance(saved.table, Codebook):
        tables = replace(tables, anchor_rows=tables.undivided(saved.table.anchors))
    return tables


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
