"""Projected inference on a GPU: Triton kernels, each with a reference implementation in plain PyTorch.

The rows are those of `gpu_tables.py`; a token is rows[id] + positions[position]. `attend` gathers tokens and computes
the attention output without writing a query, a key or an attention weight to memory; `recompose` gates a token's
anchors by the attention output; `pool` computes the pooling weights and sums elements into class scores. Where anchors
are attended over, `expand` first writes weight * rows[anchor] + positions[position], because each is read many times.
Without Triton or a GPU the reference implementations are used.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ade.config_values import EPSILON
from ade.runtime.gpu_tables import DeviceTables, Elements, padded, pairs_of

try:
    import triton
    import triton.language as tl
except ImportError:  # not on every platform
    triton = None
available = triton is not None


def class_scores(tables: DeviceTables, ids: Tensor, lengths: Tensor) -> Tensor:
    """Class scores (B, C) of padded ids (B, L) int32, with the texts' lengths (B,) int32."""
    if triton is not None and tables.rows.is_cuda:
        return _class_scores(tables, ids, lengths, expand, attend, recompose, pool)
    steps = (expand_reference, attend_reference, recompose_reference, pool_reference)
    return _class_scores(tables, ids, lengths, *steps)


def _class_scores(tables: DeviceTables, ids: Tensor, lengths: Tensor, *steps: Callable[..., Any]) -> Tensor:
    """`class_scores` by the kernels or by the reference implementations."""
    expand, attend, recompose, pool = steps
    expanded = tables.pairs is not None and tables.gates is None
    elements = expand(tables, ids, lengths) if expanded else Elements(lengths, tables.rows, ids)

    output = attend(tables, elements)  # (B, T, H, value)
    if tables.gates is not None:
        readout = output.flatten(0, 1).flatten(1) @ tables.gates.readout  # (B T, K + 1 + C + zeros)
        output = recompose(tables, ids, readout)  # (B, T, 1, 1 + C)
    return pool(tables, elements, output)


# -- reference implementations ---------------------------------------------------------------------------------


def expand_reference(tables: DeviceTables, ids: Tensor, lengths: Tensor) -> Elements:
    """Replace every token by its anchors, in order: rows (B, L k, W), those of a text first, then padding."""
    pairs, (batch, length) = tables.pairs, ids.shape
    assert pairs is not None
    word = torch.arange(length, device=ids.device)
    anchor, weight, real = pairs_of(pairs, ids.long())  # (B, L, k)
    real_word = (word < lengths.unsqueeze(1)).unsqueeze(2)  # (B, L, 1)
    real = (real & real_word).flatten(1)  # (B, L k)

    # A stable sort moves the real anchors to the front and keeps their order.
    order = (~real).int().argsort(dim=1, stable=True)
    position = torch.arange(length * pairs.max_pairs, device=ids.device).expand(batch, -1)
    if tables.grouped_positions:
        position = word.repeat_interleave(pairs.max_pairs).expand(batch, -1).gather(1, order)
    row = tables.rows[anchor.flatten(1).gather(1, order).long()].float()
    rows = row * weight.flatten(1).gather(1, order).unsqueeze(2) + tables.positions[position].float()
    return Elements(real.sum(1, dtype=torch.int32), rows.to(tables.rows.dtype))


def attend_reference(tables: DeviceTables, elements: Elements) -> Tensor:
    """Attention output of each element, per head: (B, T, H, value); 0 at padding."""
    rows, real = _rows_of(tables, elements)
    by_head = rows[..., : tables.own_scores].unflatten(2, (tables.heads, tables.head_columns)).transpose(1, 2)
    query, key, value = by_head.split([tables.head_width, tables.head_width, padded(tables.value_width)], 3)
    weight = (query @ key.transpose(2, 3)).masked_fill(~real[:, None, None, :], -torch.inf).softmax(3)
    output = ((weight @ value[..., : tables.value_width]) * real[:, None, :, None]).transpose(1, 2)
    return output.to(tables.output_dtype).contiguous()


