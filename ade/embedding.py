"""The codebook as a layer (the paper's anchor look-up and weighted aggregation): as it is trained, and packed.

ids -> composed tokens, sum_j beta_j a_j, or the expanded anchor sequence with its batch of positions. The
pairs stay sparse; a table of N rows is never built.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.codebook import Codebook
from ade.lexicon import Lexicon, LexiconShape, unpack
from ade.packing import format as packing
from ade.packing.bits import layer_weight
from ade.packing.format import Packing, Shape

DENSE_ANCHORS = 4096  # up to this K, training composes by a matrix product with dense coefficients


def real_tokens(ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Token ids (B, L) and which are real, all without a mask; a text without any token is one of id 0."""
    if ids.shape[1] == 0:
        ids = torch.zeros(len(ids), 1, dtype=torch.long, device=ids.device)
        return ids, torch.ones_like(ids, dtype=torch.bool)
    if mask is None:
        return ids, torch.ones_like(ids, dtype=torch.bool)
    mask = mask.bool()
    first = torch.arange(ids.shape[1], device=ids.device) == 0  # (L,)
    empty = first & ~mask.any(1, keepdim=True)  # (B, L): the first place of a text without any token
    return ids.masked_fill(empty, 0), mask | empty


class Expanded(NamedTuple):
    """A batch as anchors instead of tokens: T is the most anchors any text of it has."""

    anchor: Tensor  # (B, T) int64: which anchor stands here
    weight: Tensor  # (B, T): its beta
    word: Tensor  # (B, T) int64: position of the word it belongs to
    mask: Tensor  # (B, T) bool: M[b, t] = t < sum of k over the text's words


