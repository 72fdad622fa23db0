"""Packing a codebook loses nothing but what its bits cannot hold, whatever the widths and sizes; damage is noticed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ade.errors import InputError
from ade.packing.format import SCALE_STEPS, WEIGHT_LEVELS, Packing, Pairs, layout_bytes, pack, unpack


def ragged(counts: list[int], anchors: int, dim: int = 6, own_8: int = 0, own_4: int = 0) -> Pairs:
    """Random pairs; the tokens in the middle have rows of their own, in 8 and in 4 bits by turns."""
    draw = np.random.default_rng(0)
    middle, own = len(counts) // 2, own_8 + own_4
    counts = np.array([*counts[:middle], *[1] * own, *counts[middle:]])
    indices, weights = draw.integers(0, anchors, counts.sum()), draw.normal(size=counts.sum()).astype(np.float32)
    start = counts[:middle].sum()
    kinds = np.array([8] * own_8 + [4] * own_4)[draw.permutation(own)]
    for bits, first in ((8, anchors), (4, anchors + own_8)):
        indices[start + np.flatnonzero(kinds == bits)] = first + np.arange((kinds == bits).sum())
    weights[start : start + own] = np.abs(weights[start : start + own])
    return Pairs(draw.normal(size=(anchors + own, dim)).astype(np.float32), indices, weights, counts)


SMALL = ragged([3, 1, 8, 2] * 20, 37, 12, 2, 3)
HOW = Packing(shared=37, fine=2)


@given(
    counts=st.lists(st.integers(1, 64), min_size=1, max_size=80),
    anchors=st.sampled_from([1, 2, 3, 500, 512, 513, 65_536]),
    own_8=st.integers(0, 3),
    own_4=st.integers(0, 3),
    dim=st.integers(1, 7),
)
def test_pairs_come_back(counts, anchors, own_8, own_4, dim):
    pairs = ragged(counts, anchors, dim, own_8, own_4)
    sizes, arrays = pack(pairs, Packing(anchors, own_8))
    assert sizes.nbytes == layout_bytes(sizes.arrays()) == sum(array.nbytes for array in arrays.values())
    assert (sizes.vocabulary, sizes.dim, sizes.most) == (len(pairs.counts), dim, max(counts))
    assert (sizes.anchors, sizes.own_8, sizes.own_4, sizes.pairs) == (anchors, own_8, own_4, sum(counts))
    assert sizes.packing == Packing(anchors, own_8)

    found = unpack(sizes, arrays)
    assert [array.dtype for array in found] == [np.float32, np.int32, np.float32, np.int32]
    assert np.array_equal(found.indices, pairs.indices)
    assert np.array_equal(found.counts, pairs.counts)
    token, starts = np.repeat(np.arange(len(pairs.counts)), pairs.counts), np.cumsum(pairs.counts) - pairs.counts
    largest = np.maximum.reduceat(np.abs(pairs.weights), starts)[token]
    grid = (arrays["scale_range"][1] / arrays["scale_range"][0]) ** (0.5 / SCALE_STEPS) - 1  # half a step
    allowed = largest * (0.5 / WEIGHT_LEVELS + 1.01 * grid) + 1e-4 * largest.max()
    assert (np.abs(found.weights - pairs.weights) <= allowed).all()

    shared, fine = anchors, anchors + own_8
    for part, levels in ((slice(shared), 127), (slice(shared, fine), 127), (slice(fine, None), 7)):
        exact = pairs.anchors[part]
        allowed = np.abs(exact).max(1, keepdims=True, initial=0) * (0.501 / levels + 1e-3) + 5e-6  # tiny float16 scales
        assert (np.abs(found.anchors[part] - exact) <= allowed).all()


def test_packing_what_was_packed_changes_nothing():
    sizes, arrays = pack(SMALL, HOW)
    again_sizes, again = pack(unpack(sizes, arrays), HOW)
    assert again_sizes == sizes
    for name, array in arrays.items():
        assert np.array_equal(again[name], array), name


@pytest.mark.parametrize("name", list(pack(SMALL, HOW)[1]))
def test_an_array_cut_short_of_another_type_or_missing_is_refused(name):
    sizes, arrays = pack(SMALL, HOW)
    for wrong in (arrays[name][:-1], arrays[name].astype(np.int32), None):
        with pytest.raises(InputError, match=f"'{name}' should be"):
            unpack(sizes, {key: array for key, array in {**arrays, name: wrong}.items() if array is not None})


def test_damage_is_noticed():
    sizes, arrays = pack(SMALL, HOW)
    codes = arrays["codes"].copy()
    codes[5] ^= 255
    with pytest.raises(InputError, match="do not add up"):
        unpack(sizes, {**arrays, "codes": codes})
    with pytest.raises(InputError, match="outside the anchors"):
        unpack(sizes, {**arrays, "pairs": np.full_like(arrays["pairs"], 255)})


@pytest.mark.parametrize("name", ["most", "pairs", "own_8", "own_4", "vocabulary", "dim", "anchors"])
def test_sizes_that_lie_are_refused(name):
    sizes, arrays = pack(SMALL, HOW)
    with pytest.raises(InputError):
        unpack(replace(sizes, **{name: 15 if name == "most" else getattr(sizes, name) + 1}), arrays)


def test_sizes_no_packed_codebook_has_are_refused():
    sizes = pack(SMALL, HOW)[0]
    for lie in ({"anchors": 0}, {"dim": -1}, {"pairs": 1.0}, {"own_8": True}):
        with pytest.raises(InputError, match="are not valid"):
            replace(sizes, **lie)
