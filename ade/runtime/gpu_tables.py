"""The tables of `tables.py` on a GPU: how their columns are arranged there.

A row has, for every head, [query, key, value, zeros], then the row's own 1 + C scores and zeros: what a program of a
kernel reads together lies together, in blocks whose width is a power of two.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.configuration import EPSILON
from ade.runtime.tables import AnchorRows, Columns, LookupTables

TYPES_PER_BLOCK = 8192  # rows of the table of token types made in one step


@dataclass(frozen=True)
class DeviceTables:
    """The tables of a model and how their columns are divided."""

    rows: Tensor  # (N, W): of token types
    positions: Tensor  # (P, W): of positions, with the bias
    heads: int
    head_width: int  # columns of a head's query or key
    value_width: int  # columns of a head's value: 1 + C

    @property
    def scores(self) -> int:
        """1 + C: the pooling score and the class scores."""
        return self.value_width

    @property
    def head_columns(self) -> int:
        """Columns of a head: query, key, value, zeros."""
        return 2 * self.head_width + padded(self.value_width)

    @property
    def own_scores(self) -> int:
        """The column at which a row's own scores start."""
        return self.heads * self.head_columns


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


def device_tables(tables: LookupTables, device: torch.device, dtype: torch.dtype) -> DeviceTables:
    """Copy the tables of a model to a device, rows and positions in `dtype`."""
    config, columns = tables.config, tables.columns
    positions = _on(device, tables.position_rows(config.max_tokens)).expand(config.max_tokens, -1)
    return DeviceTables(
        rows=arrange(_type_rows(tables, device, dtype), columns, config.heads),
        positions=arrange(positions.to(dtype), columns, config.heads),
        heads=config.heads,
        head_width=tables.dim // config.heads,
        value_width=tables.value_width,
    )


def _on(device: torch.device, array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _type_rows(tables: LookupTables, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Rows of every token type (N, W): `AnchorRows` on the device, a block of token types after the other."""
    rows = tables.rows
    assert isinstance(rows, AnchorRows)
    centred, projected, shift = (_on(device, each) for each in (rows.centred, rows.anchor_rows, rows.shift))
    blocks = []
    for start in range(0, tables.vocabulary, TYPES_PER_BLOCK):
        types = np.arange(start, min(start + TYPES_PER_BLOCK, tables.vocabulary))
        anchor, beta, _ = rows.codebook.padded(types)  # (m, k)
        index, weight = _on(device, anchor.astype(np.int64)), _on(device, beta)
        composed = F.embedding_bag(index, centred, mode="sum", per_sample_weights=weight)
        weight = weight * torch.rsqrt(composed.square().sum(1, keepdim=True) + EPSILON)
        block = F.embedding_bag(index, projected, mode="sum", per_sample_weights=weight) + shift
        blocks.append(block.to(dtype))
    return torch.cat(blocks)
