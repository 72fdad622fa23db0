"""Sinusoidal position encodings.

Grouped Positional Encoding (GPE) is this encoding with one position per word: all anchors of a word share it.
"""

import numpy as np


def sinusoidal(positions: np.ndarray, dim: int) -> np.ndarray:
    """Encode integer positions (n,) as (n, dim): sine and cosine of the same frequency side by side."""
    frequency = 10_000.0 ** (-np.arange(0, dim, 2) / dim)  # (dim / 2,)
    angle = positions[:, None] * frequency
    encoded = np.stack([np.sin(angle), np.cos(angle)], -1)  # (n, dim / 2, 2)
    return encoded.reshape(len(positions), -1)[:, :dim].astype(np.float32)
