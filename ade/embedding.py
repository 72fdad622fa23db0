"""The codebook as a layer (the paper's anchor look-up and weighted aggregation): trainable, or packed.

Token ids become composed token vectors, sum_j beta_j a_j, or the expanded anchor sequence. The pairs stay sparse: they
are never unfolded into a table with a row per token.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.codebook import Codebook
from ade.packing import format as packing
from ade.packing.bits import layer_weight
from ade.packing.format import Packing, Shape, check, pack
from ade.packing.pairs import pair_slots

DENSE_ANCHORS = 4096  # up to this K, training composes by a matrix product with dense coefficients
Value = TypeVar("Value")


def real_tokens(ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return token ids (B, L) and a boolean mask of the real ones; without a mask given, all are.

    A text without any token becomes the single token 0, so that every softmax has something to sum over.
    """
    if ids.shape[1] == 0:
        ids = torch.zeros(len(ids), 1, dtype=torch.long, device=ids.device)
        return ids, torch.ones_like(ids, dtype=torch.bool)
    if mask is None:
        return ids, torch.ones_like(ids, dtype=torch.bool)
    mask = mask.bool()
    first = torch.arange(ids.shape[1], device=ids.device) == 0  # (L,)
    empty = first & ~mask.any(1, keepdim=True)  # (B, L): the first position of texts without any token
    return ids.masked_fill(empty, 0), mask | empty


