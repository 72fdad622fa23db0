"""Numbers in few bits: streams of unsigned integers, and rows of small signed integers with a scale each."""

import numpy as np

MAX_BITS = 25  # of a number in a stream: with its shift it fits into 32 bits


def stream_bytes(count: int, width: int) -> int:
    """Bytes of a stream of `count` numbers of `width` bits each."""
    return -(-count * width // 8)


def pack_bits(values: np.ndarray, width: int) -> np.ndarray:
    """Pack unsigned integers into a stream of `width` bits each, lowest bit first."""
    groups = -(-len(values) // 8)
    numbers = np.zeros((groups, 8), np.uint32)  # eight numbers fill `width` whole bytes
    numbers.ravel()[: len(values)] = values

    packed = np.zeros((groups, width + 4), np.uint8)  # the last number may reach four bytes further
    for i in range(8):
        byte, shift = divmod(i * width, 8)
        word = numbers[:, i].astype(np.uint64) << np.uint64(shift)
        for part in range(-(-(shift + width) // 8)):
            packed[:, byte + part] |= (word >> np.uint64(8 * part)).astype(np.uint8)
    return packed[:, :width].ravel()[: stream_bytes(len(values), width)]


def unpack_bits(stream: np.ndarray, width: int, count: int) -> np.ndarray:
    """Return the `count` numbers that `pack_bits` packed: (count,) int64."""
    groups = -(-count // 8)
    padded = np.zeros(groups * width, np.uint8)
    padded[: len(stream)] = stream
    rows = padded.reshape(groups, width)

    numbers = np.empty((groups, 8), np.int64)
    for i in range(8):
        byte, shift = divmod(i * width, 8)
        word = np.zeros(groups, np.uint32)
        for part in range(-(-(shift + width) // 8)):
            word |= rows[:, byte + part].astype(np.uint32) << np.uint32(8 * part)
        numbers[:, i] = (word >> np.uint32(shift)) & np.uint32(2**width - 1)
    return numbers.ravel()[:count]


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
