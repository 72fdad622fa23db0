"""The packed form of a codebook: every number in as few bits as it needs, decoded only for the rows asked for.

Each token has a code: the number of its pairs, or that its row is stored whole, with 8 or with 4 bits a number. The
pairs of all tokens are one stream of bits, an index and a signed weight each; each token has a scale of 8 bits on a
logarithmic grid, each anchor one in float16. A row stored whole is an anchor of its own, numbered after the shared ones
in the order of the tokens (those of 8 bits first), so no index is stored for it.

What reads is written for numpy arrays and tensors alike: the light runtime has the ones, the model the others.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from ade.arrays import Array, arange_like, as_float, library_of
from ade.errors import InputError
from ade.packing.bits import WORD_BYTES, from_half, from_nibbles, in_nibbles, pack_bits, quantised, read_bits

WHOLE_8, WHOLE_4 = 0, 1  # codes of rows stored whole; the code of any other token is 1 more than its pairs
BLOCK_TOKENS = 32  # of every so many tokens, it is known where the first one's pairs start
SCALE_STEPS = 255  # of the logarithmic grid of scales


@dataclass(frozen=True)
class Packing:
    """Bits with which a codebook and the layers on top of it are stored."""

    weight_bits: int = 4
    anchor_bits: int = 8
    layer_bits: int = 8
    shared: int = 0  # the first anchors, used by all tokens; each other one is the whole row of a token. 0: all
    fine: int = 0  # of the anchors after the shared ones, the first ones with 8 bits a number; the others have 4

    def __post_init__(self) -> None:
        if not 2 <= self.weight_bits <= 8:
            raise InputError(f"weight_bits must be between 2 and 8, not {self.weight_bits}")
        if self.anchor_bits not in (8, 16) or self.layer_bits not in (4, 8, 16):
            raise InputError("anchors are stored in 8 or 16 bits, layers in 4, 8 or 16")

    def as_dict(self) -> dict[str, int]:
        """The fields as a dictionary, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Shape:
    """Sizes of a packed codebook, from which follow the types and shapes of its arrays."""

    vocabulary: int
    dim: int
    anchors: int  # shared ones
    whole_8: int  # rows stored whole with 8 bits a number
    whole_4: int  # and with 4
    pairs: int  # of all other tokens together
    most: int  # the most pairs of a token
    weight_bits: int
    anchor_bits: int

    @property
    def pair_bits(self) -> int:
        """Bits of a pair: its index, then its weight."""
        return self.index_bits + self.weight_bits

    @property
    def index_bits(self) -> int:
        """Bits of an index."""
        return max(1, (self.anchors - 1).bit_length())

    @property
    def count_bits(self) -> int:
        """Bits of a token's code."""
        return (self.most + 1).bit_length()

    def __post_init__(self) -> None:
        natural = all(type(number) is int and number >= 0 for number in asdict(self).values())
        if not natural or self.anchors < 1 or not 2 <= self.weight_bits <= 8 or self.anchor_bits not in (8, 16):
            raise InputError("the sizes of a packed codebook are not valid")
        if self.pair_bits > 8 * WORD_BYTES - 7:
            raise InputError(f"a codebook of {self.anchors:,} anchors and {self.weight_bits} bits cannot be packed")

    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name, type and shape of every array."""
        code_bytes, pair_bytes = (
            -(-numbers * bits // 8) + WORD_BYTES
            for numbers, bits in ((self.vocabulary, self.count_bits), (self.pairs, self.pair_bits))
        )
        return {
            "anchors": ("int8" if self.anchor_bits == 8 else "int16", (self.anchors, self.dim)),
            "anchor_scales": ("int16", (self.anchors if self.anchor_bits == 8 else 0,)),
            "whole_8": ("int8", (self.whole_8, self.dim)),
            "whole_8_scales": ("int16", (self.whole_8,)),
            "whole_4": ("uint8", (self.whole_4, -(-self.dim // 2))),
            "whole_4_scales": ("int16", (self.whole_4,)),
            "codes": ("uint8", (code_bytes,)),
            "scales": ("uint8", (self.vocabulary,)),
            "scale_range": ("float32", (2,)),
            "pairs": ("uint8", (pair_bytes,)),
        }

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(int(np.prod(shape)) * np.dtype(kind).itemsize for kind, shape in self.arrays().values())


def pack(
    anchors: np.ndarray, indices: np.ndarray, weights: np.ndarray, counts: np.ndarray, packing: Packing
) -> tuple[Shape, dict[str, np.ndarray]]:
    """Pack a codebook.

    Args:
        anchors: (K, d), the shared ones first. Any other anchor is the whole row of one token, whose only anchor it is;
            these are in the order of the tokens, those with 8 bits a number first.
        indices: (P,), the pairs of one token after those of the other.
        weights: (P,)
        counts: (N,), pairs of each token.
        packing: the bits to use.
    """
    # Which tokens are stored whole: those whose first anchor is not shared.
    shared = packing.shared or len(anchors)
    starts = np.cumsum(counts, dtype=np.int64) - counts
    first_anchor = indices[starts].astype(np.int64)  # (N,)
    whole = first_anchor >= shared
    whole_8 = whole & (first_anchor < shared + packing.fine)
    whole_4 = whole & ~whole_8
    whole_tokens = np.concatenate([np.flatnonzero(whole_8), np.flatnonzero(whole_4)])
    in_order = np.array_equal(first_anchor[whole_tokens], np.arange(shared, len(anchors)))
    if not in_order or (counts[whole] != 1).any():
        raise InputError("rows stored whole must be in the order of their tokens, one anchor each")

    shape = Shape(
        vocabulary=len(counts),
        dim=anchors.shape[1],
        anchors=shared,
        whole_8=int(whole_8.sum()),
        whole_4=int(whole_4.sum()),
        pairs=int(counts[~whole].sum()),
        most=int(counts.max()),
        weight_bits=packing.weight_bits,
        anchor_bits=packing.anchor_bits,
    )
    codes = np.where(whole_8, WHOLE_8, np.where(whole_4, WHOLE_4, counts + 1))
    pairs, scales, scale_range = _pack_pairs(shape, indices, weights, counts, ~whole)
    return shape, {
        **_pack_anchors(shape, anchors),
        "codes": pack_bits(codes, shape.count_bits),
        "scales": scales,
        "scale_range": scale_range,
        "pairs": pairs,
    }


def _pack_pairs(
    shape: Shape, indices: np.ndarray, weights: np.ndarray, counts: np.ndarray, has_pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stream of pairs of the tokens that have some, scales (N,) uint8 of all tokens, and the scales' range (2,)."""
    token = np.repeat(np.arange(len(counts)), counts)  # (P,): the token a pair belongs to

    # A token's scale is its largest weight, on a logarithmic grid from the smallest to the largest of all.
    largest = np.maximum.reduceat(np.abs(weights), np.cumsum(counts, dtype=np.int64) - counts)  # (N,)
    largest = np.maximum(largest, max(1e-12, 1e-4 * largest.max()))
    low, high = float(largest.min()), float(max(largest.max(), largest.min() * (1 + 1e-6)))
    scales = np.round(SCALE_STEPS * np.log(largest / low) / np.log(high / low)).astype(np.uint8)

    levels = _weight_levels(shape)
    level = np.round(weights / largest[token] * levels).astype(np.int64) + levels  # 0 to 2 levels
    words = indices.astype(np.int64) | (level << shape.index_bits)
    return pack_bits(words[has_pairs[token]], shape.pair_bits), scales, np.array([low, high], np.float32)


