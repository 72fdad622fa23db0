"""Ascending keys come back as they were, idf values on their grid; damage is noticed."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ade.errors import InputError
from ade.lexicon import key_end
from ade.packing.keys import KeySizes, pack_keys, unpack_keys


@given(
    keys=st.sets(st.integers(0, key_end(13) - 1), max_size=60)
    | st.sets(st.integers(0, key_end(128_100) - 1), max_size=20),
    seed=st.integers(0, 9),
)
def test_keys_come_back(keys, seed):
    end = key_end(13 if max(keys, default=0) < key_end(13) else 128_100)
    ascending = np.array(sorted(keys), np.int64)
    idf = np.random.default_rng(seed).uniform(1, 9, len(keys)).astype(np.float32)
    arrays = pack_keys(ascending, idf, end)
    found, approximate = unpack_keys(KeySizes(len(keys), end), arrays)
    assert np.array_equal(found, ascending)
    assert approximate.dtype == np.float32
    np.testing.assert_allclose(approximate, idf, atol=(idf.max(initial=1) - idf.min(initial=1)) / 15 / 2 + 1e-5)
    if len(keys):
        bits = 8 * sum(arrays[name].nbytes for name in ("keys_low", "keys_high"))
        assert bits <= len(keys) * (2 + np.log2(end / len(keys)) + 1) + 16  # what Elias-Fano promises


def test_the_last_possible_key_and_equal_idf_come_back():
    for end, keys in ((20, [19]), (20, list(range(20))), (1 << 40, [0, (1 << 40) - 1])):
        found, idf = unpack_keys(KeySizes(len(keys), end), pack_keys(np.array(keys), np.full(len(keys), 2.5), end))
        assert found.tolist() == keys
        np.testing.assert_allclose(idf, 2.5)


def test_damage_is_noticed():
    keys = np.array([1, 5, 6, 190])
    arrays = pack_keys(keys, np.array([1.0, 2, 3, 4]), 200)
    sizes = KeySizes(4, 200)
    for name in arrays:
        with pytest.raises(InputError, match=f"'{name}' should be"):
            unpack_keys(sizes, {**arrays, name: arrays[name][:-1]})
    with pytest.raises(InputError, match="do not add up"):
        unpack_keys(sizes, {**arrays, "keys_high": arrays["keys_high"] | np.uint8(1 << 6)})
    low = pack_keys(np.array([1, 6, 7, 190]), np.ones(4), 200)["keys_low"]
    with pytest.raises(InputError, match="not in order"):
        unpack_keys(sizes, {**arrays, "keys_low": low ^ np.uint8(2)})
    with pytest.raises(InputError, match="not in order"):  # a key that is too large
        unpack_keys(KeySizes(4, 190), {**pack_keys(keys, np.ones(4), 191)})
