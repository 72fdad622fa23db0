"""The lexicon as ONNX nodes: what `lexicon_layer.LexiconLayer` computes, from the arrays as they are stored.

Keys, inverse document frequencies and class scores stay packed in the file, in the float32 one too: they are already
all there is. Keys and frequencies are unpacked once, on loading; the scores of the entries of a text when they are
needed.
"""

from collections.abc import Mapping

import numpy as np

from ade.integrations.onnx_nodes import Graph, PackedPairs, read_bits
from ade.lexicon import IDF_BITS, SCORES, LexiconShape

ABOVE_ALL = 2**62  # a key larger than any


def lexicon_logits(g: Graph, shape: LexiconShape, arrays: Mapping[str, np.ndarray], ids: str, mask: str) -> str:
    """What the entries of each text (B, L) add to its class scores: (B, C)."""
    entry, real = distinct_entries(g, shape, sorted_keys(g, shape, arrays), ids, mask)  # (B, M)

    # An entry's scores are pairs over shared rows. Weights are summed for each row: one product then gives the sum of
    # all scores, and the scores of single entries are never in memory.
    scores = {name.removeprefix(SCORES): array for name, array in arrays.items() if name.startswith(SCORES)}
    pairs = PackedPairs(g, shape.scores, scores)
    index, weight, _ = pairs.of(g.Reshape(entry, [-1]))  # (B M, k)
    weight = g.Where(g.Reshape(real, [-1, 1]), weight, 0.0)
    batch = g.size(ids, 0)
    per_text = g.shape(batch, -1)
    coefficients = g.ScatterElements(
        g.Expand(0.0, g.shape(batch, g.size(pairs.anchors(), 0))),
        g.Reshape(index, per_text),
        g.Reshape(weight, per_text),
        axis=1,
        reduction="add",
    )  # (B, K)
    sums = g.MatMul(coefficients, pairs.anchors())  # (B, C)

    squares = g.Where(real, g.Gather(squared_idf(g, shape, arrays), entry), 0.0)
    norm = g.Max(g.Sqrt(g.ReduceSum(squares, [1])), 1e-12)  # (B, 1)
    return g.Add(g.Div(sums, norm), arrays["bias"].astype(np.float32))


def sorted_keys(g: Graph, shape: LexiconShape, arrays: Mapping[str, np.ndarray]) -> str:
    """Keys of the entries, ascending, and one larger than all (n + 1,), from Elias-Fano form: `lexicon.unpack_keys`."""
    bits = 8 * len(arrays["keys_high"])
    byte = g.Unsqueeze(g.cast(arrays["keys_high"], "INT64"), [1])
    marks = g.Reshape(g.Mod(g.Div(byte, 2 ** np.arange(8)), 2), [-1])  # (bits,): one mark an entry

    # Where the i-th mark stands, scattered to row i: NonZero would say it, but is not computed on loading.
    row = g.Where(g.cast(marks, "BOOL"), g.CumSum(marks, 0, exclusive=1), shape.entries)
    marked = g.ScatterElements(g.Expand(0, [shape.entries + 1]), row, g.Range(0, bits, 1), axis=0, reduction="add")
    high = g.Sub(g.Slice(marked, [0], [shape.entries]), g.Range(0, shape.entries, 1))  # (n,)

    keys = g.Mul(high, 2**shape.low_bits)
    if shape.low_bits:
        keys = g.Add(keys, read_bits(g, arrays["keys_low"], shape.low_bits, g.Range(0, shape.entries, 1)))
    return g.Concat(keys, [ABOVE_ALL], axis=0)


def squared_idf(g: Graph, shape: LexiconShape, arrays: Mapping[str, np.ndarray]) -> str:
    """Squared inverse document frequencies of all entries: (n,)."""
    low, high = (float(end) for end in arrays["idf_range"])
    levels = (low + (high - low) * np.arange(2**IDF_BITS) / (2**IDF_BITS - 1)) ** 2
    return g.Gather(levels.astype(np.float32), read_bits(g, arrays["idf"], IDF_BITS, g.Range(0, shape.entries, 1)))


def distinct_entries(g: Graph, shape: LexiconShape, keys: str, ids: str, mask: str) -> tuple[str, str]:
    """Entries found in each text (B, L), and which to count: each (B, M), M = 2 L - 1. Others are 0."""
    first, second = (drop_token(g, ids, which) for which in ("last", "first"))  # (B, L - 1): neighbouring pairs
    pair = g.Add(g.Mul(g.Add(first, 1), shape.vocabulary), second)
    both_real = g.And(*(drop_token(g, mask, which) for which in ("last", "first")))
    wanted, real = g.Concat(ids, pair, axis=1), g.Concat(mask, both_real, axis=1)  # (B, M)

    position = binary_search(g, keys, shape.entries, wanted)
    found = g.And(real, g.Equal(g.Gather(keys, position), wanted))
    entry = g.Where(found, position, shape.entries)  # after the last one where there is none

    # Sorted, so that an entry that occurs again follows itself; the first of each counts.
    entry = g.TopK(entry, g.shape(g.size(entry, 1)), axis=1, largest=0, unused_outputs=1)
    before = g.Pad(drop_token(g, entry, "last"), [0, 1, 0, 0], -1)
    counted = g.And(g.Less(entry, shape.entries), g.Not(g.Equal(entry, before)))
    return g.Where(counted, entry, 0), counted


def drop_token(g: Graph, rows: str, which: str) -> str:
    """Rows (B, L) without their first or last column: (B, L - 1)."""
    return g.Slice(rows, [1], [ABOVE_ALL], [1]) if which == "first" else g.Slice(rows, [0], [-1], [1])


def binary_search(g: Graph, keys: str, entries: int, wanted: str) -> str:
    """How many of the ascending keys (n,) lie below each wanted one, of any shape; `keys` ends with one above all."""
    position = g.constant(0)
    for exponent in reversed(range(entries.bit_length())):
        probe = g.Min(g.Add(position, 2**exponent - 1), entries)  # the last key that a step of 2^exponent passes
        below = g.cast(g.Less(g.Gather(keys, probe), wanted), "INT64")
        position = g.Add(position, g.Mul(below, 2**exponent))
    return position
