"""Projected inference on a GPU: two Triton kernels, each beside a plain PyTorch twin that says the same.

An element (a token, or one anchor of one) is scale * rows[index] + places[position], a row of B of `projection.py`:
[queries, keys, per head what hearing it adds to the 1 + C scores, what it adds by itself]. `attend` gathers, scales,
attends and sums, without writing a query, a key or an attention weight to memory; `pool` weighs the elements and sums
them into class scores. Without Triton or a GPU the twins serve.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # not on every platform
    triton = None
available = triton is not None


@dataclass(frozen=True)
class Folded:
    """The tables of a model and how their columns are divided."""

    rows: Tensor  # (R, W): B of token types or of anchors
    places: Tensor  # (P, W): B of positions, with the bias
    heads: int
    width: int  # of a head
    scores: int  # 1 + C

    @property
    def values(self) -> int:
        """Where the value parts begin."""
        return 2 * self.heads * self.width

    @property
    def own(self) -> int:
        """Where an element's own part begins."""
        return self.values + self.heads * self.scores


@dataclass(frozen=True)
class Elements:
    """A batch of texts as elements; an element at position -1 is not there."""

    index: Tensor  # (B, T) int32: which row
    position: Tensor  # (B, T) int32
    scale: Tensor  # (B, T) float32
    lengths: Tensor  # (B,) int32: elements of a text, absent ones among them


def class_scores(folded: Folded, elements: Elements) -> Tensor:
    """Class scores (B, C): by the kernels on a GPU, by their twins elsewhere."""
    if triton is not None and folded.rows.is_cuda:
        return pool(folded, elements, attend(folded, elements))
    return pool_plainly(folded, elements, attend_plainly(folded, elements))


def attend_plainly(folded: Folded, elements: Elements) -> Tensor:
    """What each element hears, summed into scores per head: (B, H, T, 1 + C), float32."""
    batch, length = elements.index.shape
    rows, real = _elements(folded, elements)
    split = rows[..., : folded.values].view(batch, length, 2, folded.heads, folded.width)
    query, key = split.permute(2, 0, 3, 1, 4)  # each (B, H, T, d / H)
    value = rows[..., folded.values : folded.own].view(batch, length, folded.heads, folded.scores).transpose(1, 2)
    weight = (query @ key.transpose(2, 3)).masked_fill(~real[:, None, None, :], -torch.inf).softmax(3)
    return (weight @ value) * real[:, None, :, None]


def pool_plainly(folded: Folded, elements: Elements, heard: Tensor) -> Tensor:
    """The elements' scores, weighted by how much the pooler listens to each: (B, C)."""
    rows, real = _elements(folded, elements)
    total = rows[..., folded.own :] + heard.sum(1)  # (B, T, 1 + C)
    share = total[..., 0].masked_fill(~real, -torch.inf).softmax(1)
    return (share.unsqueeze(1) @ total[..., 1:]).squeeze(1)


def _elements(folded: Folded, elements: Elements) -> tuple[Tensor, Tensor]:
    real = elements.position >= 0  # (B, T)
    place = folded.places[elements.position.clamp(min=0).long()].float()
    return folded.rows[elements.index.long()].float() * elements.scale.unsqueeze(2) + place, real


