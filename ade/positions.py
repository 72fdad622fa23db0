"""Sinusoidal position encodings.

Grouped Positional Encoding (GPE) is this encoding with one position per word: all anchors of a word share it.
"""

import math

from ade.arrays import Array, arange_like, as_float, library_of


def sinusoidal(positions: Array, dim: int) -> Array:
    """Encode integer positions of any shape as (..., dim): sine and cosine of the same frequency side by side."""
    library = library_of(positions)
    even = 2 * as_float(arange_like((dim + 1) // 2, positions))  # 0, 2, 4, ... below dim

    angle = as_float(positions)[..., None] * library.exp(even * (-math.log(10000.0) / dim))
    encoded = library.stack([library.sin(angle), library.cos(angle)], -1)  # (..., dim / 2, 2)
    return encoded.reshape(*positions.shape, 2 * len(even))[..., :dim]
