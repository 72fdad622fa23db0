"""Packed pairs: every number in as few bits as it needs, read without unpacking more than the rows asked for.

For each token a code: how many pairs it has, or that its row is kept whole, in 8 or in 4 bits a number. Pairs lie end
to end in one stream of bits, an index and a signed weight each; a scale of 8 bits, on a logarithmic grid, for each
token; anchors have a scale each. A row kept whole is an anchor of its own, numbered after the shared ones in the order
of the tokens, so no index is stored for it.

What reads is written for numpy arrays and tensors alike: the light runtime has the ones, the model the others.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from ade.arrays import Array, arange_like, as_float, library_of
from ade.errors import InputError

WHOLE_8, WHOLE_4 = 0, 1  # codes of rows kept whole; from 2 on, the pairs of a token and 1 more
BLOCK = 32  # tokens between two known places in the stream
PAD = 4  # bytes after a stream: four are read at once
GRID = 255  # steps of the logarithmic grid of scales


@dataclass(frozen=True)
class Packing:
    """In how many bits a codebook and the layers on top of it are stored."""

    weight_bits: int = 4
    anchor_bits: int = 8
    layer_bits: int = 8
    shared: int = 0  # anchors that belong to everybody; the rest belong to one token each, its row kept whole
    fine: int = 0  # of the rest, those that come first and have 8 bits a number; the others have 4

    def __post_init__(self) -> None:
        if not 2 <= self.weight_bits <= 8:
            raise InputError(f"weight_bits must be between 2 and 8, not {self.weight_bits}")
        if self.anchor_bits not in (8, 16) or self.layer_bits not in (4, 8, 16):
            raise InputError("anchors are stored in 8 or 16 bits, layers in 4, 8 or 16")

    def as_dict(self) -> dict[str, int]:
        """Plain numbers, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Shape:
    """What the arrays of a packed codebook cannot say themselves."""

    vocabulary: int
    dim: int
    anchors: int  # shared ones
    whole_8: int  # rows kept whole in 8 bits
    whole_4: int  # and in 4
    pairs: int  # in all, those of the other tokens
    most: int  # pairs of a token
    weight_bits: int
    anchor_bits: int

    @property
    def index_bits(self) -> int:
        """Bits of an index."""
        return max(1, (self.anchors - 1).bit_length())

    @property
    def count_bits(self) -> int:
        """Bits of a token's code."""
        return (self.most + 1).bit_length()

    def __post_init__(self) -> None:
        numbers = asdict(self).values()
        whole = all(type(number) is int and number >= 0 for number in numbers)
        if not whole or self.anchors < 1 or not 2 <= self.weight_bits <= 8 or self.anchor_bits not in (8, 16):
            raise InputError("a packed codebook's shape is not one that can be")
        if self.index_bits + self.weight_bits > 8 * PAD - 7:
            raise InputError(f"a codebook of {self.anchors:,} anchors and {self.weight_bits} bits cannot be packed")

    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape of every array."""
        stream = -(-self.pairs * (self.index_bits + self.weight_bits) // 8)
        return {
            "anchors": ("int8" if self.anchor_bits == 8 else "int16", (self.anchors, self.dim)),
            "anchor_scales": ("int16", (self.anchors if self.anchor_bits == 8 else 0,)),
            "whole_8": ("int8", (self.whole_8, self.dim)),
            "whole_8_scales": ("int16", (self.whole_8,)),
            "whole_4": ("uint8", (self.whole_4, -(-self.dim // 2))),
            "whole_4_scales": ("int16", (self.whole_4,)),
            "codes": ("uint8", (-(-self.vocabulary * self.count_bits // 8) + PAD,)),
            "scales": ("uint8", (self.vocabulary,)),
            "scale_range": ("float32", (2,)),
            "pairs": ("uint8", (stream + PAD,)),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(np.prod(shape)) * np.dtype(kind).itemsize for kind, shape in self.arrays().values())


def pack_bits(values: np.ndarray, width: int) -> np.ndarray:
    """Unsigned numbers as a stream of bits, lowest first, a few bytes of room after it."""
    parts = []
    for start in range(0, max(1, len(values)), 1 << 20):  # a multiple of 8 numbers ends with a byte
        bits = (values[start : start + (1 << 20)].astype(np.int64)[:, None] >> np.arange(width)) & 1  # (n, width)
        parts.append(np.packbits(bits.astype(np.uint8).ravel(), bitorder="little"))
    return np.concatenate([*parts, np.zeros(PAD, np.uint8)])


def read_bits(stream: Array, width: int, places: Array) -> Array:
    """Numbers at these places of a stream (any shape), as int64; up to 25 bits each."""
    bit = places * width
    byte, shift = bit // 8, bit % 8
    word = 0 * places
    for i in range(PAD):
        word = word + (stream[byte + i] + 0 * places) * 256**i
    return (word >> shift) & (2**width - 1)


def quantised(rows: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, d) as signed whole numbers of so many bits, and a scale each; in 16 bits as they are, without one."""
    if bits == 16:
        return half(rows), np.empty(0, np.int16)
    levels = 2 ** (bits - 1) - 1
    scale = half(np.maximum(np.abs(rows).max(1, initial=0) / levels, 1e-6))
    return np.clip(np.round(rows / from_half(scale)[:, None]), -levels, levels).astype(np.int8), scale


