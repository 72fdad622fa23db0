"""Splits of a data set: drawn at random, by the seed alone."""

import numpy as np
import pytest

from ade.data.conll import TaggedDataset
from ade.data.dataset import Dataset

ROWS = [f"row {i}" for i in range(200)]


def single() -> Dataset:
    return Dataset(ROWS, np.arange(200) % 2, ("a", "b"))


def several() -> Dataset:
    return Dataset(ROWS, np.ones((200, 2), dtype=bool), ("a", "b"))


def numbers() -> Dataset:
    return Dataset(ROWS, np.arange(200.0), ("value",))


def tagged() -> TaggedDataset:
    return TaggedDataset([(row,) for row in ROWS], [np.zeros(1, np.int64)] * 200, ("O",))


def names(data: Dataset | TaggedDataset) -> list[str]:
    return [words[0] for words in data.sentences] if isinstance(data, TaggedDataset) else list(data.texts)


@pytest.mark.parametrize("made", [single, several, numbers, tagged])
def test_rows_are_held_back_at_random_from_all_over_the_data(made):
    rest, held = made().split(0.2, seed=0)
    places = [ROWS.index(row) for row in names(held)]
    assert len(places) == 40
    assert sorted(places + [ROWS.index(row) for row in names(rest)]) == list(range(200))
    assert all(sum(start <= place < start + 50 for place in places) >= 3 for start in (0, 50, 100, 150))
    assert len(set(np.diff(places))) > 2  # nor one of every so many
    assert names(made().split(0.2, seed=0)[1]) == names(held)
    assert names(made().split(0.2, seed=1)[1]) != names(held)
