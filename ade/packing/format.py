"""The packed form of a codebook: every number in as few bits as it needs. It is unpacked when a folder is read.

Each token has a code: the number of its pairs, or that it has a row of its own, with 8 or with 4 bits a number. The
pairs of all tokens are one stream of bits, an index and a signed weight each; each token has a scale of 8 bits on a
logarithmic grid, each anchor one in float16. A token's own row is an anchor, numbered after the shared ones in the
order of the tokens (those of 8 bits first), so no index is stored for it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from ade.errors import InputError
from ade.packing.bits import pack_bits, pack_rows, rows_stored, stream_bytes, unpack_bits, unpack_rows

OWN_8, OWN_4 = 0, 1  # codes of tokens with a row of their own; the code of any other is 1 more than its pairs
WEIGHT_BITS, ANCHOR_BITS = 4, 8  # of the weight of a pair, and of a number of a shared anchor
WEIGHT_LEVELS = 2 ** (WEIGHT_BITS - 1) - 1  # the largest integer that a stored weight may be
SCALE_STEPS = 255  # of the logarithmic grid of scales
Layout = dict[str, tuple[str, tuple[int, ...]]]  # type and shape of arrays, by name


class Pairs(NamedTuple):
    """The arrays of a codebook."""

    anchors: np.ndarray  # (K, d) float32
    indices: np.ndarray  # (P,)
    weights: np.ndarray  # (P,) float32
    counts: np.ndarray  # (N,)


@dataclass(frozen=True)
class Packing:
    """Which anchors of a packed codebook are shared, and in how many bits the others are stored."""

    shared: int = 0  # the first anchors, used by all tokens; each other one is the own row of a token. 0: all
    fine: int = 0  # of the anchors after the shared ones, the first ones with 8 bits a number; the others have 4


@dataclass(frozen=True)
class PackedSizes:
    """Sizes of a packed codebook, from which follow the types and shapes of its arrays."""

    vocabulary: int
    dim: int
    anchors: int  # shared ones
    own_8: int  # tokens with a row of their own, 8 bits a number
    own_4: int  # and with 4
    pairs: int  # of all other tokens together
    most: int  # the most pairs of a token

    def __post_init__(self) -> None:
        natural = all(type(number) is int and number >= 0 for number in asdict(self).values())
        if not natural or self.anchors < 1:
            raise InputError("the sizes of a packed codebook are not valid")

    @property
    def index_bits(self) -> int:
        """Bits of an index."""
        return max(1, (self.anchors - 1).bit_length())

    @property
    def pair_bits(self) -> int:
        """Bits of a pair: its index, then its weight."""
        return self.index_bits + WEIGHT_BITS

    @property
    def count_bits(self) -> int:
        """Bits of a token's code."""
        return (self.most + 1).bit_length()

    @property
    def packing(self) -> Packing:
        """How the codebook is packed."""
        return Packing(self.anchors, self.own_8)

    def arrays(self) -> Layout:
        """Return type and shape of every array, by name."""
        layout: Layout = {}
        parts = ("anchors", self.anchors, ANCHOR_BITS), ("own_8", self.own_8, 8), ("own_4", self.own_4, 4)
        for name, count, bits in parts:
            layout[name], layout[f"{name}_scales"] = rows_stored(count, self.dim, bits)
        return layout | {
            "codes": ("uint8", (stream_bytes(self.vocabulary, self.count_bits),)),
            "scales": ("uint8", (self.vocabulary,)),
            "scale_range": ("float32", (2,)),
            "pairs": ("uint8", (stream_bytes(self.pairs, self.pair_bits),)),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return layout_bytes(self.arrays())


def layout_bytes(layout: Layout) -> int:
    """Bytes of arrays of these types and shapes."""
    return sum(int(np.prod(shape)) * np.dtype(kind).itemsize for kind, shape in layout.values())


def pack(pairs: Pairs, packing: Packing) -> tuple[PackedSizes, dict[str, np.ndarray]]:
    """Pack a codebook.

    Its shared anchors come first. Any other anchor is the own row of one token, whose only anchor it is; these are in
    the order of the tokens, those with 8 bits a number first.
    """
    anchors, indices, weights, counts = pairs
    counts = counts.astype(np.int64)

    # Which tokens have a row of their own: those whose first anchor is not shared.
    shared = packing.shared or len(anchors)
    first_anchor = indices[np.cumsum(counts) - counts].astype(np.int64)  # (N,)
    own = first_anchor >= shared
    own_8 = own & (first_anchor < shared + packing.fine)
    own_4 = own & ~own_8

    sizes = PackedSizes(
        vocabulary=len(counts),
        dim=anchors.shape[1],
        anchors=shared,
        own_8=int(own_8.sum()),
        own_4=int(own_4.sum()),
        pairs=int(counts[~own].sum()),
        most=int(counts.max()),
    )
    arrays = {"codes": pack_bits(np.where(own_8, OWN_8, np.where(own_4, OWN_4, counts + 1)), sizes.count_bits)}
    parts = np.split(anchors, [shared, shared + sizes.own_8])
    for name, rows, bits in zip(("anchors", "own_8", "own_4"), parts, (ANCHOR_BITS, 8, 4), strict=True):
        arrays[name], arrays[f"{name}_scales"] = pack_rows(rows, bits)

    # A token's scale is its largest weight, on a logarithmic grid from the smallest to the largest of all.
    largest = np.maximum.reduceat(np.abs(weights), np.cumsum(counts) - counts)  # (N,)
    largest = np.maximum(largest, max(1e-12, 1e-4 * largest.max()))
    low, high = float(largest.min()), float(max(largest.max(), largest.min() * (1 + 1e-6)))
    arrays["scales"] = np.round(SCALE_STEPS * np.log(largest / low) / np.log(high / low)).astype(np.uint8)
    arrays["scale_range"] = np.array([low, high], np.float32)

    token = np.repeat(np.arange(len(counts)), counts)  # (P,): the token a pair belongs to
    level = np.round(weights / largest[token] * WEIGHT_LEVELS).astype(np.int64) + WEIGHT_LEVELS
    words = indices.astype(np.int64) | (level << sizes.index_bits)
    arrays["pairs"] = pack_bits(words[~own[token]], sizes.pair_bits)
    return sizes, arrays


def unpack(sizes: PackedSizes, arrays: Mapping[str, np.ndarray]) -> Pairs:
    """Return the codebook that `pack` packed; raises `InputError` for damaged arrays."""
    check_arrays(sizes.arrays(), arrays)
    codes = unpack_bits(arrays["codes"], sizes.count_bits, sizes.vocabulary)  # (N,)
    own_8, own_4 = codes == OWN_8, codes == OWN_4
    own = own_8 | own_4
    counts = np.where(own, 1, codes - 1)
    stated = (sizes.own_8, sizes.own_4, sizes.pairs)
    if (int(own_8.sum()), int(own_4.sum()), int(counts[~own].sum())) != stated or (counts < 1).any():
        raise InputError("the numbers of pairs do not add up; the file is damaged")

    own_anchor = np.zeros(sizes.vocabulary, np.int64)
    own_anchor[own_8] = sizes.anchors + np.arange(sizes.own_8)
    own_anchor[own_4] = sizes.anchors + sizes.own_8 + np.arange(sizes.own_4)

    of_own = np.repeat(own, counts)  # (P,)
    words = unpack_bits(arrays["pairs"], sizes.pair_bits, sizes.pairs)
    indices = np.repeat(own_anchor, counts)
    indices[~of_own] = words & (2**sizes.index_bits - 1)
    weights = np.ones(len(indices))
    weights[~of_own] = ((words >> sizes.index_bits) - WEIGHT_LEVELS) / WEIGHT_LEVELS
    if (indices[~of_own] >= sizes.anchors).any():
        raise InputError("an index lies outside the anchors; the file is damaged")
    low, high = arrays["scale_range"].astype(np.float64)
    weights *= np.repeat(low * (high / low) ** (arrays["scales"] / SCALE_STEPS), counts)

    parts = [unpack_rows(arrays[name], arrays[f"{name}_scales"], sizes.dim) for name in ("anchors", "own_8", "own_4")]
    return Pairs(np.concatenate(parts), indices.astype(np.int32), weights.astype(np.float32), counts.astype(np.int32))


def check_arrays(layout: Layout, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `InputError` unless the arrays have these types and shapes: a file was cut short or changed."""
    for name, (kind, shape) in layout.items():
        array = arrays.get(name)
        if array is None or array.dtype != kind or array.shape != shape:
            raise InputError(f"'{name}' should be {kind} of shape {shape}")


def check_finite(name: str, array: np.ndarray) -> None:
    """Raise `InputError` where an array holds NaN or infinity, as that of a model that diverged."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"'{name}' holds numbers that are not finite (NaN or infinity)")
