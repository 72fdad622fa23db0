"""The tables of `tables.py` on a GPU: how their columns are arranged there, and a batch of texts as rows of them.

A row has, for every head, [query, key, value, zeros], then the row's own 1 + C scores and zeros: what a program of a
kernel reads together lies together, in blocks whose width is a power of two.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.config_values import EPSILON
from ade.packing.pairs import Pairs, pair_slots
from ade.runtime.tables import Columns, Composition, Gates, Tables

TYPES_AT_A_TIME = 8192  # rows of the table of token types made at a time


@dataclass(frozen=True)
class DevicePairs:
    """The pairs of a codebook, those of one token after those of the other."""

    counts: Tensor  # (N,) int32
    starts: Tensor  # (N,) int32
    anchors: Tensor  # (P,) int32
    weights: Tensor  # (P,) float32
    max_pairs: int


@dataclass(frozen=True)
class DeviceGates:
    """What is needed to gate a token's anchors by the attention output."""

    readout: Tensor  # (d, K + 1 + C + zeros): attention output -> scores of the gates, then its part of the scores
    bias: Tensor  # (K,) float32: of the gates
    gram: Tensor  # (K, K) float32: inner products of the centred anchors, over d
    direct: Tensor  # (K, 1 + C) float32: what an anchor adds to the scores, before the division by the deviation
    constant: Tensor  # (1 + C,) float32


@dataclass(frozen=True)
class DeviceTables:
    """The tables of a model and how their columns are divided."""

    rows: Tensor  # (R, W): of token types or of anchors
    positions: Tensor  # (P, W): of positions, with the bias
    heads: int
    head_width: int  # columns of a head's query or key
    value_width: int  # columns of a head's value: 1 + C, or `head_width` in `gated` mode
    scores: int  # 1 + C
    pairs: DevicePairs | None = None  # in `anchors` and `gated` mode
    gates: DeviceGates | None = None  # in `gated` mode
    grouped_positions: bool = True  # an anchor has its word's position

    @property
    def head_columns(self) -> int:
        """Columns of a head: query, key, value, zeros."""
        return 2 * self.head_width + padded(self.value_width)

    @property
    def own_scores(self) -> int:
        """The column at which a row's own scores start."""
        return self.heads * self.head_columns

    @property
    def output_dtype(self) -> torch.dtype:
        """Type of the attention output: float32 where it is only summed, that of the tables where it is multiplied."""
        return torch.float32 if self.gates is None else self.rows.dtype


@dataclass(frozen=True)
class Elements:
    """A batch of texts: row numbers of a table, to which positions are yet to be added, or finished rows."""

    lengths: Tensor  # (B,) int32: elements of each text
    rows: Tensor  # (R, W): a table, with an index; (B, T, W): finished rows, without
    index: Tensor | None = None  # (B, T) int32: which row of the table

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, T)."""
        return (self.rows if self.index is None else self.index).shape[:2]


def padded(columns: int) -> int:
    """The next power of two, at least 16: what a matrix product on the device needs, and aligned in memory."""
    return max(16, 1 << (columns - 1).bit_length())


def arrange(table: Tensor, columns: Columns, heads: int) -> Tensor:
    """A table with the columns of `tables.py` in the order of this file."""
    query, key, value = (
        table[:, part].unflatten(1, (heads, -1)) for part in (columns.query, columns.key, columns.value)
    )
    own_scores = table[:, columns.own_scores]
    value, own_scores = (F.pad(part, (0, padded(part.shape[-1]) - part.shape[-1])) for part in (value, own_scores))
    return torch.cat([torch.cat([query, key, value], 2).flatten(1), own_scores], 1).contiguous()


def pairs_of(pairs: DevicePairs, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors and weights of tokens (...,), padded with weight 0, and a mask of the real ones: each (..., k)."""
    slot, real = pair_slots(pairs.counts, pairs.starts, ids, pairs.max_pairs)
    return pairs.anchors[slot], pairs.weights[slot] * real, real


def device_tables(tables: Tables, device: torch.device, dtype: torch.dtype) -> DeviceTables:
    """Copy the tables of a model to a device, rows and positions in `dtype`."""
    options, columns = tables.options, tables.columns
    pairs = _device_pairs(tables.pairs, device)
    if tables.composition is None:
        rows = _on(device, tables.anchor_rows)
    else:
        rows = _type_rows(tables.composition, tables.anchor_rows, pairs, dtype)

    position_count = options.max_tokens
    if options.expanded and not options.grouped_positions:
        position_count *= pairs.max_pairs
    positions = _on(device, tables.position_rows(position_count)).expand(position_count, -1)

    return DeviceTables(
        rows=arrange(rows.to(dtype), columns, options.heads),
        positions=arrange(positions.to(dtype), columns, options.heads),
        heads=options.heads,
        head_width=tables.dim // options.heads,
        value_width=tables.value_width,
        scores=1 + tables.labels,
        pairs=pairs if options.expanded or options.gated else None,
        gates=None if tables.gates is None else _device_gates(tables, tables.gates, device, dtype),
        grouped_positions=options.grouped_positions or options.position_scale == 0.0,
    )


def _on(device: torch.device, array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _device_pairs(pairs: Pairs, device: torch.device) -> DevicePairs:
    """Unpack all pairs, a block of token types at a time."""
    blocks = np.split(np.arange(pairs.vocabulary), range(TYPES_AT_A_TIME, pairs.vocabulary, TYPES_AT_A_TIME))
    counts, anchors, weights = [], [], []
    for types in blocks:
        anchor, weight, real = pairs.of(types)
        counts.append(real.sum(1))
        anchors.append(anchor[real])
        weights.append(weight[real])

    count = np.concatenate(counts)
    return DevicePairs(
        counts=_on(device, count.astype(np.int32)),
        starts=_on(device, (np.cumsum(count) - count).astype(np.int32)),
        anchors=_on(device, np.concatenate(anchors).astype(np.int32)),
        weights=_on(device, np.concatenate(weights)),
        max_pairs=pairs.max_pairs,
    )


def _type_rows(composition: Composition, anchor_rows: np.ndarray, pairs: DevicePairs, dtype: torch.dtype) -> Tensor:
    """Rows of every token type (N, W): `Projection.type_rows` up to the columns of the gates, on the device."""
    device = pairs.counts.device
    centred, projected, shift = (_on(device, each) for each in (composition.centred, anchor_rows, composition.shift))
    blocks = []
    for types in torch.arange(len(pairs.counts), device=device).split(TYPES_AT_A_TIME):
        index, weight, _ = pairs_of(pairs, types)
        composed = F.embedding_bag(index, centred, mode="sum", per_sample_weights=weight)
        weight = weight * torch.rsqrt(composed.square().sum(1, keepdim=True) + EPSILON)
        rows = F.embedding_bag(index, projected, mode="sum", per_sample_weights=weight) + shift
        blocks.append(rows.to(dtype))
    return torch.cat(blocks)


def _device_gates(tables: Tables, gates: Gates, device: torch.device, dtype: torch.dtype) -> DeviceGates:
    assert tables.composition is not None
    assert tables.value_readout is not None
    readout = _on(device, np.hstack([gates.weight.T, tables.value_readout])).to(dtype)  # (d, K + 1 + C)
    centred = _on(device, tables.composition.centred)
    return DeviceGates(
        readout=F.pad(readout, (0, -readout.shape[1] % 16)),
        bias=_on(device, gates.bias),
        gram=centred @ centred.T,
        direct=_on(device, gates.direct),
        constant=_on(device, gates.constant),
    )
