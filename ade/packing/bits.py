"""Numbers in few bits: streams of unsigned integers, rows of small signed integers with a scale, float16.

What reads is written for numpy arrays and tensors alike: the light runtime has the ones, the model the others.
"""

import numpy as np

from ade.arrays import Array, as_float, library_of

WORD_BYTES = 4  # read at once; a stream has as many zero bytes after it
PACKED_AT_A_TIME = 1 << 20  # numbers; a multiple of 8, so that each part ends with a whole byte


def pack_bits(values: np.ndarray, width: int) -> np.ndarray:
    """Pack unsigned integers into a stream of `width` bits each, lowest bit first, with zero bytes after it."""
    parts = []
    for start in range(0, max(1, len(values)), PACKED_AT_A_TIME):
        part = values[start : start + PACKED_AT_A_TIME].astype(np.int64)
        bits = (part[:, None] >> np.arange(width)) & 1  # (n, width)
        parts.append(np.packbits(bits.astype(np.uint8).ravel(), bitorder="little"))
    return np.concatenate([*parts, np.zeros(WORD_BYTES, np.uint8)])


def read_bits(stream: Array, width: int, places: Array) -> Array:
    """Integers (int64) at these places of a stream, an array of any shape; `width` is at most 25 bits."""
    first_bit = places * width
    byte, shift = first_bit // 8, first_bit % 8
    word = 0 * places
    for i in range(WORD_BYTES):
        word = word + (stream[byte + i] + 0 * places) * 256**i  # adding 0 * places makes it int64
    return (word >> shift) & (2**width - 1)


def quantised(rows: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Round rows (n, d) to signed integers of `bits` bits with a scale per row; with 16 bits to float16 without one."""
    if bits == 16:
        return half(rows), np.empty(0, np.int16)
    levels = 2 ** (bits - 1) - 1
    scale = half(np.maximum(np.abs(rows).max(1, initial=0) / levels, 1e-6))
    return np.clip(np.round(rows / from_half(scale)[:, None]), -levels, levels).astype(np.int8), scale


def half(numbers: np.ndarray) -> np.ndarray:
    """Round to float16, stored as int16 so that no library converts it to another float type."""
    return numbers.astype(np.float16).view(np.int16)


def from_half(bits: Array) -> Array:
    """The inverse of `half`, as float32."""
    return as_float(bits.view(library_of(bits).float16))


def in_nibbles(rows: np.ndarray) -> np.ndarray:
    """Pack integers from -8 to 7 (n, d) two to a byte: (n, d / 2)."""
    even = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2))).astype(np.int16) + 8
    return (even[:, ::2] | (even[:, 1::2] << 4)).astype(np.uint8)


def from_nibbles(packed: Array, dim: int) -> Array:
    """The inverse of `in_nibbles`, as float32 (n, dim)."""
    both = library_of(packed).stack([packed & 15, packed >> 4], -1).reshape(len(packed), 2 * packed.shape[1])
    return as_float(both[:, :dim]) - 8


def pack_layer(weight: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of a linear layer (outputs, inputs) in 4, 8 or 16 bits, and the scales of its rows."""
    numbers, scales = quantised(weight, bits)
    return (in_nibbles(numbers) if bits == 4 else numbers), scales


def layer_weight(weight: Array, scales: Array, inputs: int) -> Array:
    """The inverse of `pack_layer`, as float32 (outputs, inputs)."""
    if len(scales) == 0:
        return from_half(weight)
    numbers = as_float(weight) if weight.shape[1] == inputs else from_nibbles(weight, inputs)
    return numbers * from_half(scales)[:, None]
