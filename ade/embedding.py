"""What a folder holds, as layers: the table (the only place where torch asks its kind), the lexicon, rounded weights.

With a codebook (the paper's anchor look-up and weighted aggregation), token ids become composed token vectors,
sum_j beta_j a_j, or the expanded anchor sequence. The pairs stay sparse: they are never unfolded into a table with a
row per token.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.codebook import Codebook, Table
from ade.coded_layer import PackedTable, TrainableTable
from ade.lexicon import Lexicon
from ade.packing.format import ANCHOR_BITS, WEIGHT_LEVELS
from ade.plain import sinusoidal

DENSE_ANCHORS = 4096  # up to this K, training composes by a matrix product with dense coefficients


def table_layer(table: Table) -> "AnchorEmbedding | TrainableTable":
    """Return a table as a layer whose values can be trained; the codes of a coded one stay."""
    if isinstance(table, Codebook):
        return AnchorEmbedding(table)
    return TrainableTable(PackedTable.of_table(table), rotation=False)


class Expanded(NamedTuple):
    """A batch as anchors instead of tokens; T is the largest number of anchors of any of its texts."""

    anchor: Tensor  # (B, T) int64: index of the anchor
    weight: Tensor  # (B, T): its beta
    word: Tensor  # (B, T) int64: position of the word it belongs to
    mask: Tensor  # (B, T) bool: M[b, t] = t < sum of k over the text's words


class AnchorEmbedding(nn.Module):
    """A codebook whose anchors and weights can be trained; which anchors a token uses is fixed.

    With a packing, values are rounded in the forward pass as packing will round them (quantisation-aware training).
    """

    def __init__(self, codebook: Codebook) -> None:
        super().__init__()
        self.max_pairs, self.packing = codebook.max_pairs, codebook.packing
        self.anchors = nn.Parameter(torch.from_numpy(codebook.anchors.copy()))  # (K, d)
        self.weights = nn.Parameter(torch.from_numpy(codebook.weights.copy()))  # (P,)
        for name, array in (("indices", codebook.indices), ("counts", codebook.counts)):
            self.register_buffer(name, torch.from_numpy(array.copy()))
        self.register_buffer("starts", torch.from_numpy(codebook.starts.copy()), persistent=False)
        self.indices: Tensor
        self.counts: Tensor
        self.starts: Tensor

    def to_table(self) -> Codebook:
        """Return the codebook with its values as they are now."""
        anchors, weights = (values.detach().float().cpu().numpy() for values in (self.anchors, self.weights))
        return Codebook(anchors, self.indices.cpu().numpy(), weights, self.counts.cpu().numpy(), self.packing)

    def all_anchors(self) -> Tensor:
        """Return all anchors, rounded as they will be stored: (K, d)."""
        if self.packing is None:
            return self.anchors

        # Shared anchors first, then rows of single tokens in 8 bits, then those in 4 bits.
        shared = self.packing.shared or len(self.anchors)
        parts = self.anchors.split([shared, self.packing.fine, len(self.anchors) - shared - self.packing.fine])
        bits = (ANCHOR_BITS, 8, 4)
        return torch.cat([rounded(part, width) for part, width in zip(parts, bits, strict=True) if len(part)])

    def pairs_of(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return anchor indices, weights and a mask of the real pairs of tokens (n,), each (n, max_pairs).

        Tokens with fewer pairs are padded with weight 0.
        """
        column = torch.arange(self.max_pairs, device=ids.device)
        mask = column < self.counts[ids][:, None]  # (n, k)
        slot = (self.starts[ids][:, None] + column) * mask
        index = self.indices[slot].long()
        weight = self.weights.gather(0, slot.flatten()).view_as(slot) * mask  # gather has the fastest backward pass
        if self.packing is None:
            return index, weight, mask

        # Weights as they will be read back once packed; gradients pass through unchanged.
        shared = self.packing.shared or len(self.anchors)
        weight = torch.where(index >= shared, weight.abs(), weight)  # rows of single tokens are stored without a sign
        step = weight.detach().abs().amax(1, keepdim=True).clamp(min=1e-12) / WEIGHT_LEVELS
        return index, weight + ((weight / step).round() * step - weight).detach(), mask

    def forward(self, ids: Tensor) -> Tensor:
        """Return composed tokens (n, d): the one-step look-up of Vocabulary Projection.

        The forward pass of the sparse sum is much faster than a product with dense coefficients, its backward pass
        much slower: training uses the product, inference the sum.
        """
        anchors = self.all_anchors()
        index, weight, _ = self.pairs_of(ids)  # (n, k)
        if torch.is_grad_enabled() and len(anchors) <= DENSE_ANCHORS:
            return weight.new_zeros(len(ids), len(anchors)).scatter_add(1, index, weight) @ anchors
        return F.embedding_bag(index, anchors, mode="sum", per_sample_weights=weight)

    def expand(self, ids: Tensor, mask: Tensor) -> Expanded:
        """Return the anchor sequence of a batch of ids (B, L): every token replaced by its anchors, in order."""
        batch, length = ids.shape
        index, weight, real = self.pairs_of(ids.flatten())  # (B L, k)
        real = real & mask.flatten().unsqueeze(1)

        # The text and the word of each of the S anchors: the paper's batch_map and pos_map.
        token = real.nonzero()[:, 0]  # (S,)
        text, word = token // length, token % length

        # The anchors of a text fill the first columns of its row.
        lengths = torch.bincount(text, minlength=batch)  # (B,)
        first = lengths.cumsum(0) - lengths
        column = torch.arange(len(token), device=ids.device) - first[text]
        shape, cells = (batch, int(lengths.max())), (text, column)
        return Expanded(
            ids.new_zeros(shape).index_put(cells, index[real]),
            weight.new_zeros(shape).index_put(cells, weight[real]),
            ids.new_zeros(shape).index_put(cells, word),
            torch.arange(shape[1], device=ids.device) < lengths.unsqueeze(1),
        )