if triton is not None:

    @triton.jit
    def _load(rows, places, index, position, scale, real, begin, column, inside, width):  # type: ignore[no-untyped-def]
        """scale * rows[index] + places[position], columns `begin + column`: float32, 0 where an element is absent."""
        mask = real[:, None] & inside[None, :]
        row = tl.load(rows + index[:, None] * width + begin + column[None, :], mask=mask, other=0.0)
        place = tl.load(places + position[:, None] * width + begin + column[None, :], mask=mask, other=0.0)
        return row.to(tl.float32) * scale[:, None] + place.to(tl.float32)

    @triton.jit
    def _attend(  # type: ignore[no-untyped-def]
        rows, places, indices, positions, scales, lengths, out, width, scores, LENGTH: tl.constexpr,
        HEADS: tl.constexpr, HEAD: tl.constexpr, COLUMNS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        first, head, text = tl.program_id(0) * QUERIES, tl.program_id(1), tl.program_id(2)
        count = tl.load(lengths + text)
        if first >= count:
            return
        kind = rows.dtype.element_ty
        feature, column = tl.arange(0, HEAD), tl.arange(0, COLUMNS)
        whole, used = feature < HEAD, column < scores
        place = first + tl.arange(0, QUERIES)
        here = text * LENGTH + place
        position = tl.load(positions + here, mask=place < count, other=-1)
        real = position >= 0
        index, scale = tl.load(indices + here, mask=real, other=0), tl.load(scales + here, mask=real, other=0.0)
        query = _load(rows, places, index, position, scale, real, head * HEAD, feature, whole, width).to(kind)
        highest = tl.full((QUERIES,), -1e30, tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        heard = tl.zeros((QUERIES, COLUMNS), tl.float32)
        for start in range(0, LENGTH, KEYS):
            place_k = start + tl.arange(0, KEYS)
            there = text * LENGTH + place_k
            position_k = tl.load(positions + there, mask=place_k < count, other=-1)
            real_k = position_k >= 0
            index_k = tl.load(indices + there, mask=real_k, other=0)
            scale_k = tl.load(scales + there, mask=real_k, other=0.0)
            begin = (HEADS + head) * HEAD
            key = _load(rows, places, index_k, position_k, scale_k, real_k, begin, feature, whole, width).to(kind)
            begin = 2 * HEADS * HEAD + head * scores
            value = _load(rows, places, index_k, position_k, scale_k, real_k, begin, column, used, width).to(kind)
            score = tl.dot(query, tl.trans(key), input_precision="ieee")
            score = tl.where(real_k[None, :], score, -1e30)
            higher = tl.maximum(highest, tl.max(score, 1))
            weight = tl.where(real_k[None, :], tl.exp(score - higher[:, None]), 0.0)
            shrunk = tl.exp(highest - higher)
            total = total * shrunk + tl.sum(weight, 1)
            heard = heard * shrunk[:, None] + tl.dot(weight.to(kind), value, input_precision="ieee")
            highest = higher
        heard = tl.where(real[:, None], heard / total[:, None], 0.0)
        target = out + ((text * HEADS + head) * LENGTH + place)[:, None] * scores + column[None, :]
        tl.store(target, heard, mask=(place < count)[:, None] & used[None, :])

    @triton.jit
    def _pool(  # type: ignore[no-untyped-def]
        rows, places, indices, positions, scales, lengths, heard, out, width, own, scores,
        LENGTH: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        text = tl.program_id(0)
        count = tl.load(lengths + text)
        place, column = tl.arange(0, BLOCK), tl.arange(0, COLUMNS)
        here, used = text * LENGTH + place, column < scores
        position = tl.load(positions + here, mask=place < count, other=-1)
        real = position >= 0
        index, scale = tl.load(indices + here, mask=real, other=0), tl.load(scales + here, mask=real, other=0.0)
        total = _load(rows, places, index, position, scale, real, own, column, used, width)
        for head in range(HEADS):
            source = heard + ((text * HEADS + head) * LENGTH + place)[:, None] * scores + column[None, :]
            total += tl.load(source, mask=real[:, None] & used[None, :], other=0.0)
        score = tl.where(real, tl.sum(tl.where(column[None, :] == 0, total, 0.0), 1), -1e30)
        share = tl.where(real, tl.exp(score - tl.max(score, 0)), 0.0)
        pooled = tl.sum(total * share[:, None], 0) / tl.sum(share, 0)
        tl.store(out + text * (scores - 1) + column - 1, pooled, mask=(column > 0) & used)


def attend(folded: Folded, elements: Elements) -> Tensor:
    """`attend_plainly` in one kernel: a program for each head of each text and each block of its elements."""
    batch, length = elements.index.shape
    heard = torch.empty(batch, folded.heads, length, folded.scores, dtype=torch.float32, device=folded.rows.device)
    queries = min(128, max(16, triton.next_power_of_2(length)))
    grid = (triton.cdiv(length, queries), folded.heads, batch)
    _attend[grid](
        folded.rows, folded.places, elements.index, elements.position, elements.scale, elements.lengths, heard,
        folded.rows.shape[1], folded.scores, LENGTH=length, HEADS=folded.heads,
        HEAD=folded.width, COLUMNS=max(16, triton.next_power_of_2(folded.scores)), QUERIES=queries,
        KEYS=min(64, queries), num_warps=4 if queries <= 64 else 8,
    )  # fmt: skip
    return heard


def pool(folded: Folded, elements: Elements, heard: Tensor) -> Tensor:
    """`pool_plainly` in one kernel: a program for each text."""
    batch, length = elements.index.shape
    scores = torch.empty(batch, folded.scores - 1, dtype=torch.float32, device=heard.device)
    _pool[(batch,)](
        folded.rows, folded.places, elements.index, elements.position, elements.scale, elements.lengths, heard, scores,
        folded.rows.shape[1], folded.own, folded.scores, LENGTH=length, HEADS=folded.heads,
        BLOCK=triton.next_power_of_2(length), COLUMNS=max(16, triton.next_power_of_2(folded.scores)),
        num_warps=4 if length <= 256 else 8,
    )  # fmt: skip
    return scores
