"""Numbers in few bits come back as they were packed, whatever the width and length."""

import numpy as np
from hypothesis import given, strategies as st

from ade.packing.bits import pack_bits, pack_rows, rows_stored, stream_bytes, unpack_bits, unpack_rows


@given(width=st.integers(1, 40), count=st.integers(0, 70), seed=st.integers(0, 9))
def test_streams_of_every_width_come_back(width, count, seed):
    values = np.random.default_rng(seed).integers(0, 2**width, count)
    stream = pack_bits(values, width)
    assert (len(stream), stream.dtype) == (stream_bytes(count, width), np.uint8)
    assert stream_bytes(count, width) == -(-count * width // 8)
    assert np.array_equal(unpack_bits(stream, width, count), values)
    spelled = "".join(f"{value:0{width}b}"[::-1] for value in values)  # lowest bit first
    assert np.unpackbits(stream, bitorder="little")[: count * width].tolist() == [int(bit) for bit in spelled]


@given(bits=st.sampled_from([4, 8, 16]), count=st.integers(0, 9), dim=st.integers(1, 9), seed=st.integers(0, 9))
def test_rows_come_back_but_for_rounding(bits, count, dim, seed):
    draw = np.random.default_rng(seed)
    rows = (draw.standard_normal((count, dim)) * 10.0 ** draw.integers(-3, 3, (count, 1))).astype(np.float32)
    rows[draw.random(count) < 0.2] = 0
    packed, scales = pack_rows(rows, bits)
    (kind, shape), (scale_kind, scale_shape) = rows_stored(count, dim, bits)
    assert (packed.dtype, packed.shape, scales.dtype, scales.shape) == (kind, shape, scale_kind, scale_shape)
    assert packed.nbytes == count * -(-dim * bits // 8)

    found = unpack_rows(packed, scales, dim)
    assert (found.dtype, found.shape) == (np.float32, rows.shape)
    largest = np.abs(rows).max(1, initial=0, keepdims=True)
    if bits == 16:
        np.testing.assert_allclose(found, rows, rtol=1e-3, atol=1e-7)
        return
    levels = 2 ** (bits - 1) - 1
    assert (np.abs(found - rows) <= largest * (0.501 / levels + 1e-3) + 1e-6).all()
    near = (largest[:, 0] > 1e-3) & (levels * 2e-6 < largest[:, 0])  # whose scale is no tiny number
    np.testing.assert_allclose(np.abs(found).max(1, initial=0)[near], largest[near, 0], rtol=2e-3)
    again, again_scales = pack_rows(found, bits)
    assert np.array_equal(again[near], packed[near])
    assert np.array_equal(again_scales[near], scales[near])