def _pack_anchors(shape: Shape, anchors: np.ndarray) -> dict[str, np.ndarray]:
    """Shared anchors and rows stored whole, each with a scale."""
    shared, whole_8, whole_4 = np.split(anchors, [shape.anchors, shape.anchors + shape.whole_8])
    arrays = {}
    arrays["anchors"], arrays["anchor_scales"] = quantised(shared, shape.anchor_bits)
    arrays["whole_8"], arrays["whole_8_scales"] = quantised(whole_8, 8)
    numbers, arrays["whole_4_scales"] = quantised(whole_4, 4)
    return {**arrays, "whole_4": in_nibbles(numbers)}


def _weight_levels(shape: Shape) -> int:
    """The largest integer a stored weight may be."""
    return 2 ** (shape.weight_bits - 1) - 1


def check(shape: Shape, arrays: Mapping[str, Array]) -> Array:
    """Check that the arrays are what the shape says, and index them for `lookup`.

    Returns for every `BLOCK_TOKENS`-th token the number of pairs, of rows stored whole with 8 bits and of rows stored
    whole with 4 bits before it: (blocks, 3) int32. Raises an error where a file was cut short or changed.
    """
    for name, (dtype, size) in shape.arrays().items():
        found: Array = arrays.get(name)
        # A float array may have been converted with the rest of a model.
        same_type = found is not None and dtype in (str(found.dtype).removeprefix("torch."), "float32")
        if not same_type or tuple(found.shape) != size:
            raise InputError(f"'{name}' should be {dtype} of shape {size}")

    codes = read_bits(_numpy(arrays["codes"]), shape.count_bits, np.arange(shape.vocabulary))
    pairs = np.where(codes > WHOLE_4, codes - 1, 0)
    sizes = np.stack([pairs, codes == WHOLE_8, codes == WHOLE_4], 1)  # (N, 3)
    most = max(1, int(pairs.max(initial=0)))
    if tuple(sizes.sum(0)) != (shape.pairs, shape.whole_8, shape.whole_4) or most != shape.most:
        raise InputError("its counts do not add up; the file is damaged")
    _check_indices(shape, _numpy(arrays["pairs"]))

    before = np.cumsum(sizes, 0) - sizes
    return before[::BLOCK_TOKENS].astype(np.int32)