def recompose_reference(tables: DeviceTables, ids: Tensor, readout: Tensor) -> Tensor:
    """Scores of tokens composed again from gated anchors, with those of their attention output: (B, L, 1, 1 + C).

    `readout` (B L, K + 1 + C + zeros) is the attention output times `gates.readout`.
    """
    gates, pairs = tables.gates, tables.pairs
    assert gates is not None
    assert pairs is not None
    anchor, weight, _ = pairs_of(pairs, ids.long())  # (B, L, k)
    anchor, readout = anchor.long(), readout.view(*ids.shape, -1).float()
    weight = weight * 2 * torch.sigmoid(readout.gather(2, anchor) + gates.bias[anchor])

    gram = gates.gram[anchor.unsqueeze(3), anchor.unsqueeze(2)]  # (B, L, k, k)
    variance = (weight.unsqueeze(2) @ gram @ weight.unsqueeze(3)).squeeze(3)  # (B, L, 1)
    direct = (weight.unsqueeze(2) @ gates.direct[anchor]).squeeze(2)  # (B, L, 1 + C)
    own = direct * torch.rsqrt(variance.clamp(min=0) + EPSILON) + gates.constant
    anchors = len(gates.bias)
    return (own + readout[..., anchors : anchors + tables.scores]).unsqueeze(2)


def pool_reference(tables: DeviceTables, elements: Elements, output: Tensor) -> Tensor:
    """Class scores (B, C): the elements' scores averaged with the pooling weights."""
    rows, real = _rows_of(tables, elements, own=tables.gates is None)
    own = rows[..., tables.own_scores : tables.own_scores + tables.scores]
    total = own + output.sum(2)  # (B, T, 1 + C)
    weight = total[..., 0].masked_fill(~real, -torch.inf).softmax(1)
    return (weight.unsqueeze(1) @ total[..., 1:]).squeeze(1)


def _rows_of(tables: DeviceTables, elements: Elements, own: bool = True) -> tuple[Tensor, Tensor]:
    """Rows of the elements with positions, or of their positions alone: (B, T, W) float32; a mask of the real ones."""
    batch, length = elements.shape
    real = torch.arange(length, device=elements.lengths.device) < elements.lengths.unsqueeze(1)
    if elements.index is None:
        return elements.rows.float(), real
    positions = tables.positions[:length].float().expand(batch, -1, -1)
    return (elements.rows[elements.index.long()].float() + positions if own else positions), real


# -- the kernels -----------------------------------------------------------------------------------------------

