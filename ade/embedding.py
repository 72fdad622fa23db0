"""AnchorEmbedding: the codebook as a layer (the paper's anchor look-up and weighted aggregation).

ids -> composed tokens, sum_j beta_j a_j, or the expanded anchor sequence with its batch of positions. The
pairs stay sparse; a table of N rows is never built.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.codebook import Codebook

DENSE_ANCHORS = 4096  # up to this K, training composes by a matrix product with dense coefficients


class Expanded(NamedTuple):
    """A batch as anchors instead of tokens: T is the most anchors any text of it has."""

    anchor: Tensor  # (B, T) int64: which anchor stands here
    weight: Tensor  # (B, T): its beta
    word: Tensor  # (B, T) int64: position of the word it belongs to
    mask: Tensor  # (B, T) bool: M[b, t] = t < sum of k over the text's words


class AnchorEmbedding(nn.Module):
    """Shared anchors and ragged pairs; anchors and weights can be trained, the indices are fixed."""

    def __init__(self, vocabulary: int, anchors: int, dim: int, pairs: int, max_pairs: int) -> None:
        super().__init__()
        self.max_pairs = max_pairs
        self.anchors = nn.Parameter(torch.zeros(anchors, dim))  # (K, d)
        self.weights = nn.Parameter(torch.zeros(pairs))  # (P,)
        self.register_buffer("indices", torch.zeros(pairs, dtype=torch.int16 if anchors <= 2**15 else torch.int32))
        self.register_buffer("counts", torch.ones(vocabulary, dtype=torch.uint8 if max_pairs < 2**8 else torch.int32))
        self.indices: Tensor
        self.counts: Tensor
        self._offsets: tuple[object, Tensor] | None = None  # derived from counts, never stored

    @classmethod
    def from_codebook(cls, codebook: Codebook) -> "AnchorEmbedding":
        """The codebook as a layer, scaled so that composed rows have unit variance."""
        layer = cls(codebook.vocabulary, len(codebook.anchors), codebook.dim, len(codebook.indices), codebook.max_pairs)
        layer.load_codebook(codebook)
        return layer

    @torch.no_grad()
    def load_codebook(self, codebook: Codebook) -> None:
        """Take over a codebook's values (shapes must agree)."""
        norm = torch.cat([rows.norm(dim=1) for _, rows in codebook.blocks()]).clamp(min=1e-6)  # (N,)
        self.anchors.copy_(codebook.anchors * codebook.dim**0.5)
        self.weights.copy_(codebook.weights / norm.repeat_interleave(codebook.counts.long()))
        self.indices.copy_(codebook.indices)
        self.counts.copy_(codebook.counts)

    @property
    def offsets(self) -> Tensor:
        """Where each token's pairs start; worked out anew when the counts have changed in any way."""
        state = (id(self.counts), 0 if self.counts.is_inference() else self.counts._version)
        if self._offsets is None or self._offsets[0] != state:
            counts = self.counts.long()
            self._offsets = (state, counts.cumsum(0) - counts)  # (N,)
        return self._offsets[1]

    def pairs_of(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Anchors and weights of tokens (n,), padded to `max_pairs` with weight 0, and a mask of the real ones."""
        column = torch.arange(self.max_pairs, device=ids.device)
        mask = column < self.counts[ids].unsqueeze(1)  # (n, k)
        slot = torch.where(mask, self.offsets[ids].unsqueeze(1) + column, 0)  # (n, k)
        weight = self.weights.gather(0, slot.flatten()).view_as(slot) * mask  # its gradient is a plain sum
        return self.indices[slot].long(), weight, mask

    def coefficients(self, ids: Tensor) -> Tensor:
        """Rows of the transform T for tokens (n,): dense over the K anchors, zero where a token has no pair."""
        index, weight, _ = self.pairs_of(ids)
        return weight.new_zeros(len(ids), len(self.anchors)).scatter_add(1, index, weight)  # (n, K)

    def compose(self, ids: Tensor) -> Tensor:
        """Composed tokens (n, d): the one-step look-up of Vocabulary Projection.

        Going forward alone the sparse sum is many times faster; its backward pass is slow, so training multiplies by
        dense coefficients instead.
        """
        if torch.is_grad_enabled() and len(self.anchors) <= DENSE_ANCHORS:
            return self.coefficients(ids) @ self.anchors
        index, weight, _ = self.pairs_of(ids)
        return F.embedding_bag(index, self.anchors, mode="sum", per_sample_weights=weight)

    def expand(self, ids: Tensor, mask: Tensor) -> Expanded:
        """The anchor sequence of a batch of ids (B, L): every token replaced by its anchors, in order."""
        batch, length = ids.shape
        counts = self.counts[ids].long() * mask  # (B, L)
        ends = counts.sum(1)  # (B,)
        owner = torch.repeat_interleave(counts.flatten())  # (S,): batch_map * L + pos_map
        within = torch.arange(len(owner), device=ids.device) - (counts.flatten().cumsum(0) - counts.flatten())[owner]
        text = owner // length  # the paper's batch_map
        column = torch.arange(len(owner), device=ids.device) - (ends.cumsum(0) - ends)[text]
        slot = self.offsets[ids.flatten()[owner]] + within  # (S,)
        shape = (batch, int(ends.max()))
        return Expanded(
            ids.new_zeros(shape).index_put((text, column), self.indices[slot].long()),
            self.weights.new_zeros(shape).index_put((text, column), self.weights[slot]),
            ids.new_zeros(shape).index_put((text, column), owner % length),
            torch.arange(shape[1], device=ids.device) < ends.unsqueeze(1),
        )