class Dictionary(nn.Module):
    """Shared anchors and ragged pairs, however they are kept."""

    listener: Callable[[Tensor, Tensor], None] | None = None  # is shown tokens and their coefficients while training

    @abstractmethod
    def table(self) -> Tensor:
        """Every anchor: (K, d)."""

    @abstractmethod
    def pairs_of(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Anchors and weights of tokens (n,), padded to `max_pairs` with weight 0, and a mask of the real ones."""

    def coefficients(self, ids: Tensor) -> Tensor:
        """Rows of the transform T for tokens (n,): dense over the K anchors, zero where a token has no pair."""
        index, weight, _ = self.pairs_of(ids)
        made = weight.new_zeros(len(ids), len(self.table())).scatter_add(1, index, weight)  # (n, K)
        if self.listener is not None and made.requires_grad:
            self.listener(ids, made)
        return made

    def compose(self, ids: Tensor) -> Tensor:
        """Composed tokens (n, d): the one-step look-up of Vocabulary Projection.

        Going forward alone the sparse sum is many times faster; its backward pass is slow, so training multiplies by
        dense coefficients instead.
        """
        anchors = self.table()
        if torch.is_grad_enabled() and len(anchors) <= DENSE_ANCHORS:
            return self.coefficients(ids) @ anchors
        index, weight, _ = self.pairs_of(ids)
        return F.embedding_bag(index, anchors, mode="sum", per_sample_weights=weight)

    def expand(self, ids: Tensor, mask: Tensor) -> Expanded:
        """The anchor sequence of a batch of ids (B, L): every token replaced by its anchors, in order."""
        batch, length = ids.shape
        index, weight, real = self.pairs_of(ids.flatten())  # (B L, k)
        real = real & mask.flatten().unsqueeze(1)
        owner = real.nonzero()[:, 0]  # (S,): batch_map * L + pos_map
        text = owner // length  # the paper's batch_map
        ends = torch.bincount(text, minlength=batch)  # (B,)
        column = torch.arange(len(owner), device=ids.device) - (ends.cumsum(0) - ends)[text]
        shape = (batch, int(ends.max()))
        return Expanded(
            ids.new_zeros(shape).index_put((text, column), index[real]),
            weight.new_zeros(shape).index_put((text, column), weight[real]),
            ids.new_zeros(shape).index_put((text, column), owner % length),
            torch.arange(shape[1], device=ids.device) < ends.unsqueeze(1),
        )


class AnchorEmbedding(Dictionary):
    """Anchors and weights can be trained, the indices are fixed; with a packing, rounded as it will round them."""

    def __init__(
        self, vocabulary: int, anchors: int, dim: int, pairs: int, max_pairs: int, packing: Packing | None = None
    ) -> None:
        super().__init__()
        self.max_pairs, self.packing = max_pairs, packing
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

    def table(self) -> Tensor:
        """Every anchor: (K, d)."""
        if self.packing is None:
            return self.anchors
        shared = self.packing.shared or len(self.anchors)
        parts = self.anchors.split([shared, self.packing.fine, len(self.anchors) - shared - self.packing.fine])
        bits = (self.packing.anchor_bits, 8, 4)
        return torch.cat([rounded(part, width) for part, width in zip(parts, bits, strict=True) if len(part)])

    def pairs_of(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Anchors and weights of tokens (n,), padded to `max_pairs` with weight 0, and a mask of the real ones."""
        column = torch.arange(self.max_pairs, device=ids.device)
        mask = column < self.counts[ids].unsqueeze(1)  # (n, k)
        slot = torch.where(mask, self.offsets[ids].unsqueeze(1) + column, 0)  # (n, k)
        weight = self.weights.gather(0, slot.flatten()).view_as(slot) * mask  # its gradient is a plain sum
        index = self.indices[slot].long()
        if self.packing is not None:
            shared = self.packing.shared or len(self.anchors)
            weight = torch.where(index >= shared, weight.abs(), weight)  # a row of one's own has no sign to store
            levels = 2 ** (self.packing.weight_bits - 1) - 1
            step = weight.detach().abs().amax(1, keepdim=True).clamp(min=1e-12) / levels
            weight = weight + ((weight / step).round() * step - weight).detach()
        return index, weight, mask


class PackedEmbedding(Dictionary):
    """A packed codebook as a layer: what it stores is what it looks up, nothing is trained."""

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__()
        self.shape = Shape(**shape)
        self.max_pairs = self.shape.most
        for name, (kind, size) in self.shape.arrays().items():
            self.register_buffer(name, torch.zeros(size, dtype=getattr(torch, kind)))
        self._starts: tuple[object, Tensor] | None = None

    def arrays(self) -> dict[str, Any]:
        """The packed arrays."""
        return {name: getattr(self, name) for name in self.shape.arrays()}

    def starts(self) -> Tensor:
        """Where blocks of tokens begin, worked out once; refuses arrays that were damaged."""
        codes: Tensor = self.get_buffer("codes")
        state = (id(codes), codes.device, 0 if codes.is_inference() else codes._version)
        if self._starts is None or self._starts[0] != state:
            found = torch.from_numpy(packing.check(self.shape, self.arrays()))
            self._starts = (state, found.to(codes.device))
        return self._starts[1]

    def table(self) -> Tensor:
        """Every anchor: (K, d)."""
        return packing.all_anchors(self.shape, self.arrays()).to(self.get_buffer("scale_range").dtype)

    def pairs_of(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Anchors and weights of tokens (n,), padded to `max_pairs` with weight 0, and a mask of the real ones."""
        index, weight, real = packing.lookup(self.shape, self.arrays(), self.starts(), ids)
        return index, weight.to(self.get_buffer("scale_range").dtype), real


class LexiconLayer(nn.Module):
    """A stored lexicon as a layer: token ids -> what its entries add to the class scores. Nothing is trained."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__()
        self.shape = LexiconShape(**shape)
        for name, (kind, size) in self.shape.arrays().items():
            self.register_buffer(name, torch.zeros(size, dtype=getattr(torch, kind)))
        self.scores = PackedEmbedding(self.shape.scores)
        self._tables: tuple[Tensor, Tensor, Tensor] | None = None  # keys, squared idf, scores: made when first used

    def _load_from_state_dict(self, *given: Any) -> None:
        super()._load_from_state_dict(*given)
        self._tables = None

    def unpacked(self) -> Lexicon:
        """The same for numpy."""
        tensors = {name: tensor.detach().cpu() for name, tensor in self.state_dict().items()}
        return unpack(self.shape, {n: (t.float() if t.is_floating_point() else t).numpy() for n, t in tensors.items()})

    def tables(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Keys (n,), squared idf (n + 1,) and scores (n + 1, C) on a device; the last row is that of no entry."""
        if self._tables is None or self._tables[0].device != device:
            found = self.unpacked()
            squares, scores = np.append(found.idf**2, 0), np.vstack([found.scores, 0 * found.bias])
            tables = (found.keys, squares.astype(np.float32), scores.astype(np.float32))
            with torch.inference_mode(False):
                keys, weight, table = (torch.from_numpy(array).to(device) for array in tables)
            self._tables = (keys, weight, table)
        return self._tables

    @torch.no_grad()
    def entries(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Distinct entries of each text, ascending: (B, 2 L - 1), the number of entries where there is none."""
        keys = self.tables(ids.device)[0]
        none = len(keys)
        pairs = self.shape.vocabulary * (ids[:, :-1] + 1) + ids[:, 1:]
        wanted = torch.cat([ids, pairs], 1)
        real = torch.cat([mask, mask[:, :-1] & mask[:, 1:]], 1)
        place = torch.searchsorted(keys, wanted).clamp(max=none - 1)
        entry = torch.where(real & (keys[place] == wanted), place, none).sort(1).values
        repeated = F.pad(entry[:, 1:] == entry[:, :-1], (1, 0))
        return entry.masked_fill(repeated, none)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """What the entries of each text add to its class scores: (B, C)."""
        _, squares, scores = self.tables(ids.device)
        entry = self.entries(ids, mask)
        norm = squares[entry].sum(1, keepdim=True).sqrt().clamp(min=1e-12)  # (B, 1)
        return F.embedding_bag(entry, scores, mode="sum") / norm + self.get_buffer("bias").float()


def rounded(rows: Tensor, bits: int) -> Tensor:
    """Rows as `bits.quantised` will give them back; gradients pass as if nothing had happened."""
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
    """A linear layer whose weights are rounded to so many bits on their way, as packing will."""

    def __init__(self, inputs: int, outputs: int, bits: int) -> None:
        super().__init__(inputs, outputs)
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """As a linear layer."""
        return F.linear(x, rounded(self.weight, self.bits), self.bias)


class PackedLinear(nn.Module):
    """A linear layer that keeps its weights in 4, 8 or 16 bits, also in memory."""

    def __init__(self, inputs: int, outputs: int, bits: int) -> None:
        super().__init__()
        self.inputs, self.bits = inputs, bits
        kind = {4: torch.uint8, 8: torch.int8, 16: torch.int16}[bits]
        self.register_buffer("weight", torch.zeros(outputs, -(-inputs // 2) if bits == 4 else inputs, dtype=kind))
        self.register_buffer("scales", torch.zeros(0 if bits == 16 else outputs, dtype=torch.int16))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """As a linear layer."""
        return F.linear(x, layer_weight(self.weight, self.scales, self.inputs).to(x.dtype), self.bias)


def linear(inputs: int, outputs: int, bits: int, packed: bool) -> nn.Module:
    """A linear layer: plain (no bits), as it will be packed, or packed."""
    if not bits:
        return nn.Linear(inputs, outputs)
    return PackedLinear(inputs, outputs, bits) if packed else RoundedLinear(inputs, outputs, bits)
