"""The pairs of a stored model, packed or not: three questions, answered with numpy alone."""

from collections.abc import Mapping

import numpy as np

from ade.arrays import Array, arange_like
from ade.errors import InputError
from ade.packing import format as packing


def pair_slots(counts: Array, starts: Array, ids: Array, width: int) -> tuple[Array, Array]:
    """Where the pairs of tokens stand in arrays that hold the pairs of all tokens one after the other.

    Token i has the `counts[i]` pairs from `starts[i]` on. Returns their positions for the tokens `ids` of any shape,
    (..., width), and a mask of the real ones; the position is 0 where a token has fewer than `width` pairs.
    """
    column = arange_like(width, ids)
    real = column < counts[ids][..., None]
    return (starts[ids][..., None] + column) * real, real


class PlainPairs:
    """The pairs of a model that is not packed."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._anchors = arrays["anchors"].astype(np.float32)
        self._indices, self._weights = arrays["indices"].astype(np.int64), arrays["weights"].astype(np.float32)
        self._counts = arrays["counts"].astype(np.int64)
        self._starts = np.cumsum(self._counts) - self._counts  # (N,)
        self.vocabulary, self.most = len(self._counts), int(self._counts.max(initial=1))
        fits = self._counts.min(initial=0) >= 0 and self._counts.sum() == len(self._indices) == len(self._weights)
        if not fits or not (0 <= self._indices.min(initial=0) <= self._indices.max(initial=0) < len(self._anchors)):
            raise InputError("its pairs do not add up, or an index lies outside the anchors")

    def anchors(self) -> np.ndarray:
        """Every anchor: (K, d)."""
        return self._anchors

    def counts(self, types: np.ndarray) -> np.ndarray:
        """How many pairs token types have."""
        return self._counts[types]

    def of(self, types: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Anchors and weights of token types (n,), padded with weight 0, and which are real: each (n, most)."""
        slot, there = pair_slots(self._counts, self._starts, types, self.most)
        return self._indices[slot], self._weights[slot] * there, there


class PackedPairs:
    """The pairs of a packed model, as they are stored; the same three questions."""

    def __init__(self, shape: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> None:
        self._shape, self._arrays = packing.Shape(**shape), arrays
        self._starts = packing.check(self._shape, arrays)
        self.vocabulary, self.most = self._shape.vocabulary, self._shape.most

    def anchors(self) -> np.ndarray:
        """Every anchor: (K, d)."""
        return packing.all_anchors(self._shape, self._arrays)

    def counts(self, types: np.ndarray) -> np.ndarray:
        """How many pairs token types have."""
        return packing.counts_of(self._shape, self._arrays, types.astype(np.int64))

    def of(self, types: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Anchors and weights of token types (n,), padded with weight 0, and which are real: each (n, most)."""
        index, weight, there = packing.lookup(self._shape, self._arrays, self._starts, types.astype(np.int64))
        return index, weight.astype(np.float32), there