def half(numbers: np.ndarray) -> np.ndarray:
    """float16, as the integers its bits spell: no library takes them for numbers it may convert."""
    return numbers.astype(np.float16).view(np.int16)


def from_half(bits: Array) -> Array:
    """What `half` stored, as float32."""
    return as_float(bits.view(library_of(bits).float16))


def in_nibbles(rows: np.ndarray) -> np.ndarray:
    """Numbers from -8 to 7 (n, d), two a byte."""
    even = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2))).astype(np.int16) + 8
    return (even[:, ::2] | (even[:, 1::2] << 4)).astype(np.uint8)


def from_nibbles(packed: Array, dim: int) -> Array:
    """What `in_nibbles` packed (n, d / 2), as float32 (n, d)."""
    both = library_of(packed).stack([packed & 15, packed >> 4], -1).reshape(len(packed), 2 * packed.shape[1])
    return as_float(both[:, :dim]) - 8


def pack(
    anchors: np.ndarray, indices: np.ndarray, weights: np.ndarray, counts: np.ndarray, packing: Packing
) -> tuple[Shape, dict[str, np.ndarray]]:
    """Ragged pairs, packed. An anchor that is not shared is one token's only one, in the tokens' order."""
    shared = packing.shared or len(anchors)
    starts = np.cumsum(counts, dtype=np.int64) - counts
    first = indices[starts].astype(np.int64)
    whole = first >= shared
    fine = whole & (first < shared + packing.fine)
    shape = Shape(
        len(counts), anchors.shape[1], shared, int(fine.sum()), int(whole.sum() - fine.sum()),
        int(counts[~whole].sum()), int(counts.max()), packing.weight_bits, packing.anchor_bits,
    )  # fmt: skip
    expected = np.concatenate([np.flatnonzero(fine), np.flatnonzero(whole & ~fine)])
    if not np.array_equal(first[expected], np.arange(shared, len(anchors))) or (counts[whole] != 1).any():
        raise InputError("rows kept whole must be in the order of their tokens, one anchor each")
    owner = np.repeat(np.arange(len(counts)), counts)
    largest = np.maximum.reduceat(np.abs(weights), starts)
    largest = np.maximum(largest, max(1e-12, 1e-4 * largest.max()))
    low, high = float(largest.min()), float(max(largest.max(), largest.min() * (1 + 1e-6)))
    grid = np.round(GRID * np.log(largest / low) / np.log(high / low))
    levels = 2 ** (packing.weight_bits - 1) - 1
    kept = ~whole[owner]
    number = np.round(weights / largest[owner] * levels).astype(np.int64) + levels
    coded = (indices.astype(np.int64) | (number << shape.index_bits))[kept]
    table, scales = quantised(anchors[:shared], packing.anchor_bits)
    whole_8, whole_8_scales = quantised(anchors[shared : shared + shape.whole_8], 8)
    whole_4, whole_4_scales = quantised(anchors[shared + shape.whole_8 :], 4)
    return shape, {
        "anchors": table,
        "anchor_scales": scales,
        "whole_8": whole_8,
        "whole_8_scales": whole_8_scales,
        "whole_4": in_nibbles(whole_4),
        "whole_4_scales": whole_4_scales,
        "codes": pack_bits(np.where(whole, np.where(fine, WHOLE_8, WHOLE_4), counts + 1), shape.count_bits),
        "scales": grid.astype(np.uint8),
        "scale_range": np.array([low, high], np.float32),
        "pairs": pack_bits(coded, shape.index_bits + packing.weight_bits),
    }


def check(shape: Shape, arrays: Mapping[str, Array]) -> Array:
    """Where each block of tokens begins in the stream, among rows of 8 and of 4 bits: (blocks, 3) int32.

    Refuses arrays that are not what the shape says: a file cut short or changed.
    """
    for name, (kind, size) in shape.arrays().items():
        found: Array = arrays.get(name)
        alike = found is not None and kind in (str(found.dtype).removeprefix("torch."), "float32")
        if not alike or tuple(found.shape) != size:
            raise InputError(f"'{name}' should be {kind} of shape {size}")
    codes = read_bits(_numpy(arrays["codes"]), shape.count_bits, np.arange(shape.vocabulary))
    sizes = np.stack([np.maximum(codes - 1, 0) * (codes > WHOLE_4), codes == WHOLE_8, codes == WHOLE_4], 1)  # (N, 3)
    most = max(1, int(codes.max(initial=0)) - 1)
    if tuple(sizes.sum(0)) != (shape.pairs, shape.whole_8, shape.whole_4) or most != shape.most:
        raise InputError("its counts do not add up; the file is damaged")
    if shape.anchors < 2**shape.index_bits:
        for start in range(0, shape.pairs, 1 << 18):
            places = np.arange(start, min(start + (1 << 18), shape.pairs))
            found = read_bits(_numpy(arrays["pairs"]), shape.index_bits + shape.weight_bits, places)
            if (found & (2**shape.index_bits - 1)).max(initial=0) >= shape.anchors:
                raise InputError("an index lies outside the anchors; the file is damaged")
    return np.vstack([np.zeros((1, 3), np.int64), np.cumsum(sizes, 0)])[:-1:BLOCK].astype(np.int32)


