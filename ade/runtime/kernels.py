"""Projected inference on a GPU: Triton kernels, each beside a plain PyTorch twin that says the same.

A row of B of `projection.py`, as it lies here: for every head [query, key, value, zeros], then what an element adds to
the 1 + C scores by itself. A token is rows[id] + places[position]. `attend` gathers tokens, attends and sums, without
writing a query, a key or an attention weight to memory; `recompose` gates a token's anchors by what it has heard;
`pool` weighs the elements and sums them into class scores. Where anchors are attended over, `expand` lays them out
first, scale * rows[anchor] + places[position]: each is read many times. Without Triton or a GPU the twins serve.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ade.runtime.gpu_tables import Elements, Folded, padded, pairs_of
from ade.runtime.projection import EPSILON

try:
    import triton
    import triton.language as tl
except ImportError:  # not on every platform
    triton = None
available = triton is not None


def class_scores(folded: Folded, ids: Tensor, lengths: Tensor) -> Tensor:
    """Class scores (B, C) of ids (B, L) int32, of which each text has (B,) int32: by the kernels, or their twins."""
    if triton is not None and folded.rows.is_cuda:
        return _scored(folded, ids, lengths, expand, attend, recompose, pool)
    return _scored(folded, ids, lengths, expand_plainly, attend_plainly, recompose_plainly, pool_plainly)


def _scored(folded: Folded, ids: Tensor, lengths: Tensor, *steps: Callable[..., Any]) -> Tensor:
    expand, attend, recompose, pool = steps
    expanded = folded.pairs is not None and folded.gates is None
    elements = expand(folded, ids, lengths) if expanded else Elements(lengths, folded.rows, ids)
    heard = attend(folded, elements)  # (B, T, H, value)
    if folded.gates is not None:
        reading = heard.flatten(0, 1).flatten(1) @ folded.gates.heard  # (B T, K + 1 + C + zeros)
        heard = recompose(folded, ids, reading)  # (B, T, 1, 1 + C)
    return pool(folded, elements, heard)


# -- the twins -------------------------------------------------------------------------------------------------


def expand_plainly(folded: Folded, ids: Tensor, lengths: Tensor) -> Elements:
    """Every token replaced by its anchors, one after the other, as rows laid out: room for `most` a token."""
    pairs, (batch, length) = folded.pairs, ids.shape
    assert pairs is not None
    place = torch.arange(length, device=ids.device)
    anchor, weight, there = pairs_of(pairs, ids.long())  # (B, L, k)
    there = (there & (place < lengths.unsqueeze(1)).unsqueeze(2)).flatten(1)  # (B, L k)
    order = (~there).int().argsort(dim=1, stable=True)
    position = torch.arange(length * pairs.most, device=ids.device).expand(batch, -1)
    if folded.grouped:
        position = place.repeat_interleave(pairs.most).expand(batch, -1).gather(1, order)
    row = folded.rows[anchor.flatten(1).gather(1, order).long()].float()
    rows = row * weight.flatten(1).gather(1, order).unsqueeze(2) + folded.places[position].float()
    return Elements(there.sum(1, dtype=torch.int32), rows.to(folded.rows.dtype))


def attend_plainly(folded: Folded, elements: Elements) -> Tensor:
    """What each element hears, per head: (B, T, H, value); 0 where there is no element."""
    rows, real = _rows_of(folded, elements)
    each = rows[..., : folded.heads * folded.stride].unflatten(2, (folded.heads, folded.stride)).transpose(1, 2)
    query, key, value = each.split([folded.width, folded.width, folded.stride - 2 * folded.width], 3)
    weight = (query @ key.transpose(2, 3)).masked_fill(~real[:, None, None, :], -torch.inf).softmax(3)
    heard = ((weight @ value[..., : folded.value]) * real[:, None, :, None]).transpose(1, 2)
    return heard.to(folded.heard).contiguous()


def recompose_plainly(folded: Folded, ids: Tensor, reading: Tensor) -> Tensor:
    """What tokens composed again from gated anchors, and what they have heard, add to the scores: (B, L, 1, 1 + C)."""
    gates, pairs = folded.gates, folded.pairs
    assert gates is not None
    assert pairs is not None
    anchor, weight, _ = pairs_of(pairs, ids.long())  # (B, L, k)
    anchor, reading = anchor.long(), reading.view(*ids.shape, -1).float()
    weight = weight * 2 * torch.sigmoid(reading.gather(2, anchor) + gates.bias[anchor])
    gram = gates.gram[anchor.unsqueeze(3), anchor.unsqueeze(2)]  # (B, L, k, k)
    variance = (weight.unsqueeze(2) @ gram @ weight.unsqueeze(3)).squeeze(3)  # (B, L, 1)
    direct = (weight.unsqueeze(2) @ gates.direct[anchor]).squeeze(2)  # (B, L, 1 + C)
    first = len(gates.bias)
    own = direct * torch.rsqrt(variance.clamp(min=0) + EPSILON) + gates.constant
    return (own + reading[..., first : first + folded.scores]).unsqueeze(2)


def pool_plainly(folded: Folded, elements: Elements, heard: Tensor) -> Tensor:
    """The elements' scores, weighted by how much the pooler listens to each: (B, C)."""
    rows, real = _rows_of(folded, elements, folded.gates is None)
    own = folded.heads * folded.stride
    total = rows[..., own : own + folded.scores] + heard.sum(2)  # (B, T, 1 + C)
    share = total[..., 0].masked_fill(~real, -torch.inf).softmax(1)
    return (share.unsqueeze(1) @ total[..., 1:]).squeeze(1)


