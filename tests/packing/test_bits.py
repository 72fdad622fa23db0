"""Streams of bits come back as they were packed, whatever the width and length."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ade.packing import bits


@given(width=st.integers(1, 25), count=st.integers(0, 70), seed=st.integers(0, 9))
def test_every_width_and_odd_sizes_come_back(width, count, seed):
    values = np.random.default_rng(seed).integers(0, 2**width, count)
    stream = bits.pack_bits(values, width)
    assert len(stream) == -(-count * width // 8) + bits.WORD_BYTES
    places = np.random.default_rng(seed).permutation(count)
    assert np.array_equal(bits.read_bits(stream, width, places), values[places])
    found = bits.read_bits(torch.from_numpy(stream), width, torch.from_numpy(places))
    assert np.array_equal(found.numpy(), values[places])


def test_streams_longer_than_a_part_come_back():
    values = np.random.default_rng(0).integers(0, 2**13, (1 << 20) + 77)
    places = np.array([0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 76])
    assert np.array_equal(bits.read_bits(bits.pack_bits(values, 13), 13, places), values[places])