if triton is not None:

    @triton.jit
    def _load(rows, index, real, column, width):  # type: ignore[no-untyped-def]
        """Columns of rows, in the type they are stored in; 0 where there is no element."""
        return tl.load(rows + index[:, None] * width + column[None, :], mask=real[:, None], other=0.0)

    @triton.jit
    def _expand(  # type: ignore[no-untyped-def]
        ids, lengths, counts, starts, anchors, weights, indices, positions, scales, sizes, words, max_pairs,
        GROUPED: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        text, place = tl.program_id(0), tl.arange(0, BLOCK)
        word, within = place // max_pairs, place % max_pairs
        inside = word < tl.load(lengths + text)
        token = tl.load(ids + text * words + word, mask=inside, other=0)
        real = inside & (within < tl.load(counts + token, mask=inside, other=0))
        slot = tl.load(starts + token, mask=real, other=0) + within

        # Real anchors move together: each is written after those before it.
        order = tl.cumsum(real.to(tl.int32), 0) - 1
        target = text * words * max_pairs + order
        tl.store(indices + target, tl.load(anchors + slot, mask=real, other=0), mask=real)
        tl.store(scales + target, tl.load(weights + slot, mask=real, other=0.0), mask=real)
        tl.store(positions + target, word if GROUPED else order, mask=real)
        tl.store(sizes + text, tl.sum(real.to(tl.int32), 0))

    @triton.jit
    def _lay_out(  # type: ignore[no-untyped-def]
        rows, position_rows, indices, positions, scales, sizes, out, width, length, BLOCK: tl.constexpr,
        COLUMNS: tl.constexpr,
    ):  # fmt: skip
        place, text = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
        column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        count = tl.load(sizes + text)
        if tl.program_id(0) * BLOCK >= count:
            return
        real, element = place < count, text * length + place
        index = tl.load(indices + element, mask=real, other=0)
        position = tl.load(positions + element, mask=real, other=0)
        scale = tl.load(scales + element, mask=real, other=0.0)

        written = real[:, None] & (column < width)[None, :]
        row = tl.load(rows + index[:, None] * width + column[None, :], mask=written, other=0.0).to(tl.float32)
        position_row = tl.load(position_rows + position[:, None] * width + column[None, :], mask=written, other=0.0)
        total = row * scale[:, None] + position_row.to(tl.float32)
        tl.store(out + element[:, None] * width + column[None, :], total.to(out.dtype.element_ty), mask=written)

    @triton.jit
    def _attend(  # type: ignore[no-untyped-def]
        rows, positions, ids, lengths, out, width, length, value_width, head_columns, GATHERED: tl.constexpr,
        HEADS: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
        STEPS: tl.constexpr,
    ):  # fmt: skip
        first, head, text = tl.program_id(0) * QUERIES, tl.program_id(1), tl.program_id(2)
        count = tl.load(lengths + text)
        if first >= count:
            return
        dtype = rows.dtype.element_ty
        query_column = head * head_columns + tl.arange(0, HEAD)
        column = tl.arange(0, VALUE)
        key_column, value_column = query_column + HEAD, head * head_columns + 2 * HEAD + column

        place = first + tl.arange(0, QUERIES)
        real, index = place < count, text * length + place
        if GATHERED:
            index = tl.load(ids + index, mask=real, other=0)
        query = _load(rows, index, real, query_column, width).to(tl.float32)
        if GATHERED:
            query += _load(positions, place, real, query_column, width).to(tl.float32)
        query = (query * 1.4426950408889634).to(dtype)  # log2(e): the device computes powers of two

        # The softmax block by block of keys: sums are rescaled whenever a larger score comes up.
        highest, total = tl.full((QUERIES,), -1e30, tl.float32), tl.zeros((QUERIES,), tl.float32)
        output = tl.zeros((QUERIES, VALUE), tl.float32)
        for step in range(STEPS):
            key_place = step * KEYS + tl.arange(0, KEYS)
            key_real, key_index = key_place < count, text * length + key_place
            if GATHERED:
                key_index = tl.load(ids + key_index, mask=key_real, other=0)
            key = _load(rows, key_index, key_real, key_column, width)
            value = _load(rows, key_index, key_real, value_column, width)
            if GATHERED:
                key_added = _load(positions, key_place, key_real, key_column, width).to(tl.float32)
                value_added = _load(positions, key_place, key_real, value_column, width).to(tl.float32)
                key = (key.to(tl.float32) + key_added).to(dtype)
                value = (value.to(tl.float32) + value_added).to(dtype)
            score = tl.dot(query, tl.trans(key), input_precision="ieee")
            score = tl.where(key_real[None, :], score, -1e30)
            higher = tl.maximum(highest, tl.max(score, 1))
            weight = tl.exp2(score - higher[:, None])  # 0 at padding: the first key is always real
            rescale = tl.exp2(highest - higher)
            total = total * rescale + tl.sum(weight, 1)
            output = output * rescale[:, None] + tl.dot(weight.to(dtype), value, input_precision="ieee")
            highest = higher

        output = output / total[:, None]
        target = out + ((text * length + place) * HEADS + head)[:, None] * value_width + column[None, :]
        tl.store(target, output.to(out.dtype.element_ty), mask=real[:, None] & (column < value_width)[None, :])

    @triton.jit
    def _recompose(  # type: ignore[no-untyped-def]
        ids, counts, starts, anchors, weights, readout, bias, gram, direct, constant, out, tokens, anchor_count,
        readout_width, scores, BLOCK: tl.constexpr, PAIRS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        place, within = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PAIRS)
        column = tl.arange(0, COLUMNS)
        inside, used = place < tokens, column < scores
        token = tl.load(ids + place, mask=inside, other=0)
        real = inside[:, None] & (within[None, :] < tl.load(counts + token, mask=inside, other=0)[:, None])  # (n, k)
        slot = tl.load(starts + token, mask=inside, other=0)[:, None] + within[None, :]
        anchor = tl.load(anchors + slot, mask=real, other=0)

        # The gate is twice the logistic function of its score.
        score = tl.load(readout + place[:, None] * readout_width + anchor, mask=real, other=0.0).to(tl.float32)
        score += tl.load(bias + anchor, mask=real, other=0.0)
        weight = tl.load(weights + slot, mask=real, other=0.0) * 2 / (1 + tl.exp(-tl.maximum(score, -80.0)))

        inner = tl.load(
            gram + anchor[:, :, None] * anchor_count + anchor[:, None, :],
            mask=real[:, :, None] & real[:, None, :], other=0.0,
        )  # fmt: skip
        variance = tl.sum(tl.sum(inner * weight[:, :, None] * weight[:, None, :], 2), 1)  # (n,)
        added = tl.load(
            direct + anchor[:, :, None] * scores + column[None, None, :],
            mask=real[:, :, None] & used[None, None, :], other=0.0,
        )  # fmt: skip
        own = tl.sum(added * weight[:, :, None], 1) * tl.rsqrt(tl.maximum(variance, 0.0) + 1e-5)[:, None]  # (n, 1 + C)

        # The columns of the readout after those of the gates are the attention output's part of the scores.
        written = inside[:, None] & used[None, :]
        output_scores = readout + place[:, None] * readout_width + anchor_count + column[None, :]
        own += tl.load(output_scores, mask=written, other=0.0).to(tl.float32)
        own += tl.load(constant + column, mask=used, other=0.0)[None, :]
        tl.store(out + place[:, None] * scores + column[None, :], own, mask=written)

    @triton.jit
    def _pool(  # type: ignore[no-untyped-def]
        rows, positions, ids, lengths, output, out, width, length, own, scores, GATHERED: tl.constexpr,
        OWN: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        text = tl.program_id(0)
        count = tl.load(lengths + text)
        place, column = tl.arange(0, BLOCK), tl.arange(0, COLUMNS)
        real, used, index = place < count, column < scores, text * length + place

        total = tl.zeros((BLOCK, COLUMNS), tl.float32)
        if GATHERED:
            total += _load(positions, place, real, own + column, width).to(tl.float32)
            index = tl.load(ids + index, mask=real, other=0)
        if OWN:
            total += _load(rows, index, real, own + column, width).to(tl.float32)
        for head in tl.static_range(HEADS):  # unrolled: the loads of all heads overlap
            source = output + ((text * length + place) * HEADS + head)[:, None] * scores + column[None, :]
            total += tl.load(source, mask=real[:, None] & used[None, :], other=0.0)

        # Column 0 is the pooling score, the others are class scores.
        score = tl.where(real, tl.sum(tl.where(column[None, :] == 0, total, 0.0), 1), -1e30)
        weight = tl.where(real, tl.exp(score - tl.max(score, 0)), 0.0)
        pooled = tl.sum(total * weight[:, None], 0) / tl.sum(weight, 0)
        tl.store(out + text * (scores - 1) + column - 1, pooled, mask=(column > 0) & used)


def blocks_of(length: int, gathered: bool) -> tuple[int, int, int, int]:
    """Queries per block, keys per block, warps and pipeline stages of `attend`; the fastest measured."""
    if not gathered and length > 256:
        return 128, 32, 4, 3
    queries = min(128, max(16, triton.next_power_of_2(length)))
    return queries, queries, 8 if queries == 128 else 4, 1


def expand(tables: DeviceTables, ids: Tensor, lengths: Tensor) -> Elements:
    """`expand_reference` in two kernels: the anchor and position of each element, then the rows."""
    pairs, (batch, length) = tables.pairs, ids.shape
    assert pairs is not None
    size, width = length * pairs.max_pairs, tables.rows.shape[1]  # room for this many elements a text
    index, position = (torch.empty(batch, size, dtype=torch.int32, device=ids.device) for _ in range(2))
    scale = torch.empty(batch, size, dtype=torch.float32, device=ids.device)
    sizes, rows = torch.empty_like(lengths), torch.empty(batch, size, width, dtype=tables.rows.dtype, device=ids.device)
    _expand[(batch,)](
        ids, lengths, pairs.counts, pairs.starts, pairs.anchors, pairs.weights, index, position, scale, sizes, length,
        pairs.max_pairs, GROUPED=tables.grouped_positions, BLOCK=triton.next_power_of_2(size),
    )  # fmt: skip
    _lay_out[triton.cdiv(size, 16), batch, triton.cdiv(width, 512)](
        tables.rows, tables.positions, index, position, scale, sizes, rows, width, size, BLOCK=16, COLUMNS=512
    )
    return Elements(sizes, rows)


def attend(tables: DeviceTables, elements: Elements) -> Tensor:
    """`attend_reference` in one kernel, one program for each head of each block of elements of a text."""
    rows, (batch, length) = elements.rows, elements.shape
    output = torch.empty(batch, length, tables.heads, tables.value_width, dtype=tables.output_dtype, device=rows.device)
    gathered, value = elements.index is not None, padded(tables.value_width)
    queries, keys, warps, stages = blocks_of(length, gathered)
    _attend[triton.cdiv(length, queries), tables.heads, batch](
        rows, tables.positions, elements.index, elements.lengths, output, rows.shape[-1], length, tables.value_width,
        tables.head_columns, GATHERED=gathered, HEADS=tables.heads, HEAD=tables.head_width, VALUE=value,
        QUERIES=queries, KEYS=keys, STEPS=triton.cdiv(length, keys), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return output


def recompose(tables: DeviceTables, ids: Tensor, readout: Tensor) -> Tensor:
    """`recompose_reference` in one kernel, one program for each block of tokens."""
    gates, pairs, (batch, length) = tables.gates, tables.pairs, ids.shape
    assert gates is not None
    assert pairs is not None
    scores = torch.empty(batch, length, 1, tables.scores, dtype=torch.float32, device=readout.device)
    max_pairs = max(2, triton.next_power_of_2(pairs.max_pairs))
    block = max(1, 1024 // max_pairs**2)
    _recompose[(triton.cdiv(batch * length, block),)](
        ids, pairs.counts, pairs.starts, pairs.anchors, pairs.weights, readout, gates.bias, gates.gram,
        gates.direct, gates.constant, scores, batch * length, len(gates.bias), readout.shape[1], tables.scores,
        BLOCK=block, PAIRS=max_pairs, COLUMNS=max(2, triton.next_power_of_2(tables.scores)),
    )  # fmt: skip
    return scores


def pool(tables: DeviceTables, elements: Elements, output: Tensor) -> Tensor:
    """`pool_reference` in one kernel, one program for each text."""
    rows, (batch, length) = elements.rows, elements.shape
    scores = torch.empty(batch, tables.scores - 1, dtype=torch.float32, device=output.device)
    _pool[(batch,)](
        rows, tables.positions, elements.index, elements.lengths, output, scores, rows.shape[-1], length,
        tables.own_scores, tables.scores, GATHERED=elements.index is not None, OWN=tables.gates is None,
        HEADS=output.shape[2], BLOCK=triton.next_power_of_2(length),
        COLUMNS=max(2, triton.next_power_of_2(tables.scores)), num_warps=4 if length <= 256 else 8,
    )  # fmt: skip
    return scores