def _check_indices(shape: Shape, stream: np.ndarray, step: int = 1 << 18) -> None:
    """Raise an error where an index is not an anchor's; its bits can hold larger numbers, unless K is a power of 2."""
    if shape.anchors == 2**shape.index_bits:
        return
    for start in range(0, shape.pairs, step):
        words = read_bits(stream, shape.pair_bits, np.arange(start, min(start + step, shape.pairs)))
        if _index_of(shape, words).max(initial=0) >= shape.anchors:
            raise InputError("an index lies outside the anchors; the file is damaged")


def _index_of(shape: Shape, word: Array) -> Array:
    """The anchor of a pair as it is stored."""
    return word & (2**shape.index_bits - 1)


def _weight_of(shape: Shape, word: Array) -> Array:
    """The weight of a pair as it is stored, as a fraction of its token's scale."""
    levels = _weight_levels(shape)
    return ((word >> shape.index_bits) - levels) / levels


def counts_of(shape: Shape, arrays: Mapping[str, Array], types: Array) -> Array:
    """The number of pairs of token types (n,); 1 for a row stored whole."""
    return _count_of(read_bits(arrays["codes"], shape.count_bits, types))


def _count_of(code: Array) -> Array:
    return code - 1 + (code == WHOLE_4) + 2 * (code == WHOLE_8)