class LexiconLayer(nn.Module):
    """A lexicon as a layer: token ids -> what its entries add to the scores. Nothing is trained, nothing saved.

    `squares` and `scores` have a row of zeros at the end, for keys without an entry.
    """

    keys: Tensor  # (n,) int64, ascending
    squares: Tensor  # (n + 1,) float32: squared inverse document frequencies
    scores: Tensor  # (n + 1, C) float32
    bias: Tensor  # (C,) float32

    def __init__(self, lexicon: Lexicon) -> None:
        super().__init__()
        self.vocabulary = lexicon.vocabulary
        scores = np.vstack([lexicon.scores, np.zeros_like(lexicon.bias)])
        arrays = {"squares": np.append(lexicon.idf**2, 0), "scores": scores, "bias": lexicon.bias}
        self.register_buffer("keys", torch.from_numpy(np.array(lexicon.keys)), persistent=False)
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(array, np.float32)), persistent=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what the entries of each text add to its scores: (B, C)."""
        return self.added(self.entries(ids, mask))

    @torch.no_grad()
    def entries(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the entry of each token, then of each bigram that starts with it, n where there is none: (B, 2 L)."""
        no_entry, token = len(self.keys), ids.long()
        bigram = self.vocabulary * (token + 1) + token.roll(-1, 1)
        key = torch.cat([token, bigram], 1)
        real = torch.cat([mask, mask & F.pad(mask[:, 1:], (0, 1))], 1)  # the last token starts no bigram

        entry = torch.searchsorted(self.keys, key).clamp(max=no_entry - 1)
        return torch.where(real & (self.keys[entry] == key), entry, no_entry)

    def added(self, entries: Tensor) -> Tensor:
        """Sum the scores of each text's distinct entries, divide by their norm and add the bias: (B, C)."""
        entry = entries.long().sort(1).values
        repeated = F.pad(entry[:, 1:] == entry[:, :-1], (1, 0))
        entry = entry.masked_fill(repeated, len(self.keys))
        norm = self.squares[entry].sum(1, keepdim=True).sqrt().clamp(min=1e-12)  # (B, 1)
        return F.embedding_bag(entry, self.scores, mode="sum") / norm + self.bias


class Positions(nn.Module):
    """The encodings of positions, times a factor; made again where a text is longer than expected."""

    def __init__(self, dim: int, scale: float, expected: int) -> None:
        super().__init__()
        self.dim, self.scale = dim, scale
        self.register_buffer("encodings", self._made(expected), persistent=False)  # (P, d)
        self.encodings: Tensor

    def _made(self, count: int) -> Tensor:
        return torch.from_numpy(self.scale * sinusoidal(np.arange(count), self.dim)).float()

    def forward(self, count: int, like: Tensor) -> Tensor:
        """Return the encodings of the first `count` positions: (count, d); a zero where the factor is 0."""
        if self.scale == 0:
            return torch.zeros((), device=like.device, dtype=like.dtype)
        if count > len(self.encodings):
            self.encodings = self._made(2 ** (count - 1).bit_length()).to(like.device)
        return self.encodings[:count].to(like.dtype)


def real_tokens(ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return token ids (B, L) and a boolean mask of the real ones; without a mask given, all are.

    A text without any token becomes the single token 0, so that every softmax has something to sum over.
    """
    if ids.shape[1] == 0:
        ids, mask = torch.zeros(len(ids), 1, dtype=torch.long, device=ids.device), None
    if mask is None:
        return ids, torch.ones_like(ids, dtype=torch.bool)
    mask = mask.bool()
    first = torch.arange(ids.shape[1], device=ids.device) == 0  # (L,)
    empty = first & ~mask.any(1, keepdim=True)  # (B, L): the first position of texts without any token
    return ids.masked_fill(empty, 0), mask | empty


def rounded(rows: Tensor, bits: int) -> Tensor:
    """Round rows as `bits.pack_rows` will; gradients pass through unchanged."""
    with torch.no_grad():
        if bits == 16:
            near = rows.half().float()
        else:
            levels = 2 ** (bits - 1) - 1
            wide = rows.float()
            step = (wide.abs().amax(1, keepdim=True) / levels).clamp(min=1e-6).half().float()
            near = (wide / step).round().clamp(-levels, levels) * step
    return rows + (near.to(rows.dtype) - rows).detach()


class RoundedLinear(nn.Linear):
    """A linear layer that rounds its weights to `bits` bits in the forward pass, as they will be stored."""

    def __init__(self, inputs: int, outputs: int, bits: int) -> None:
        super().__init__(inputs, outputs)
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to (..., inputs)."""
        return F.linear(x, rounded(self.weight, self.bits), self.bias)


def linear(inputs: int, outputs: int, bits: int) -> nn.Linear:
    """Make a linear layer: in full precision (`bits` 0), or rounded as it will be stored."""
    return RoundedLinear(inputs, outputs, bits) if bits else nn.Linear(inputs, outputs)
