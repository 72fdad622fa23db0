"""A coded table as nodes of a graph: `packing.coded`, where codes stay codes."""

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from ade.integrations.onnx_nodes import Graph
from ade.packing.coded import ENTRIES, CodedRows, Stage


def coded_rows(g: Graph, shape: Mapping[str, Any], arrays: Mapping[str, np.ndarray], ids: str) -> str:
    """The rows of token ids (n,): (n, d)."""
    table = CodedRows(shape, arrays)
    coded = g.Sub(g.cast(g.Gather(table.place, ids), "INT64"), table.shape.exact)  # (n,): below 0 for whole rows
    rows = g.Mul(g.cast(g.Unsqueeze(coded, [1]), "FLOAT"), np.zeros((1, table.dim), np.float32))  # (n, d)
    for number, stage in enumerate(table.shape.stages):
        rows = g.Add(rows, _stage_rows(g, arrays, number, stage, coded))
    if table.shape.stages:
        more = [g.cast(g.Less(coded, stage.rows), "INT64") for stage in table.shape.stages[1:]]
        rows = g.Mul(rows, g.Unsqueeze(g.Gather(arrays["gains"], reduce(g.Add, more, g.Mul(coded, 0))), [1]))

    rotation = g.Mul(g.cast(arrays["rotation"], "FLOAT"), arrays["rotation_scale"])
    rows = g.Add(g.MatMul(rows, rotation), arrays["mean"])
    if not table.shape.exact:
        return rows
    whole = g.Gather(arrays["exact"].astype(np.float32), g.Max(g.Add(g.Min(coded, -1), table.shape.exact), 0))
    return g.Where(g.Unsqueeze(g.Less(coded, 0), [1]), whole, rows)


def _stage_rows(g: Graph, arrays: Mapping[str, np.ndarray], number: int, stage: Stage, coded: str) -> str:
    """What a stage adds to rows by their place among the coded ones (n,): (n, d); nothing to those that lack it."""
    codes, scale = arrays[f"codes_{number}"], arrays[f"scale_{number}"]
    known = g.And(g.Less(coded, stage.rows), g.Not(g.Less(coded, 0)))
    place = g.Max(g.Min(coded, stage.rows - 1), 0)
    first = ENTRIES * np.arange(len(codes))[None]  # entry that the book of each piece starts at
    entries = g.Add(g.cast(g.Gather(np.ascontiguousarray(codes.T), place), "INT64"), first)  # (n, pieces)

    book = g.Mul(g.cast(arrays[f"book_{number}"], "FLOAT"), scale)  # (pieces, ENTRIES, width)
    found = g.Gather(g.Reshape(book, [-1, stage.width]), entries)  # (n, pieces, width)
    return g.Mul(g.Reshape(found, [0, -1]), g.cast(g.Unsqueeze(known, [1]), "FLOAT"))