class TensorCache(Generic[Value]):
    """A value computed from tensors, kept until one of the tensors changes.

    It is computed again after a tensor was replaced, moved to another device or written to in place. PyTorch does not
    count writes through `.data`, nor writes to tensors made in inference mode, so those go unnoticed. A copied or
    unpickled cache is empty.
    """

    def __init__(self) -> None:
        self._kept: tuple[list[tuple[int, int]], Value] | None = None  # state of the tensors, value

    def get(self, tensors: Iterable[Tensor], compute: Callable[[], Value]) -> Value:
        """Return the value, computed first where there is none for the tensors as they are now."""
        state = [(tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]
        if self._kept is None or self._kept[0] != state:
            self._kept = (state, compute())
        return self._kept[1]

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()


class Expanded(NamedTuple):
    """A batch as anchors instead of tokens; T is the largest number of anchors of any of its texts."""

    anchor: Tensor  # (B, T) int64: index of the anchor
    weight: Tensor  # (B, T): its beta
    word: Tensor  # (B, T) int64: position of the word it belongs to
    mask: Tensor  # (B, T) bool: M[b, t] = t < sum of k over the text's words


class Dictionary(nn.Module, ABC):
    """Shared anchors and each token's pairs; subclasses differ in how they store them."""

    # Called with token ids (n,) and their coefficients (n, K) wherever these are part of a gradient computation.
    coefficients_hook: Callable[[Tensor, Tensor], None] | None = None

    @abstractmethod
    def table(self) -> Tensor:
        """Return all anchors: (K, d)."""

    @abstractmethod
    def pairs_of(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return anchor indices, weights and a mask of the real pairs of tokens (n,), each (n, max_pairs).

        Tokens with fewer pairs are padded with weight 0.
        """

    def check(self) -> None:
        """Raise `InputError` where stored arrays do not fit each other."""

    def choose_trained(self, anchors: bool, weights: bool) -> None:
        """Choose what is trained; nothing is in a dictionary that is packed."""

    def round_as_stored(self) -> bool:
        """Round what was trained to what will be stored, where training did not; returns whether it was rounded."""
        return False

    def coefficients(self, ids: Tensor) -> Tensor:
        """Return the rows of the transform T for tokens (n,): (n, K), zero for anchors a token does not use."""
        index, weight, _ = self.pairs_of(ids)
        dense = weight.new_zeros(len(ids), len(self.table())).scatter_add(1, index, weight)  # (n, K)
        if self.coefficients_hook is not None and dense.requires_grad:
            self.coefficients_hook(ids, dense)
        return dense

    def compose(self, ids: Tensor) -> Tensor:
        """Return composed tokens (n, d): the one-step look-up of Vocabulary Projection.

        The forward pass of the sparse sum is much faster than a product with dense coefficients, its backward pass
        much slower: training uses the product, inference the sum.
        """
        anchors = self.table()
        if torch.is_grad_enabled() and len(anchors) <= DENSE_ANCHORS:
            return self.coefficients(ids) @ anchors
        index, weight, _ = self.pairs_of(ids)
        if index.shape[1] == 1:
            return F.embedding(index[:, 0], anchors) * weight  # a sum of one
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


class AnchorEmbedding(Dictionary):
    """A codebook whose anchors and weights can be trained; which anchors a token uses is fixed.

    With a packing, values are rounded in the forward pass as packing will round them (quantisation-aware training).
    """

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
        self._offsets = TensorCache[Tensor]()

    @classmethod
    def from_codebook(cls, codebook: Codebook) -> "AnchorEmbedding":
        """Make a layer of a codebook, scaled so that composed rows have unit variance."""
        layer = cls(codebook.vocabulary, len(codebook.anchors), codebook.dim, len(codebook.indices), codebook.max_pairs)
        layer.load_codebook(codebook)
        return layer

    @torch.no_grad()
    def load_codebook(self, codebook: Codebook) -> None:
        """Copy a codebook's values, scaled, into this layer (shapes must agree)."""
        norm = torch.cat([rows.norm(dim=1) for _, rows in codebook.blocks()]).clamp(min=1e-6)  # (N,)
        self.anchors.copy_(codebook.anchors * codebook.dim**0.5)
        self.weights.copy_(codebook.weights / norm.repeat_interleave(codebook.counts.long()))
        self.indices.copy_(codebook.indices)
        self.counts.copy_(codebook.counts)

    def choose_trained(self, anchors: bool, weights: bool) -> None:
        """Choose what is trained."""
        self.anchors.requires_grad_(anchors)
        self.weights.requires_grad_(weights)

    def packed_arrays(self, packing: Packing) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the sizes and the arrays of the packed codebook."""
        anchors, weights = (values.detach().float().cpu().numpy() for values in (self.anchors, self.weights))
        indices, counts = self.indices.cpu().numpy(), self.counts.cpu().numpy().astype(np.int64)
        shape, arrays = pack(anchors, indices, weights, counts, packing)
        check(shape, arrays)
        return asdict(shape), arrays

    @property
    def offsets(self) -> Tensor:
        """Position of each token's first pair: (N,)."""
        return self._offsets.get([self.counts], lambda: self.counts.cumsum(0, dtype=torch.int64) - self.counts)

    def table(self) -> Tensor:
        """Return all anchors: (K, d)."""
        if self.packing is None:
            return self.anchors

        # Shared anchors first, then rows kept whole in 8 bits, then those in 4 bits.
        shared = self.packing.shared or len(self.anchors)
        parts = self.anchors.split([shared, self.packing.fine, len(self.anchors) - shared - self.packing.fine])
        bits = (self.packing.anchor_bits, 8, 4)
        return torch.cat([rounded(part, width) for part, width in zip(parts, bits, strict=True) if len(part)])

    def pairs_of(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return anchor indices, weights and a mask of the real pairs of tokens (n,), each (n, max_pairs)."""
        slot, mask = pair_slots(self.counts, self.offsets, ids, self.max_pairs)  # (n, k)
        index = self.indices[slot].long()
        weight = self.weights.gather(0, slot.flatten()).view_as(slot) * mask  # gather has the fastest backward pass
        return index, weight if self.packing is None else self._rounded(index, weight, self.packing), mask

    def _rounded(self, index: Tensor, weight: Tensor, packing: Packing) -> Tensor:
        """Weights (n, k) as they will be read back once packed; gradients pass through unchanged."""
        shared = packing.shared or len(self.anchors)
        weight = torch.where(index >= shared, weight.abs(), weight)  # rows kept whole are stored without a sign
        levels = 2 ** (packing.weight_bits - 1) - 1
        step = weight.detach().abs().amax(1, keepdim=True).clamp(min=1e-12) / levels
        return weight + ((weight / step).round() * step - weight).detach()


class PackedEmbedding(Dictionary):
    """A packed codebook as a layer, read from its packed arrays without unpacking them; nothing is trained."""

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__()
        self.shape = Shape(**shape)
        self.max_pairs = self.shape.most
        for name, (kind, size) in self.shape.arrays().items():
            self.register_buffer(name, torch.zeros(size, dtype=getattr(torch, kind)))
        self._starts = TensorCache[Tensor]()

    def arrays(self) -> dict[str, Any]:
        """Return the packed arrays by name."""
        return {name: getattr(self, name) for name in self.shape.arrays()}

    def check(self) -> None:
        """Raise `InputError` where stored arrays do not fit each other."""
        self.starts()

    def starts(self) -> Tensor:
        """Return where each block of tokens starts in the packed streams; raises `InputError` for damaged arrays."""
        codes: Tensor = self.get_buffer("codes")

        def compute() -> Tensor:
            return torch.from_numpy(packing.check(self.shape, self.arrays())).to(codes.device)

        return self._starts.get([codes], compute)

    def table(self) -> Tensor:
        """Return all anchors: (K, d)."""
        return packing.all_anchors(self.shape, self.arrays()).to(self.get_buffer("scale_range").dtype)

    def pairs_of(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return anchor indices, weights and a mask of the real pairs of tokens (n,), each (n, max_pairs)."""
        index, weight, real = packing.lookup(self.shape, self.arrays(), self.starts(), ids)
        return index, weight.to(self.get_buffer("scale_range").dtype), real


def rounded(rows: Tensor, bits: int) -> Tensor:
    """Round rows as `bits.quantised` will; gradients pass through unchanged."""
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
    """A linear layer that rounds its weights to `bits` bits in the forward pass, as packing will."""

    def __init__(self, inputs: int, outputs: int, bits: int) -> None:
        super().__init__(inputs, outputs)
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to (..., inputs)."""
        return F.linear(x, rounded(self.weight, self.bits), self.bias)


class PackedLinear(nn.Module):
    """A linear layer that stores its weights in 4, 8 or 16 bits, in memory as on disk."""

    def __init__(self, inputs: int, outputs: int, bits: int) -> None:
        super().__init__()
        self.inputs, self.bits = inputs, bits
        kind = {4: torch.uint8, 8: torch.int8, 16: torch.int16}[bits]
        self.register_buffer("weight", torch.zeros(outputs, -(-inputs // 2) if bits == 4 else inputs, dtype=kind))
        self.register_buffer("scales", torch.zeros(0 if bits == 16 else outputs, dtype=torch.int16))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to (..., inputs)."""
        return F.linear(x, layer_weight(self.weight, self.scales, self.inputs).to(x.dtype), self.bias)


def linear(inputs: int, outputs: int, bits: int, packed: bool) -> nn.Module:
    """Make a linear layer: in full precision (`bits` 0), rounded as packing will round it, or packed."""
    if not bits:
        return nn.Linear(inputs, outputs)
    return PackedLinear(inputs, outputs, bits) if packed else RoundedLinear(inputs, outputs, bits)