def lookup(shape: Shape, arrays: Mapping[str, Array], starts: Array, types: Array) -> tuple[Array, Array, Array]:
    """Decode the pairs of token types (n,).

    Returns anchors and weights, padded with weight 0, and a mask of the real ones: each (n, most). `starts` is what
    `check` returned.
    """
    where = library_of(types).where
    code = read_bits(arrays["codes"], shape.count_bits, types)  # (n,)
    has_pairs = (code > WHOLE_4)[:, None]  # (n, 1): the others are stored whole
    column = arange_like(shape.most, types)
    real = column < _count_of(code)[:, None]  # (n, most)

    # The words of the stream that hold a token's pairs; word 0 stands in where there is none.
    first_pair, before_8, before_4 = _positions(shape, arrays, starts, types)
    place = where(real & has_pairs, first_pair[:, None] + column, 0 * column)
    word = read_bits(arrays["pairs"], shape.pair_bits, place)  # (n, most)

    own_anchor = shape.anchors + where(code == WHOLE_8, before_8, shape.whole_8 + before_4)  # (n,)
    index = where(has_pairs, _index_of(shape, word), own_anchor[:, None] + 0 * word)
    fraction = where(has_pairs, _weight_of(shape, word), 1.0 + 0.0 * word)
    weight = fraction * _scales_of(arrays, types)[:, None]
    return where(real, index, 0 * index), weight * real, real


def _positions(shape: Shape, arrays: Mapping[str, Array], starts: Array, types: Array) -> tuple[Array, Array, Array]:
    """The number of pairs, of rows of 8 bits and of rows of 4 bits stored before token types (n,): each (n,).

    Known for the first token of the block; the codes of the tokens between that one and the type give the rest.
    """
    within = arange_like(BLOCK_TOKENS, types)
    block = types // BLOCK_TOKENS
    neighbours = (block[:, None] * BLOCK_TOKENS + within).clip(0, shape.vocabulary - 1)  # (n, BLOCK_TOKENS)
    earlier = within < (types % BLOCK_TOKENS)[:, None]
    codes = read_bits(arrays["codes"], shape.count_bits, neighbours)

    before = starts[block]  # (n, 3)
    pairs = before[:, 0] + ((codes - 1) * ((codes > WHOLE_4) & earlier)).sum(1)
    whole_8 = before[:, 1] + ((codes == WHOLE_8) & earlier).sum(1)
    whole_4 = before[:, 2] + ((codes == WHOLE_4) & earlier).sum(1)
    return pairs, whole_8, whole_4


def _scales_of(arrays: Mapping[str, Array], types: Array) -> Array:
    """Scales of token types (n,), from their place on the logarithmic grid."""
    low, high = float(arrays["scale_range"][0]), float(arrays["scale_range"][1])
    step = arrays["scales"][types] + 0 * types  # adding 0 * types makes it int64
    return low * (high / low) ** (step / SCALE_STEPS)


def anchors_of(shape: Shape, arrays: Mapping[str, Array], index: Array) -> Array:
    """Anchors by number (n,), shared or stored for one token, as float32 (n, d); no others are decoded."""
    shared = index.clip(0, shape.anchors - 1)
    if shape.anchor_bits == 8:
        rows = as_float(arrays["anchors"][shared]) * from_half(arrays["anchor_scales"][shared])[:, None]
    else:
        rows = from_half(arrays["anchors"][shared])

    for first, name in ((shape.anchors, "whole_8"), (shape.anchors + shape.whole_8, "whole_4")):
        chosen = (index >= first) & (index < first + len(arrays[name]))
        if bool(chosen.any()):
            place = index[chosen] - first
            stored = arrays[name][place]
            numbers = as_float(stored) if name == "whole_8" else from_nibbles(stored, shape.dim)
            rows[chosen] = numbers * from_half(arrays[f"{name}_scales"][place])[:, None]
    return rows


def all_anchors(shape: Shape, arrays: Mapping[str, Array]) -> Array:
    """Every anchor (K, d), shared ones first."""
    return anchors_of(shape, arrays, arange_like(shape.anchors + shape.whole_8 + shape.whole_4, arrays["scales"]))


def check_finite(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise an error where stored arrays contain NaN or infinity, as those of a model that diverged."""
    for name, array in arrays.items():
        if array.dtype == np.int16 and not name.endswith("indices"):
            array = array.view(np.float16)  # what `half` stored
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"'{name}' holds numbers that are not finite (NaN or infinity)")


def _numpy(array: Array) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
