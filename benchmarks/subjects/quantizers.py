"""Ways to keep an embedding table in few bytes, as people use them; all measured alike by what calls them.

Each takes a table (V, d), the bytes that it may take and how often each row is expected, and gives the rows as it would
serve them with the bytes that it needs: codes, books and scales all counted, books and scales in float16. Ways in a
fixed number of bits take the bytes that they take. None where nothing fits.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

GROUP = 32  # numbers with one scale
SHRINKAGE = np.linspace(0.5, 1.0, 6, dtype=np.float32)  # scales tried, relative to the one that clips nothing
BLOCK = 16_384  # rows at a time
MAX_TRAINED, BEAM = 131_072, 4  # rows that RQ is trained on; codes kept while a row is coded
Served = tuple[np.ndarray, int] | None
Way = Callable[[np.ndarray, int, np.ndarray], Served]


def product_quantizer(table: np.ndarray, size: int, frequency: np.ndarray) -> Served:
    """faiss PQ, 8 bits a part; parts differ by at most one number, which zeros fill up at no cost."""
    faiss: Any = import_module("faiss")
    count, dim = table.shape
    parts = min(dim, (size - 2 * 256 * dim) // count)
    if parts < 1:
        return None
    width = -(-dim // parts)
    split = np.array_split(np.arange(dim), parts)
    columns = np.concatenate([np.arange(len(part)) + width * i for i, part in enumerate(split)])
    filled = np.zeros((count, width * parts), np.float32)
    filled[:, columns] = table
    coder = faiss.ProductQuantizer(width * parts, parts, 8)
    coder.train(filled)
    return coder.decode(coder.compute_codes(filled))[:, columns], count * parts + 2 * 256 * dim


def residual_quantizer(table: np.ndarray, size: int, frequency: np.ndarray) -> Served:
    """faiss RQ, 8 bits a stage."""
    faiss: Any = import_module("faiss")
    count, dim = table.shape
    stages = size // (count + 2 * 256 * dim)
    if stages < 1:
        return None
    coder = faiss.ResidualQuantizer(dim, stages, 8)
    coder.max_beam_size = BEAM
    chosen = np.random.default_rng(0).permutation(count)[:MAX_TRAINED]
    coder.train(np.ascontiguousarray(table[chosen]))
    return coder.decode(coder.compute_codes(table)), stages * (count + 2 * 256 * dim)


def trimmed(table: np.ndarray, size: int, frequency: np.ndarray) -> Served:
    """The most frequent rows in 8 bits, all others as their mean; an int32 for every row says which."""
    count, dim = table.shape
    kept = np.argsort(-frequency, kind="stable")[: (size - 4 * count) // group_bytes(1, dim, 8)]
    dropped = np.ones(count, bool)
    dropped[kept] = False
    rows = np.empty_like(table)
    rows[kept] = in_groups(table[kept], 8)
    rows[dropped] = table[dropped].mean(0) if dropped.any() else 0
    return rows, group_bytes(len(kept), dim, 8) + 4 * count


def in_bits(bits: int, table: np.ndarray, size: int, frequency: np.ndarray) -> Served:
    """All rows in so many bits a number, rounded to the nearest, with a scale for every group."""
    return in_groups(table, bits), group_bytes(len(table), table.shape[1], bits)


def with_offsets(bits: int, table: np.ndarray, size: int, frequency: np.ndarray) -> Served:
    """The same with levels from the least to the largest number of a group, kept as offset and scale."""
    rows, most = np.empty_like(table), 2**bits - 1
    for start in range(0, len(table), BLOCK):
        part = table[start : start + BLOCK]
        groups = part.reshape(-1, GROUP)
        least = groups.min(1, keepdims=True).astype(np.float16).astype(np.float32)
        scale = ((groups.max(1, keepdims=True) - least) / most).astype(np.float16).astype(np.float32).clip(1e-7)
        levels = np.round((groups - least) / scale).clip(0, most)
        rows[start : start + BLOCK] = (levels * scale + least).reshape(part.shape)
    return rows, group_bytes(len(table), table.shape[1], bits) + 2 * table.size // GROUP


def in_groups(table: np.ndarray, bits: int) -> np.ndarray:
    """Round to the nearest of 2 ** bits levels around zero; the scale of a group is that of least squared error."""
    rows = np.empty_like(table)
    for start in range(0, len(table), BLOCK):
        part = table[start : start + BLOCK]
        groups = part.reshape(-1, GROUP)
        best, least = np.zeros_like(groups), np.full(len(groups), np.inf, np.float32)
        largest = np.abs(groups).max(1) / (2 ** (bits - 1) - 0.5)
        for factor in SHRINKAGE if bits < 8 else SHRINKAGE[-1:]:
            scale = (largest * factor).astype(np.float16).astype(np.float32).clip(1e-7)[:, None]
            levels = np.floor(groups / scale).clip(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            rounded = (levels + 0.5) * scale
            error = np.square(rounded - groups).sum(1)
            better = error < least
            best[better], least[better] = rounded[better], error[better]
        rows[start : start + BLOCK] = best.reshape(part.shape)
    return rows


def group_bytes(count: int, dim: int, bits: int) -> int:
    """Bytes of rows in so many bits a number, with a scale for every group."""
    return count * (dim * bits // 8 + 2 * (dim // GROUP))


WAYS: dict[str, Way] = {
    "PQ (faiss)": product_quantizer,
    "RQ (faiss)": residual_quantizer,
    "trimmed vocabulary": trimmed,
    **{f"int{bits}": partial(in_bits, bits) for bits in (2, 3, 4, 8)},
    **{f"int{bits}, offsets": partial(with_offsets, bits) for bits in (2, 3, 4)},
}
