"""The tables of `projection.py` on a device: how their columns lie, and a batch of texts as rows of them."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.packing.pairs import pair_slots


@dataclass(frozen=True)
class Pairs:
    """The pairs of a codebook, end to end."""

    counts: Tensor  # (N,) int32
    starts: Tensor  # (N,) int32
    anchors: Tensor  # (P,) int32
    weights: Tensor  # (P,) float32
    most: int


@dataclass(frozen=True)
class Gates:
    """What gating a token's anchors by its context takes."""

    heard: Tensor  # (d, K + 1 + C + zeros): what is heard -> scores of the gates, then its own part in the scores
    bias: Tensor  # (K,) float32: of the gates
    gram: Tensor  # (K, K) float32: inner products of the centred anchors, over d
    direct: Tensor  # (K, 1 + C) float32: what an anchor adds to the scores, before the division by the deviation
    constant: Tensor  # (1 + C,) float32


@dataclass(frozen=True)
class Folded:
    """The tables of a model and how their columns are divided."""

    rows: Tensor  # (R, W): B of token types or of anchors
    places: Tensor  # (P, W): B of positions, with the bias
    heads: int
    width: int  # of a head
    value: int  # columns of a head's value: 1 + C, or `width` where the heard vector itself is asked for
    scores: int  # 1 + C
    pairs: Pairs | None = None  # where anchors are attended over or gated
    gates: Gates | None = None
    grouped: bool = True  # an anchor has its word's position

    @property
    def stride(self) -> int:
        """Columns of a head."""
        return 2 * self.width + padded(self.value)

    @property
    def heard(self) -> torch.dtype:
        """What is heard is summed up at once, or multiplied."""
        return torch.float32 if self.gates is None else self.rows.dtype

    def laid_out(self, table: Tensor) -> Tensor:
        """A table with the columns of `projection.py`, queries, keys, values, the rest, as they lie here."""
        heads, keys = self.heads * self.width, 2 * self.heads * self.width
        query, key = (
            table[:, :heads].unflatten(1, (self.heads, -1)),
            table[:, heads:keys].unflatten(1, (self.heads, -1)),
        )
        own = keys + self.heads * self.value
        value = table[:, keys:own].unflatten(1, (self.heads, -1))
        value = F.pad(value, (0, padded(self.value) - self.value))
        rest = F.pad(table[:, own:], (0, padded(self.scores) - self.scores))
        return torch.cat([torch.cat([query, key, value], 2).flatten(1), rest], 1).contiguous()


def padded(columns: int) -> int:
    """A power of two, at least 16: what a product needs, and rows begin where the device likes to read."""
    return max(16, 1 << (columns - 1).bit_length())


@dataclass(frozen=True)
class Elements:
    """A batch of texts as rows: those of tokens, positions to be added, or rows laid out, one after the other."""

    lengths: Tensor  # (B,) int32: elements of each text
    rows: Tensor  # (R, W): a table, with an index; (B, T, W): laid out
    index: Tensor | None = None  # (B, T) int32: which row of the table

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, T)."""
        return (self.rows if self.index is None else self.index).shape[:2]


def pairs_of(pairs: Pairs, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors and weights of tokens (...,), padded to `most` with weight 0, and which are real: each (..., k)."""
    slot, there = pair_slots(pairs.counts, pairs.starts, ids, pairs.most)
    return pairs.anchors[slot], pairs.weights[slot] * there, there
