"""The pairs of a stored model, packed or not, read with numpy alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ade.arrays import Array, arange_like
from ade.errors import InputError
from ade.packing import format as packing
from ade.packing.coded import NO_PAIRS, CodedRows

EMBEDDING_PREFIX = "ade.embedding."  # of the codebook's arrays in a model's state


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
        self.vocabulary, self.max_pairs = len(self._counts), int(self._counts.max(initial=1))

        complete = self._counts.min(initial=0) >= 0 and self._counts.sum() == len(self._indices) == len(self._weights)
        in_range = 0 <= self._indices.min(initial=0) <= self._indices.max(initial=0) < len(self._anchors)
        if not complete or not in_range:
            raise InputError("its pairs do not add up, or an index lies outside the anchors")

    def anchors(self) -> np.ndarray:
        """Every anchor: (K, d)."""
        return self._anchors

    def counts(self, types: np.ndarray) -> np.ndarray:
        """The number of pairs of each token type."""
        return self._counts[types]

    def of(self, types: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Anchors and weights of token types (n,), padded with weight 0, and a mask of the real ones: each (n, k)."""
        slot, real = pair_slots(self._counts, self._starts, types, self.max_pairs)
        return self._indices[slot], self._weights[slot] * real, real


class PackedPairs:
    """The pairs of a packed model, read from their packed form; the interface of `PlainPairs`."""

    def __init__(self, shape: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> None:
        self._shape, self._arrays = packing.Shape(**shape), arrays
        self._starts = packing.check(self._shape, arrays)
        self.vocabulary, self.max_pairs = self._shape.vocabulary, self._shape.most

    def anchors(self) -> np.ndarray:
        """Every anchor: (K, d)."""
        return packing.all_anchors(self._shape, self._arrays)

    def counts(self, types: np.ndarray) -> np.ndarray:
        """The number of pairs of each token type."""
        return packing.counts_of(self._shape, self._arrays, types.astype(np.int64))

    def of(self, types: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Anchors and weights of token types (n,), padded with weight 0, and a mask of the real ones: each (n, k)."""
        index, weight, real = packing.lookup(self._shape, self._arrays, self._starts, types.astype(np.int64))
        return index, weight.astype(np.float32), real


Pairs = PlainPairs | PackedPairs


def stored_rows(config: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> Pairs | CodedRows:
    """What a model has its tokens' rows from: pairs, or a coded table; arguments as of `stored_pairs`."""
    if not config.get("coded"):
        return stored_pairs(config, state)
    if not config.get("packed"):
        raise InputError("its coded table is not packed: the books are those of training; save the encoder with `save`")
    prefix = f"{EMBEDDING_PREFIX}coded."
    arrays = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
    return CodedRows(config["coded"], arrays)


def stored_pairs(config: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> Pairs:
    """The pairs of a model, from its configuration and the arrays of `model.safetensors`."""
    if config.get("coded"):
        raise InputError(NO_PAIRS)
    arrays = {
        name.removeprefix(EMBEDDING_PREFIX): array for name, array in state.items() if name.startswith(EMBEDDING_PREFIX)
    }
    return PackedPairs(config["packed"], arrays) if config.get("packed") else PlainPairs(arrays)
