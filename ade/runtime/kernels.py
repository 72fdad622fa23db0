"""Lookup tables on a GPU: Triton kernels, each with a reference implementation in plain PyTorch.

There a row has, for every head, [query, key, value, zeros], then the row's own 1 + C scores and zeros: what a program
of a kernel reads together lies together, in blocks whose width is a power of two. A token is rows[id] +
positions[position]. `attend` gathers tokens and computes the attention output without writing a query, a key or an
attention weight to memory; `pool` computes the pooling weights and sums the tokens' scores into class scores. Without
Triton or a GPU the reference implementations are used.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.runtime.tables import Columns, LookupTables

try:
    import triton
    import triton.language as tl
except ImportError:  # not on every platform
    triton = None
available = triton is not None
MAX_BLOCK = 128  # tokens of a block of queries or keys: the fastest measured
TYPES_PER_BLOCK = 8192  # rows of the table of token types made in one step


@dataclass(frozen=True)
class DeviceTables:
    """The tables of a model and how their columns are divided."""

    rows: Tensor  # (N, W): of token types
    positions: Tensor  # (P, W): of positions, with the bias
    heads: int
    head_width: int  # columns of a head's query or key
    scores: int  # 1 + C: the pooling score and the class scores, in a head's value and in a row's own

    @property
    def head_columns(self) -> int:
        """Columns of a head: query, key, value, zeros."""
        return 2 * self.head_width + padded(self.scores)

    @property
    def own_scores(self) -> int:
        """The column at which a row's own scores start."""
        return self.heads * self.head_columns


def padded(columns: int) -> int:
    """The next power of two, at least 16: what a matrix product on the device needs, and aligned in memory."""
    return max(16, 1 << (columns - 1).bit_length())


def arrange(table: Tensor, columns: Columns, heads: int) -> Tensor:
    """A table with the columns of `tables.py` in the order of `DeviceTables`."""
    query, key, value = (
        table[:, part].unflatten(1, (heads, -1)) for part in (columns.query, columns.key, columns.value)
    )
    own_scores = table[:, columns.own_scores]
    value, own_scores = (F.pad(part, (0, padded(part.shape[-1]) - part.shape[-1])) for part in (value, own_scores))
    return torch.cat([torch.cat([query, key, value], 2).flatten(1), own_scores], 1).contiguous()


def device_tables(tables: LookupTables, device: torch.device, dtype: torch.dtype) -> DeviceTables:
    """Copy the tables of a model to a device, rows and positions in `dtype`."""
    config, vocabulary = tables.config, tables.table.vocabulary

    def arranged(rows: np.ndarray) -> Tensor:
        return arrange(torch.from_numpy(rows).to(device, dtype), tables.columns, config.heads)

    starts = range(0, vocabulary, TYPES_PER_BLOCK)
    blocks = [tables.rows(np.arange(start, min(start + TYPES_PER_BLOCK, vocabulary))) for start in starts]
    return DeviceTables(
        rows=torch.cat([arranged(block) for block in blocks]),
        positions=arranged(tables.position_rows(config.max_tokens)).expand(config.max_tokens, -1).contiguous(),
        heads=config.heads,
        head_width=tables.dim // config.heads,
        scores=tables.value_width,
    )


def class_scores(tables: DeviceTables, ids: Tensor, lengths: Tensor) -> Tensor:
    """Class scores (B, C) of padded ids (B, L) int32, with the texts' lengths (B,) int32."""
    if triton is not None and tables.rows.is_cuda:
        return pool(tables, ids, lengths, attend(tables, ids, lengths))
    return pool_reference(tables, ids, lengths, attend_reference(tables, ids, lengths))


# -- reference implementations ---------------------------------------------------------------------------------


def attend_reference(tables: DeviceTables, ids: Tensor, lengths: Tensor) -> Tensor:
    """Attention output of each token, per head: (B, L, H, 1 + C) float32; 0 at padding."""
    rows, real = _rows_of(tables, ids, lengths)
    by_head = rows[..., : tables.own_scores].unflatten(2, (tables.heads, tables.head_columns)).transpose(1, 2)
    query, key, value = by_head.split([tables.head_width, tables.head_width, padded(tables.scores)], 3)
    weight = (query @ key.transpose(2, 3)).masked_fill(~real[:, None, None, :], -torch.inf).softmax(3)
    output = (weight @ value[..., : tables.scores]) * real[:, None, :, None]
    return output.transpose(1, 2).contiguous()


def pool_reference(tables: DeviceTables, ids: Tensor, lengths: Tensor, output: Tensor) -> Tensor:
    """Class scores (B, C): the tokens' scores averaged with the pooling weights."""
    rows, real = _rows_of(tables, ids, lengths)
    own = rows[..., tables.own_scores : tables.own_scores + tables.scores]
    total = own + output.sum(2)  # (B, L, 1 + C)
    weight = total[..., 0].masked_fill(~real, -torch.inf).softmax(1)
    return (weight.unsqueeze(1) @ total[..., 1:]).squeeze(1)


