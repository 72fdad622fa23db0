"""Packing loses nothing but what its bits cannot hold, whatever the widths and sizes; damage is noticed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ade.errors import InputError
from ade.packing import format as packing
from ade.packing.format import Packing


def ragged(counts: list[int], anchors: int, dim: int = 6, fine: int = 0, coarse: int = 0, seed: int = 0) -> tuple:
    """Random pairs; the last `fine + coarse` tokens have a row of their own, in 8 and in 4 bits."""
    draw = np.random.default_rng(seed)
    counts = np.array([*counts, *[1] * (fine + coarse)])
    indices = draw.integers(0, anchors, counts.sum())
    indices[len(indices) - fine - coarse :] = anchors + np.arange(fine + coarse)
    weights = draw.normal(size=counts.sum()).astype(np.float32)
    weights[len(indices) - fine - coarse :] = np.abs(weights[len(indices) - fine - coarse :])
    table = draw.normal(size=(anchors + fine + coarse, dim)).astype(np.float32)
    return table, indices, weights, counts


@given(
    counts=st.lists(st.integers(1, 64), min_size=1, max_size=80),
    anchors=st.sampled_from([1, 2, 3, 500, 512, 513, 65_536]),
    bits=st.sampled_from([2, 3, 4, 5, 8]),
    fine=st.integers(0, 3),
    coarse=st.integers(0, 3),
    dim=st.integers(1, 7),
)
def test_pairs_come_back(counts, anchors, bits, fine, coarse, dim):
    table, indices, weights, counts = ragged(counts, anchors, dim, fine, coarse)
    shape, arrays = packing.pack(table, indices, weights, counts, Packing(bits, shared=anchors, fine=fine))
    assert shape.nbytes == sum(array.nbytes for array in arrays.values())
    starts = packing.check(shape, arrays)
    types = np.random.default_rng(1).permutation(len(counts))
    index, weight, there = packing.lookup(shape, arrays, starts, types)
    assert np.array_equal(there.sum(1), counts[types])
    ends = np.cumsum(counts)
    levels = 2 ** (bits - 1) - 1
    for row, token in enumerate(types):
        part = slice(ends[token] - counts[token], ends[token])
        assert np.array_equal(index[row][there[row]], indices[part])
        largest = np.abs(weights[part]).max()
        off = np.abs(weight[row][there[row]] - weights[part])
        grid = (arrays["scale_range"][1] / arrays["scale_range"][0]) ** (0.5 / packing.SCALE_STEPS)
        assert off.max() <= largest * (0.5 / levels + 1.01 * (grid - 1)) + 1e-6
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    same = packing.lookup(shape, tensors, torch.from_numpy(starts), torch.from_numpy(types))
    for found, expected in zip(same, (index, weight, there), strict=True):
        assert np.allclose(found.numpy(), expected, rtol=1e-5)
    rows = packing.all_anchors(shape, arrays)
    assert np.array_equal(rows, packing.all_anchors(shape, tensors).numpy())
    for part, levels in ((rows[: anchors + fine], 127), (rows[anchors + fine :], 7)):
        exact = table[: anchors + fine] if levels == 127 else table[anchors + fine :]
        assert (np.abs(part - exact) <= np.abs(exact).max(1, keepdims=True) * (0.501 / levels + 1e-3) + 1e-6).all()


def test_packing_what_was_packed_changes_nothing():
    table, indices, weights, counts = ragged([3, 1, 8, 2] * 20, 37, 12, 2, 3)
    how = Packing(4, shared=37, fine=2)
    shape, arrays = packing.pack(table, indices, weights, counts, how)
    index, weight, there = packing.lookup(shape, arrays, packing.check(shape, arrays), np.arange(len(counts)))
    again = packing.pack(packing.all_anchors(shape, arrays), index[there], weight[there], there.sum(1), how)
    assert again[0] == shape
    for name, array in arrays.items():
        assert np.array_equal(again[1][name], array) or name == "scale_range"
    assert np.allclose(again[1]["scale_range"], arrays["scale_range"], rtol=1e-6)


@pytest.mark.parametrize("name", ["pairs", "codes", "anchors", "scales"])
def test_a_stream_cut_short_is_refused(name):
    shape, arrays = packing.pack(*ragged([3, 1, 8, 2] * 20, 37), Packing(4))
    with pytest.raises(InputError, match=f"'{name}' should be"):
        packing.check(shape, {**arrays, name: arrays[name][:-1]})
    with pytest.raises(InputError, match=f"'{name}' should be"):
        packing.check(shape, {each: array for each, array in arrays.items() if each != name})


def test_damage_is_noticed():
    shape, arrays = packing.pack(*ragged([3, 1, 8, 2] * 20, 37), Packing(4))
    codes = arrays["codes"].copy()
    codes[5] ^= 255
    with pytest.raises(InputError, match="counts do not add up"):
        packing.check(shape, {**arrays, "codes": codes})
    with pytest.raises(InputError, match="outside the anchors"):
        packing.check(shape, {**arrays, "pairs": np.full_like(arrays["pairs"], 255)})


def test_shapes_that_lie_are_refused():
    shape, arrays = packing.pack(*ragged([3, 1, 8, 2] * 20, 37), Packing(4))
    for lie in ({"most": 14}, {"pairs": shape.pairs + 1}, {"whole_8": 1}, {"vocabulary": shape.vocabulary - 1}):
        with pytest.raises(InputError):
            packing.check(replace(shape, **lie), arrays)
    for lie in ({"anchors": 2**22}, {"anchors": 0}, {"dim": -1}):
        with pytest.raises(InputError, match=r"cannot be packed|are not valid"):
            replace(shape, **lie)


def test_rows_kept_whole_must_be_in_order():
    table, indices, weights, counts = ragged([2, 1], 5, fine=2)
    with pytest.raises(InputError, match="in the order of their tokens"):
        packing.pack(table, indices[[0, 1, 2, 4, 3]], weights, counts, Packing(4, shared=5, fine=2))


@pytest.mark.parametrize("settings", [{"weight_bits": 1}, {"weight_bits": 9}, {"anchor_bits": 4}, {"layer_bits": 3}])
def test_widths_nobody_can_read_are_refused(settings):
    with pytest.raises(InputError):
        Packing(**settings)
