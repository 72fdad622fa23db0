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

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from ade.codebook import Codebook
from ade.configuration import EPSILON
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
    def of(cls, widths: Sequence[int]) -> "Columns":
        """Return the slices one after the other."""
        return cls(*(slice(start, stop) for start, stop in pairwise(accumulate(widths, initial=0))))

    @property
    def total(self) -> int:
        """W: the number of columns."""
        return int(self.own_scores.stop)


class LookupTables:
    """A trained model as tables."""

    matrix: np.ndarray  # (W, d): B
    bias: np.ndarray  # (W,): of the layers, and B of LayerNorm's bias
    columns: Columns
    readout: np.ndarray  # (1 + C, d): pooling score and class scores of what the last layer gives
    readout_bias: np.ndarray  # (1 + C,)
    value_readout: np.ndarray | None = None  # (d, 1 + C): attention output -> scores, where values are plain vectors

    def __init__(self, saved: Saved) -> None:
        if saved.config.attend != "tokens":
            raise InputError("lookup tables are for attention over tokens; this model attends over anchors")
        self.config, self.table, self.layers = saved.config, saved.table, saved.layers
        self.dim, self.outputs = saved.table.dim, saved.config.outputs  # d, C
        self.has_positions = self.config.positions != "none" and self.config.position_scale != 0
        layers = {name: layer.astype(np.float64) for name, layer in saved.layers.items()}

        # The pooler and the head read the same vectors, so they are one matrix.
        pooler = (
            layers["pooler.weight"] if self.config.pools else np.zeros((1, self.dim))
        )  # its bias changes no softmax
        readout = np.vstack([pooler, layers["head.weight"]])
        readout_bias = np.append(0.0, layers["head.bias"])
        self.readout, self.readout_bias = readout.astype(np.float32), readout_bias.astype(np.float32)
        if self.config.layers > 1:  # what the tables give is not yet read out: the identity takes the place of the head
            readout, readout_bias = np.vstack([np.zeros(self.dim), np.eye(self.dim)]), np.zeros(1 + self.dim)

        weights, biases = [readout], [readout_bias]
        if self.config.sat:
            weights, biases = self._projected(layers, readout, readout_bias)
        attention = [len(weight) for weight in weights[:-1]] or [0, 0, 0]
        self.columns = Columns.of([*attention, len(readout)])
        self.matrix = np.concatenate(weights).astype(np.float32)
        self.bias = np.concatenate(biases).astype(np.float32) + self.matrix @ saved.layers["norm.bias"]
        self.anchor_rows = np.empty(0, np.float32)  # (K, W + d); none for a coded table
        if isinstance(self.table, Codebook):
            self.anchor_rows = self._undivided(self.table.anchors)

    def _projected(
        self, layers: Mapping[str, np.ndarray], readout: np.ndarray, readout_bias: np.ndarray
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return weights and biases of query, key, value and own scores."""
        heads, width = self.config.heads, self.dim // self.config.heads
        query, key, value = np.split(layers["sat.projection.weight"], 3)  # each (d, d)
        query_bias, key_bias, value_bias = np.split(layers["sat.projection.bias"], 3)
        output, scale = readout @ layers["sat.output.weight"], width**-0.5  # (1 + C, d)

        # A head's value is stored as its part of the scores, unless the vector is needed or is no longer than that.
        if len(readout) > width:
            self.value_readout = output.T.astype(np.float32)
        else:
            of_head = output.reshape(-1, heads, width).transpose(1, 0, 2)  # (H, 1 + C, d / H)
            value = (of_head @ value.reshape(heads, width, -1)).reshape(-1, self.dim)  # (H (1 + C), d)
            value_bias = (of_head @ value_bias.reshape(heads, width, 1)).ravel()

        # The bias of the output layer is the same for every element, so it goes into the element's own scores.
        own_bias = readout_bias + readout @ layers["sat.output.bias"]
        return [query * scale, key, value, readout], [query_bias * scale, key_bias, value_bias, own_bias]

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return B of the normalised rows of tokens (m,): (m, W).

        LayerNorm is linear but for one number that it divides by, so a token's is a weighted sum of its anchors'.
        """
        if isinstance(self.table, Codebook):
            anchor, beta, _ = self.table.padded(ids)  # (m, k)
            undivided = (beta[:, None] @ self.anchor_rows[anchor])[:, 0]  # (m, W + d)
        else:
            undivided = self._undivided(self.table.rows(ids))
        rows, centred = np.split(undivided, [len(self.bias)], 1)
        return rows / np.sqrt((centred**2).mean(1, keepdims=True) + np.float32(EPSILON))

    def _undivided(self, vectors: np.ndarray) -> np.ndarray:
        """Return B of vectors (m, d) before LayerNorm divides, then the centred vectors: (m, W + d)."""
        centred = vectors - vectors.mean(1, keepdims=True)
        return np.hstack([(centred * self.layers["norm.weight"]) @ self.matrix.T, centred])

    def position_rows(self, count: int) -> np.ndarray:
        """Return B of the first `count` positions with its bias: (count, W); a single row where there are none."""
        if not self.has_positions:
            return self.bias[None]
        encoded = self.config.position_scale * sinusoidal(np.arange(count), self.dim)
        return encoded.astype(np.float32) @ self.matrix.T + self.bias