def _rows_of(folded: Folded, elements: Elements, own: bool = True) -> tuple[Tensor, Tensor]:
    """Rows of the elements, or those of their positions alone: (B, T, W), float32; and which are real."""
    batch, length = elements.shape
    real = torch.arange(length, device=elements.lengths.device) < elements.lengths.unsqueeze(1)
    if elements.index is None:
        return elements.rows.float(), real
    place = folded.places[:length].float().expand(batch, -1, -1)
    return (elements.rows[elements.index.long()].float() + place if own else place), real


# -- the kernels -----------------------------------------------------------------------------------------------

if triton is not None:

    @triton.jit
    def _load(rows, index, real, column, width):  # type: ignore[no-untyped-def]
        """Columns of rows, as they are stored; 0 where an element is absent."""
        return tl.load(rows + index[:, None] * width + column[None, :], mask=real[:, None], other=0.0)

    @triton.jit
    def _expand(  # type: ignore[no-untyped-def]
        ids, lengths, counts, starts, anchors, weights, indices, positions, scales, ends, words, most,
        GROUPED: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        text, place = tl.program_id(0), tl.arange(0, BLOCK)
        word, within = place // most, place % most
        inside = word < tl.load(lengths + text)
        token = tl.load(ids + text * words + word, mask=inside, other=0)
        real = inside & (within < tl.load(counts + token, mask=inside, other=0))
        slot = tl.load(starts + token, mask=real, other=0) + within
        order = tl.cumsum(real.to(tl.int32), 0) - 1
        out = text * words * most + order
        tl.store(indices + out, tl.load(anchors + slot, mask=real, other=0), mask=real)
        tl.store(scales + out, tl.load(weights + slot, mask=real, other=0.0), mask=real)
        tl.store(positions + out, word if GROUPED else order, mask=real)
        tl.store(ends + text, tl.sum(real.to(tl.int32), 0))

    @triton.jit
    def _lay_out(  # type: ignore[no-untyped-def]
        rows, places, indices, positions, scales, ends, out, width, length, BLOCK: tl.constexpr, COLUMNS: tl.constexpr
    ):  # fmt: skip
        place, text = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
        column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        count = tl.load(ends + text)
        if tl.program_id(0) * BLOCK >= count:
            return
        real, here = place < count, text * length + place
        index, position = tl.load(indices + here, mask=real, other=0), tl.load(positions + here, mask=real, other=0)
        scale = tl.load(scales + here, mask=real, other=0.0)
        shown = real[:, None] & (column < width)[None, :]
        row = tl.load(rows + index[:, None] * width + column[None, :], mask=shown, other=0.0).to(tl.float32)
        added = tl.load(places + position[:, None] * width + column[None, :], mask=shown, other=0.0).to(tl.float32)
        made = (row * scale[:, None] + added).to(out.dtype.element_ty)
        tl.store(out + here[:, None] * width + column[None, :], made, mask=shown)

    @triton.jit
    def _attend(  # type: ignore[no-untyped-def]
        rows, places, ids, lengths, out, width, length, value, stride, GATHERED: tl.constexpr, HEADS: tl.constexpr,
        HEAD: tl.constexpr, VALUE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, STEPS: tl.constexpr,
    ):  # fmt: skip
        first, head, text = tl.program_id(0) * QUERIES, tl.program_id(1), tl.program_id(2)
        count = tl.load(lengths + text)
        if first >= count:
            return
        kind = rows.dtype.element_ty
        query_column = head * stride + tl.arange(0, HEAD)
        key_column, column = query_column + HEAD, tl.arange(0, VALUE)
        value_column = head * stride + 2 * HEAD + column
        place = first + tl.arange(0, QUERIES)
        real, index = place < count, text * length + place
        if GATHERED:
            index = tl.load(ids + index, mask=real, other=0)
        query = _load(rows, index, real, query_column, width).to(tl.float32)
        if GATHERED:
            query += _load(places, place, real, query_column, width).to(tl.float32)
        query = (query * 1.4426950408889634).to(kind)  # powers of two are what the device has
        highest = tl.full((QUERIES,), -1e30, tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        heard = tl.zeros((QUERIES, VALUE), tl.float32)
        for step in range(STEPS):
            there = step * KEYS + tl.arange(0, KEYS)
            real_k, index_k = there < count, text * length + there
            if GATHERED:
                index_k = tl.load(ids + index_k, mask=real_k, other=0)
            key = _load(rows, index_k, real_k, key_column, width)
            heard_k = _load(rows, index_k, real_k, value_column, width)
            if GATHERED:
                key = (key.to(tl.float32) + _load(places, there, real_k, key_column, width).to(tl.float32)).to(kind)
                added = _load(places, there, real_k, value_column, width).to(tl.float32)
                heard_k = (heard_k.to(tl.float32) + added).to(kind)
            score = tl.dot(query, tl.trans(key), input_precision="ieee")
            score = tl.where(real_k[None, :], score, -1e30)
            higher = tl.maximum(highest, tl.max(score, 1))
            weight = tl.exp2(score - higher[:, None])  # 0 where there is no key: the first is always there
            shrunk = tl.exp2(highest - higher)
            total = total * shrunk + tl.sum(weight, 1)
            heard = heard * shrunk[:, None] + tl.dot(weight.to(kind), heard_k, input_precision="ieee")
            highest = higher
        heard = heard / total[:, None]
        target = out + ((text * length + place) * HEADS + head)[:, None] * value + column[None, :]
        tl.store(target, heard.to(out.dtype.element_ty), mask=real[:, None] & (column < value)[None, :])

    @triton.jit
    def _recompose(  # type: ignore[no-untyped-def]
        ids, counts, starts, anchors, weights, reading, bias, gram, direct, constant, out, tokens, known, wide, scores,
        BLOCK: tl.constexpr, MOST: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        place, within = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, MOST)
        column = tl.arange(0, COLUMNS)
        inside, used = place < tokens, column < scores
        token = tl.load(ids + place, mask=inside, other=0)
        real = inside[:, None] & (within[None, :] < tl.load(counts + token, mask=inside, other=0)[:, None])  # (n, k)
        slot = tl.load(starts + token, mask=inside, other=0)[:, None] + within[None, :]
        anchor = tl.load(anchors + slot, mask=real, other=0)
        score = tl.load(reading + place[:, None] * wide + anchor, mask=real, other=0.0).to(tl.float32)
        score += tl.load(bias + anchor, mask=real, other=0.0)
        weight = tl.load(weights + slot, mask=real, other=0.0) * 2 / (1 + tl.exp(-tl.maximum(score, -80.0)))
        inner = tl.load(
            gram + anchor[:, :, None] * known + anchor[:, None, :], mask=real[:, :, None] & real[:, None, :], other=0.0
        )
        variance = tl.sum(tl.sum(inner * weight[:, :, None] * weight[:, None, :], 2), 1)  # (n,)
        added = tl.load(
            direct + anchor[:, :, None] * scores + column[None, None, :],
            mask=real[:, :, None] & used[None, None, :], other=0.0,
        )  # fmt: skip
        own = tl.sum(added * weight[:, :, None], 1) * tl.rsqrt(tl.maximum(variance, 0.0) + 1e-5)[:, None]  # (n, 1 + C)
        shown = inside[:, None] & used[None, :]
        own += tl.load(reading + place[:, None] * wide + known + column[None, :], mask=shown, other=0.0).to(tl.float32)
        own += tl.load(constant + column, mask=used, other=0.0)[None, :]
        tl.store(out + place[:, None] * scores + column[None, :], own, mask=shown)

    @triton.jit
    def _pool(  # type: ignore[no-untyped-def]
        rows, places, ids, lengths, heard, out, width, length, own, scores, GATHERED: tl.constexpr, OWN: tl.constexpr,
        HEADS: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        text = tl.program_id(0)
        count = tl.load(lengths + text)
        place, column = tl.arange(0, BLOCK), tl.arange(0, COLUMNS)
        real, used, index = place < count, column < scores, text * length + place
        total = tl.zeros((BLOCK, COLUMNS), tl.float32)
        if GATHERED:
            total += _load(places, place, real, own + column, width).to(tl.float32)
            index = tl.load(ids + index, mask=real, other=0)
        if OWN:
            total += _load(rows, index, real, own + column, width).to(tl.float32)
        for head in tl.static_range(HEADS):  # all are on their way at once
            source = heard + ((text * length + place) * HEADS + head)[:, None] * scores + column[None, :]
            total += tl.load(source, mask=real[:, None] & used[None, :], other=0.0)
        score = tl.where(real, tl.sum(tl.where(column[None, :] == 0, total, 0.0), 1), -1e30)
        share = tl.where(real, tl.exp(score - tl.max(score, 0)), 0.0)
        pooled = tl.sum(total * share[:, None], 0) / tl.sum(share, 0)
        tl.store(out + text * (scores - 1) + column - 1, pooled, mask=(column > 0) & used)


def blocks_of(length: int, gathered: bool) -> tuple[int, int, int, int]:
    """Queries and keys a block, warps and stages of `attend`, as measured to be fast."""
    if not gathered and length > 256:
        return 128, 32, 4, 3
    queries = min(128, max(16, triton.next_power_of_2(length)))
    return queries, queries, 8 if queries == 128 else 4, 1


def expand(folded: Folded, ids: Tensor, lengths: Tensor) -> Elements:
    """`expand_plainly` in two kernels: which anchor stands where, then the rows."""
    pairs, (batch, length) = folded.pairs, ids.shape
    assert pairs is not None
    most, width = length * pairs.most, folded.rows.shape[1]
    index, position = (torch.empty(batch, most, dtype=torch.int32, device=ids.device) for _ in range(2))
    scale = torch.empty(batch, most, dtype=torch.float32, device=ids.device)
    ends, rows = torch.empty_like(lengths), torch.empty(batch, most, width, dtype=folded.rows.dtype, device=ids.device)
    _expand[(batch,)](
        ids, lengths, pairs.counts, pairs.starts, pairs.anchors, pairs.weights, index, position, scale, ends, length,
        pairs.most, GROUPED=folded.grouped, BLOCK=triton.next_power_of_2(most),
    )  # fmt: skip
    _lay_out[triton.cdiv(most, 16), batch, triton.cdiv(width, 512)](
        folded.rows, folded.places, index, position, scale, ends, rows, width, most, BLOCK=16, COLUMNS=512
    )
    return Elements(ends, rows)


def attend(folded: Folded, elements: Elements) -> Tensor:
    """`attend_plainly` in one kernel: a program for each head of each block of elements of a text."""
    rows, (batch, length) = elements.rows, elements.shape
    heard = torch.empty(batch, length, folded.heads, folded.value, dtype=folded.heard, device=rows.device)
    gathered, value = elements.index is not None, padded(folded.value)
    queries, keys, warps, stages = blocks_of(length, gathered)
    _attend[triton.cdiv(length, queries), folded.heads, batch](
        rows, folded.places, elements.index, elements.lengths, heard, rows.shape[-1], length, folded.value,
        folded.stride, GATHERED=gathered, HEADS=folded.heads, HEAD=folded.width, VALUE=value, QUERIES=queries,
        KEYS=keys, STEPS=triton.cdiv(length, keys), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return heard


def recompose(folded: Folded, ids: Tensor, reading: Tensor) -> Tensor:
    """`recompose_plainly` in one kernel: a program for each block of tokens."""
    gates, pairs, (batch, length) = folded.gates, folded.pairs, ids.shape
    assert gates is not None
    assert pairs is not None
    scores = torch.empty(batch, length, 1, folded.scores, dtype=torch.float32, device=reading.device)
    most = max(2, triton.next_power_of_2(pairs.most))
    block = max(1, 1024 // most**2)
    _recompose[(triton.cdiv(batch * length, block),)](
        ids, pairs.counts, pairs.starts, pairs.anchors, pairs.weights, reading, gates.bias, gates.gram,
        gates.direct, gates.constant, scores, batch * length, len(gates.bias), reading.shape[1], folded.scores,
        BLOCK=block, MOST=most, COLUMNS=max(2, triton.next_power_of_2(folded.scores)),
    )  # fmt: skip
    return scores


def pool(folded: Folded, elements: Elements, heard: Tensor) -> Tensor:
    """`pool_plainly` in one kernel: a program for each text."""
    rows, (batch, length) = elements.rows, elements.shape
    scores = torch.empty(batch, folded.scores - 1, dtype=torch.float32, device=heard.device)
    _pool[(batch,)](
        rows, folded.places, elements.index, elements.lengths, heard, scores, rows.shape[-1], length,
        folded.heads * folded.stride, folded.scores, GATHERED=elements.index is not None, OWN=folded.gates is None,
        HEADS=heard.shape[2], BLOCK=triton.next_power_of_2(length),
        COLUMNS=max(2, triton.next_power_of_2(folded.scores)), num_warps=4 if length <= 256 else 8,
    )  # fmt: skip
    return scores