def _rows_of(tables: DeviceTables, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the tokens with their positions: (B, L, W) float32; and a mask of the real ones (B, L)."""
    place = torch.arange(ids.shape[1], device=ids.device)
    positions = tables.positions[place.clamp(max=len(tables.positions) - 1)]  # padding may go beyond the last one
    return tables.rows[ids.long()].float() + positions.float(), place < lengths.unsqueeze(1)


# -- the kernels -----------------------------------------------------------------------------------------------

if triton is not None:

    @triton.jit
    def _load(rows, index, real, column, width):  # type: ignore[no-untyped-def]
        """Columns of rows, in the type they are stored in; 0 where there is no element."""
        return tl.load(rows + index[:, None] * width + column[None, :], mask=real[:, None], other=0.0)

    @triton.jit
    def _attend(  # type: ignore[no-untyped-def]
        rows, positions, ids, lengths, out, width, length, value_width, head_columns,
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
        real = place < count
        token = tl.load(ids + text * length + place, mask=real, other=0)
        query = _load(rows, token, real, query_column, width).to(tl.float32)
        query += _load(positions, place, real, query_column, width).to(tl.float32)
        query = (query * 1.4426950408889634).to(dtype)  # log2(e): the device computes powers of two

        # The softmax block by block of keys: sums are rescaled whenever a larger score comes up.
        highest, total = tl.full((QUERIES,), -1e30, tl.float32), tl.zeros((QUERIES,), tl.float32)
        output = tl.zeros((QUERIES, VALUE), tl.float32)
        for step in range(STEPS):
            key_place = step * KEYS + tl.arange(0, KEYS)
            key_real = key_place < count
            key_token = tl.load(ids + text * length + key_place, mask=key_real, other=0)
            key = _load(rows, key_token, key_real, key_column, width).to(tl.float32)
            value = _load(rows, key_token, key_real, value_column, width).to(tl.float32)
            key = (key + _load(positions, key_place, key_real, key_column, width).to(tl.float32)).to(dtype)
            value = (value + _load(positions, key_place, key_real, value_column, width).to(tl.float32)).to(dtype)
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
    def _pool(  # type: ignore[no-untyped-def]
        rows, positions, ids, lengths, output, out, width, length, own, scores, HEADS: tl.constexpr,
        BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        text = tl.program_id(0)
        count = tl.load(lengths + text)
        place, column = tl.arange(0, BLOCK), tl.arange(0, COLUMNS)
        real, used = place < count, column < scores

        token = tl.load(ids + text * length + place, mask=real, other=0)
        total = _load(rows, token, real, own + column, width).to(tl.float32)
        total += _load(positions, place, real, own + column, width).to(tl.float32)
        for head in tl.static_range(HEADS):  # unrolled: the loads of all heads overlap
            source = output + ((text * length + place) * HEADS + head)[:, None] * scores + column[None, :]
            total += tl.load(source, mask=real[:, None] & used[None, :], other=0.0)

        # Column 0 is the pooling score, the others are class scores.
        score = tl.where(real, tl.sum(tl.where(column[None, :] == 0, total, 0.0), 1), -1e30)
        weight = tl.where(real, tl.exp(score - tl.max(score, 0)), 0.0)
        pooled = tl.sum(total * weight[:, None], 0) / tl.sum(weight, 0)
        tl.store(out + text * (scores - 1) + column - 1, pooled, mask=(column > 0) & used)


def attend(tables: DeviceTables, ids: Tensor, lengths: Tensor) -> Tensor:
    """`attend_reference` in one kernel, one program for each head of each block of tokens of a text."""
    batch, length = ids.shape
    output = torch.empty(batch, length, tables.heads, tables.scores, dtype=torch.float32, device=ids.device)
    block = min(MAX_BLOCK, max(16, triton.next_power_of_2(length)))  # of queries, and of keys
    _attend[triton.cdiv(length, block), tables.heads, batch](
        tables.rows, tables.positions, ids, lengths, output, tables.rows.shape[1], length, tables.scores,
        tables.head_columns, HEADS=tables.heads, HEAD=tables.head_width, VALUE=padded(tables.scores),
        QUERIES=block, KEYS=block, STEPS=triton.cdiv(length, block), num_warps=8 if block == 128 else 4, num_stages=1,
    )  # fmt: skip
    return output


def pool(tables: DeviceTables, ids: Tensor, lengths: Tensor, output: Tensor) -> Tensor:
    """`pool_reference` in one kernel, one program for each text."""
    batch, length = ids.shape
    scores = torch.empty(batch, tables.scores - 1, dtype=torch.float32, device=ids.device)
    _pool[(batch,)](
        tables.rows, tables.positions, ids, lengths, output, scores, tables.rows.shape[1], length,
        tables.own_scores, tables.scores, HEADS=tables.heads, BLOCK=triton.next_power_of_2(length),
        COLUMNS=max(2, triton.next_power_of_2(tables.scores)), num_warps=4 if length <= 256 else 8,
    )  # fmt: skip
    return scores
