"""Lookup tables on a GPU: Triton kernels.

There a row has, for every head, [query, key, value, zeros], then the row's own 1 + C scores and zeros: what a program
of a kernel reads together lies together, in blocks whose width is a power of two. A token is rows[id] +
positions[position]. `_attend` gathers tokens and computes the attention output without writing a query, a key or an
attention weight to memory, a program for each head of each block of tokens of a text; `_pool` computes the pooling
weights and sums the tokens' scores into class scores, a program for each text.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.embedding import LexiconLayer
from ade.runtime.tables import Columns, LookupTables

try:
    import triton
    import triton.language as tl
except ImportError:  # not on every platform
    triton = None
KEYS_PER_PROGRAM = 128  # keys of a lexicon looked up by a program
ENTRIES_PER_STEP = 32  # entries of a lexicon compared with as many others at a time
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
        scores=tables.outputs + 1,
    )


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
        text, head, first = tl.program_id(0), tl.program_id(1), tl.program_id(2) * QUERIES
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


def class_scores(tables: DeviceTables, ids: Tensor, lengths: Tensor) -> Tensor:
    """Return the class scores (B, C) of padded ids (B, L) int32, with the texts' lengths (B,) int32."""
    batch, length = ids.shape
    width, heads, scores = tables.rows.shape[1], tables.heads, tables.scores
    attended = torch.empty(batch, length, heads, scores, dtype=torch.float32, device=ids.device)
    block = min(MAX_BLOCK, max(16, triton.next_power_of_2(length)))  # of queries, and of keys
    steps = triton.cdiv(length, block)
    _attend[batch, heads, steps](
        tables.rows, tables.positions, ids, lengths, attended, width, length, scores, tables.head_columns,
        HEADS=heads, HEAD=tables.head_width, VALUE=padded(scores), QUERIES=block, KEYS=block, STEPS=steps,
        num_warps=8 if block == 128 else 4, num_stages=1,
    )  # fmt: skip
    pooled = torch.empty(batch, scores - 1, dtype=torch.float32, device=ids.device)
    _pool[(batch,)](
        tables.rows, tables.positions, ids, lengths, attended, pooled, width, length, tables.own_scores, scores,
        HEADS=heads, BLOCK=triton.next_power_of_2(length), COLUMNS=max(2, triton.next_power_of_2(scores)),
        num_warps=4 if length <= 256 else 8,
    )  # fmt: skip
    return pooled


# -- the lexicon: searchsorted and a sum over distinct entries, faster than `LexiconLayer` for short texts -----------


if triton is not None:

    @triton.jit
    def _find(  # type: ignore[no-untyped-def]
        ids, lengths, keys, out, count, length, vocabulary, STEPS: tl.constexpr, BLOCK: tl.constexpr
    ):  # fmt: skip
        text, place = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside, is_bigram = place < 2 * length, place >= length
        at = tl.where(is_bigram, place - length, place)
        real = inside & (at + tl.where(is_bigram, 1, 0) < tl.load(lengths + text))
        token = tl.load(ids + text * length + at, mask=real, other=0).to(tl.int64)
        after = tl.load(ids + text * length + at + 1, mask=real & is_bigram, other=0).to(tl.int64)
        key = tl.where(is_bigram, vocabulary * (token + 1) + after, token)
        lower = tl.zeros((BLOCK,), tl.int32)  # keys below the one wanted
        for step in tl.static_range(STEPS):
            probe = lower + (1 << (STEPS - 1 - step))
            within = probe <= count
            below = tl.load(keys + probe - 1, mask=within, other=0) < key
            lower = tl.where(within & below, probe, lower)
        known = real & (lower < count)
        known = known & (tl.load(keys + lower, mask=known, other=-1) == key)
        tl.store(out + text * 2 * length + place, tl.where(known, lower, count), mask=inside)

    @triton.jit
    def _add(  # type: ignore[no-untyped-def]
        entries, squares, scores, bias, out, count, width, labels, STEPS: tl.constexpr, BLOCK: tl.constexpr,
        COLUMNS: tl.constexpr,
    ):  # fmt: skip
        text, lane, column = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, COLUMNS)
        written = column < labels
        total = tl.zeros((COLUMNS,), tl.float32)
        norm = tl.zeros((BLOCK,), tl.float32)
        for step in range(STEPS):
            place = step * BLOCK + lane
            entry = tl.load(entries + text * width + place, mask=place < width, other=count)
            repeated = tl.zeros((BLOCK,), tl.int32)
            for earlier in range(step + 1):
                other_place = earlier * BLOCK + lane
                other = tl.load(entries + text * width + other_place, mask=other_place < width, other=count)
                same = (entry[:, None] == other[None, :]) & (other_place[None, :] < place[:, None])
                repeated += tl.sum(same.to(tl.int32), 1)
            kept = (entry < count) & (repeated == 0)
            norm += tl.load(squares + entry, mask=kept, other=0.0)
            rows = tl.load(
                scores + entry[:, None] * labels + column[None, :], mask=kept[:, None] & written[None, :], other=0.0
            )
            total += tl.sum(rows, 0)
        length = tl.sqrt(tl.sum(norm, 0))
        added = total / tl.maximum(length, 1e-12) + tl.load(bias + column, mask=written, other=0.0)
        tl.store(out + text * labels + column, added, mask=written)


def lexicon_scores(lexicon: LexiconLayer, ids: Tensor, lengths: Tensor) -> Tensor:
    """Return what a lexicon adds to the scores (B, C) of padded ids (B, L) int32, with the lengths (B,) int32."""
    batch, length = ids.shape
    count, labels = len(lexicon.keys), len(lexicon.bias)
    entries = torch.empty(batch, 2 * length, dtype=torch.int32, device=ids.device)  # as `LexiconLayer.entries`
    _find[batch, triton.cdiv(2 * length, KEYS_PER_PROGRAM)](
        ids, lengths, lexicon.keys, entries, count, length, lexicon.vocabulary,
        STEPS=count.bit_length(), BLOCK=KEYS_PER_PROGRAM,
    )  # fmt: skip
    added = torch.empty(batch, labels, dtype=torch.float32, device=ids.device)
    _add[(batch,)](
        entries, lexicon.squares, lexicon.scores, lexicon.bias, added, count, 2 * length, labels,
        STEPS=triton.cdiv(2 * length, ENTRIES_PER_STEP), BLOCK=ENTRIES_PER_STEP,
        COLUMNS=max(2, triton.next_power_of_2(labels)), num_warps=4,
    )  # fmt: skip
    return added
