import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ade.data.dataset import Dataset
from ade.errors import InputError
from ade.training.schedule import DEV_ROWS, held_back

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=30)


def _data(sizes: list[int]) -> Dataset:
    """A class of each size, its rows scattered."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Dataset([str(i) for i in range(len(labels))], labels, tuple(f"c{i}" for i in range(len(sizes))))


@given(sizes=SIZES, share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_a_split_holds_back_the_share_it_says_and_leaves_every_class_a_row(sizes, share, seed):
    data = _data(sizes)
    rest, held = data.split(share, seed)
    assert sorted([*rest.texts, *held.texts]) == sorted(data.texts)
    can_go = len(data) - len(sizes)  # all but one row of every class
    assert len(held) == min(max(1, round(share * len(data))), can_go)
    assert np.bincount(rest.labels, minlength=len(sizes)).min() >= 1


@given(size=st.integers(20, 200), classes=st.integers(2, 12), share=st.floats(0.05, 0.5), seed=st.integers(0, 99))
def test_a_split_is_stratified(size, classes, share, seed):
    _, held = _data([size] * classes).split(share, seed)
    counts = np.bincount(held.labels, minlength=classes)
    assert np.abs(counts - share * size).max() <= 1.5


def test_small_classes_are_held_back_as_often_as_large_ones():
    """Fifty classes of two rows beside one of 900: neither side of the split loses the small ones."""
    data = _data([900] + [2] * 50)
    small = [(data.split(0.1, seed)[1].labels > 0).sum() for seed in range(40)]
    assert 3 < np.mean(small) < 12  # a tenth of 100 rows, a little less since every class keeps one


def test_a_split_is_random_and_follows_from_its_seed():
    data = _data([40, 40])
    held = [tuple(data.split(0.1, seed)[1].texts) for seed in range(8)]
    assert len(set(held)) == 8
    assert tuple(data.split(0.1, 3)[1].texts) == held[3]
    often = np.zeros(len(data))
    for seed in range(300):
        often[[int(text) for text in data.split(0.1, seed)[1].texts]] += 1
    assert often.min() > 10  # every row has its turn: 30 times each on average
    assert often.max() < 60


def test_rows_without_a_class_each_are_split_at_random():
    for labels in (np.linspace(0, 1, 21), np.random.default_rng(0).random((21, 3)) > 0.5):
        data = Dataset([str(i) for i in range(21)], labels, ("a", "b", "c")[: labels.ndim * 2 - 1])
        rest, held = data.split(0.1, 0)
        assert (len(rest), len(held)) == (19, 2)
        assert held.texts != data.split(0.1, 1)[1].texts
        assert len(data.split(1.0, 0)[0]) == 1


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([2] * 20, 2),
        ([10, 10], 1),
        ([2, 2], 1),
        ([2, 1], 1),
        ([30_000, 30_000], DEV_ROWS),
        ([20_000] * 2 + [2] * 15, 2000),
    ],
)
def test_what_is_held_back_for_validation(sizes, expected):
    rest, dev = held_back(_data(sizes), 0)
    assert len(dev) == expected
    assert len(rest) == sum(sizes) - expected
    assert held_back(_data(sizes), 1)[1].texts != dev.texts or len(dev) == 1


def test_nothing_can_be_held_back_where_no_class_has_two_rows():
    with pytest.raises(InputError, match="no class has two rows"):
        held_back(_data([1, 1, 1]), 0)