def counts_of(shape: Shape, arrays: Mapping[str, Array], types: Array) -> Array:
    """How many pairs token types (n,) have; one, where the row is kept whole."""
    code = read_bits(arrays["codes"], shape.count_bits, types)
    return code - 1 + (code == WHOLE_4) + 2 * (code == WHOLE_8)


def lookup(shape: Shape, arrays: Mapping[str, Array], starts: Array, types: Array) -> tuple[Array, Array, Array]:
    """Anchors and weights of token types (n,), padded with weight 0, and which are real: each (n, most)."""
    kind = library_of(types)
    lane, column = arange_like(BLOCK, types), arange_like(shape.most, types)
    block = types // BLOCK
    around, earlier = block[:, None] * BLOCK + lane, lane < (types % BLOCK)[:, None]  # (n, BLOCK)
    codes = read_bits(arrays["codes"], shape.count_bits, _clipped(around, shape.vocabulary - 1))
    code = read_bits(arrays["codes"], shape.count_bits, types)
    before = starts[block]  # (n, 3)
    pair = before[:, 0] + ((codes - 1) * ((codes > WHOLE_4) & earlier)).sum(1)
    fine = before[:, 1] + ((codes == WHOLE_8) & earlier).sum(1)
    coarse = before[:, 2] + ((codes == WHOLE_4) & earlier).sum(1)
    has = code > WHOLE_4
    there = column < counts_of(shape, arrays, types)[:, None]  # (n, most)
    place = kind.where(there & has[:, None], pair[:, None] + column, 0 * column)
    word = read_bits(arrays["pairs"], shape.index_bits + shape.weight_bits, place)
    own = shape.anchors + kind.where(code == WHOLE_8, fine, shape.whole_8 + coarse)
    index = kind.where(has[:, None], word & (2**shape.index_bits - 1), own[:, None] + 0 * word)
    levels = 2 ** (shape.weight_bits - 1) - 1
    low, high = float(arrays["scale_range"][0]), float(arrays["scale_range"][1])
    scale = low * (high / low) ** ((arrays["scales"][types] + 0 * types) / GRID)  # (n,)
    share = kind.where(has[:, None], ((word >> shape.index_bits) - levels) / levels, 1.0 + 0.0 * word)
    return kind.where(there, index, 0 * index), share * scale[:, None] * there, there


def anchors_of(shape: Shape, arrays: Mapping[str, Array], index: Array) -> Array:
    """Anchors (n, d) by number, those of rows kept whole among them, float32: only what is asked for is unpacked."""
    shared = _clipped(index, shape.anchors - 1)
    if shape.anchor_bits == 8:
        rows = as_float(arrays["anchors"][shared]) * from_half(arrays["anchor_scales"][shared])[:, None]
    else:
        rows = from_half(arrays["anchors"][shared])
    for first, name in ((shape.anchors, "whole_8"), (shape.anchors + shape.whole_8, "whole_4")):
        chosen = (index >= first) & (index < first + len(arrays[name]))
        if bool(chosen.any()):
            at = index[chosen] - first
            numbers = as_float(arrays[name][at]) if name == "whole_8" else from_nibbles(arrays[name][at], shape.dim)
            rows[chosen] = numbers * from_half(arrays[f"{name}_scales"][at])[:, None]
    return rows


def all_anchors(shape: Shape, arrays: Mapping[str, Array]) -> Array:
    """Every anchor (K, d), shared ones first."""
    return anchors_of(shape, arrays, arange_like(shape.anchors + shape.whole_8 + shape.whole_4, arrays["scales"]))


def pack_layer(weight: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """A layer's weights (m, n) and the scales of its rows, as they are stored."""
    numbers, scales = quantised(weight, bits)
    return (in_nibbles(numbers) if bits == 4 else numbers), scales


def layer_weight(weight: Array, scales: Array, inputs: int) -> Array:
    """What `pack_layer` stored, as float32 (m, n)."""
    if len(scales) == 0:
        return from_half(weight)
    numbers = as_float(weight) if weight.shape[1] == inputs else from_nibbles(weight, inputs)
    return numbers * from_half(scales)[:, None]


def check_finite(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse stored arrays with NaN or infinity in them, as those of a model that diverged."""
    for name, array in arrays.items():
        if array.dtype == np.int16 and not name.endswith("indices"):
            array = array.view(np.float16)  # what `half` stored
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"'{name}' holds numbers that are not finite (NaN or infinity)")


def _clipped(array: Array, most: int) -> Array:
    return array.clip(0, most)


def _numpy(array: Array) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
