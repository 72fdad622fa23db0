"""The packed keys of a lexicon: ascending integers in about 2 + log2(range / entries) bits each, idf values in 4.

Elias-Fano coding: the low bits of a key as they are, the high bits as gaps in unary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ade.errors import InputError
from ade.packing.bits import pack_bits, stream_bytes, unpack_bits
from ade.packing.format import Layout, check_arrays

IDF_BITS = 4


@dataclass(frozen=True)
class KeySizes:
    """The number of keys, and the number of possible keys: all keys are below `end`."""

    entries: int
    end: int

    @property
    def low_bits(self) -> int:
        """Low bits of a key that are stored as they are."""
        return max(0, (self.end // max(1, self.entries)).bit_length() - 1)

    def arrays(self) -> Layout:
        """Return type and shape of every array, by name."""
        high_bits = self.entries + (self.end >> self.low_bits) + 1
        return {
            "keys_low": ("uint8", (stream_bytes(self.entries, self.low_bits),)),
            "keys_high": ("uint8", (-(-high_bits // 8),)),
            "idf": ("uint8", (stream_bytes(self.entries, IDF_BITS),)),
            "idf_range": ("float32", (2,)),
        }


def pack_keys(keys: np.ndarray, idf: np.ndarray, end: int) -> dict[str, np.ndarray]:
    """Pack ascending keys (n,) below `end` and their idf values (n,), these on an even grid."""
    sizes = KeySizes(len(keys), end)
    low, high = keys & ((1 << sizes.low_bits) - 1), keys >> sizes.low_bits
    marks = np.zeros(8 * sizes.arrays()["keys_high"][1][0], np.uint8)
    marks[high + np.arange(len(keys))] = 1

    least, most = float(idf.min(initial=1.0)), float(idf.max(initial=1.0))
    steps = np.round((idf - least) / max(most - least, 1e-6) * (2**IDF_BITS - 1)).astype(np.int64)
    return {
        "keys_low": pack_bits(low, sizes.low_bits),
        "keys_high": np.packbits(marks, bitorder="little"),
        "idf": pack_bits(steps, IDF_BITS),
        "idf_range": np.array([least, most], np.float32),
    }


def unpack_keys(sizes: KeySizes, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return keys (n,) int64 and idf values (n,) float32; raises `InputError` for damaged arrays."""
    check_arrays(sizes.arrays(), arrays)
    marks = np.flatnonzero(np.unpackbits(arrays["keys_high"], bitorder="little"))
    if len(marks) != sizes.entries:
        raise InputError("the lexicon's keys do not add up; the file is damaged")
    high = marks - np.arange(sizes.entries)
    low = unpack_bits(arrays["keys_low"], sizes.low_bits, sizes.entries)
    keys = (high << sizes.low_bits) | low
    if (np.diff(keys) <= 0).any() or keys.max(initial=0) >= sizes.end:
        raise InputError("the lexicon's keys are not in order; the file is damaged")

    least, most = arrays["idf_range"].astype(np.float64)
    steps = unpack_bits(arrays["idf"], IDF_BITS, sizes.entries)
    return keys, (least + (most - least) * steps / (2**IDF_BITS - 1)).astype(np.float32)
