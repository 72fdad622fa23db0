"""Position encodings: the usual sines and cosines, of any width."""

import math

import numpy as np
import pytest

from ade.positions import sinusoidal


@pytest.mark.parametrize("dim", [1, 7, 8, 64])
def test_sines_and_cosines_of_falling_frequencies_side_by_side(dim):
    places = np.array([0, 1, 5, 499])
    encoded = sinusoidal(places, dim)
    assert encoded.dtype == np.float32
    for row, place in zip(encoded, places, strict=True):
        angles = [place / 10_000 ** (2 * (i // 2) / dim) for i in range(dim)]
        expected = [math.cos(angle) if i % 2 else math.sin(angle) for i, angle in enumerate(angles)]
        np.testing.assert_allclose(row, expected, atol=1e-6)
