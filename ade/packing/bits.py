"""Numbers in few bits: streams of unsigned integers, and rows of small signed integers with a scale each."""

import numpy as np


def stream_bytes(count: int, width: int) -> int:
    """Bytes of a stream of `count` numbers of `width` bits each."""
    return -(-count * width // 8)


def pack_bits(values: np.ndarray, width: int) -> np.ndarray:
    """Pack unsigned integers into a stream of `width` bits each, lowest bit first."""
    bits = np.empty((len(values), width), np.uint8)
    for i in range(width):
        bits[:, i] = (values >> i) & 1
    return np.packbits(bits.ravel(), bitorder="little")


def unpack_bits(stream: np.ndarray, width: int, count: int) -> np.ndarray:
    """Return the `count` numbers that `pack_bits` packed: (count,) int64."""
    bits = np.unpackbits(stream, count=count * width, bitorder="little").reshape(count, width)
    numbers = np.zeros(count, np.int64)
    for i in range(width):
        numbers |= bits[:, i].astype(np.int64) << i
    return numbers


def pack_rows(rows: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Round rows (n, d) to 4, 8 or 16 bits a number; returns the numbers and the scale of each row (n,) float16.

    Four bits are packed two to a byte (uint8), eight are int8; sixteen are float16 and have no scales (0,).
    """
    if bits == 16:
        return rows.astype(np.float16), np.empty(0, np.float16)
    levels = 2 ** (bits - 1) - 1
    scales = np.maximum(np.abs(rows).max(1, initial=0) / levels, 1e-6).astype(np.float16)
    numbers = np.clip(np.round(rows / scales.astype(np.float32)[:, None]), -levels, levels).astype(np.int8)
    return (_in_nibbles(numbers) if bits == 4 else numbers), scales


def unpack_rows(packed: np.ndarray, scales: np.ndarray, dim: int) -> np.ndarray:
    """Return the rows (n, dim) float32 that `pack_rows` packed; the type of `packed` tells the bits."""
    if packed.dtype == np.float16:
        return packed.astype(np.float32)
    numbers = _from_nibbles(packed, dim) if packed.dtype == np.uint8 else packed
    return numbers.astype(np.float32) * scales.astype(np.float32)[:, None]


def rows_stored(count: int, dim: int, bits: int) -> tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]:
    """Return type and shape of the two arrays of `pack_rows`."""
    numbers = {4: ("uint8", (count, -(-dim // 2))), 8: ("int8", (count, dim)), 16: ("float16", (count, dim))}[bits]
    return numbers, ("float16", (0 if bits == 16 else count,))


def _in_nibbles(rows: np.ndarray) -> np.ndarray:
    """Pack integers from -8 to 7 (n, d) two to a byte: (n, d / 2)."""
    even = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2))).astype(np.int16) + 8
    return (even[:, ::2] | (even[:, 1::2] << 4)).astype(np.uint8)


def _from_nibbles(packed: np.ndarray, dim: int) -> np.ndarray:
    both = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), 2 * packed.shape[1])
    return both[:, :dim].astype(np.int8) - 8
