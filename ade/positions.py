"""Sinusoidal position encodings.

Grouped Positional Encoding (GPE) is this encoding with one position per word: all anchors of a word share it.
"""

import math

from ade.arrays import Array, arange_like, as_float, library_of


def frequencies(dim: int, like: Array) -> Array:
    """Angle per position of each sine and cosine, of the same library and on the same device as another array."""
    even = 2 * as_float(arange_like((dim + 1) // 2, like))  # 0, 2, 4, ... below dim
    return library_of(like).exp(even * (-math.log(10000.0) / dim))  # (dim / 2,)


def sinusoidal(positions: Array, dim: int) -> Array:
    """Encode integer positions of any shape as (..., dim): sine and cosine of the same frequency side by side."""
    library = library_of(positions)
    angle = as_float(positions)[..., None] * frequencies(dim, positions)
    encoded = library.stack([library.sin(angle), library.cos(angle)], -1)  # (..., dim / 2, 2)
    return encoded.reshape(*positions.shape, 2 * angle.shape[-1])[..., :dim]
