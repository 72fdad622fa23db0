"""A run fitted to its data, in numbers: steps, the learning rate step by step, what each class counts."""

from dataclasses import replace

import numpy as np
import pytest

from ade.data.conll import TaggedDataset
from ade.data.dataset import Dataset
from ade.errors import InputError
from ade.settings import STRONG
from ade.training.schedule import class_weights, fit_to_data, held_back, learning_rate, steps_of

BALANCED = replace(STRONG, class_weights="balanced")


def of_size(rows: int, classes: int) -> Dataset:
    return Dataset(["x"] * rows, np.arange(rows) % classes, tuple(map(str, range(classes))))


@pytest.mark.parametrize(
    ("rows", "classes", "steps"),
    [(32, 2, 200), (800, 6, 200), (2_000, 2, 500), (4_000, 6, 1000), (7_999, 2, 1000), (400, 12, round(200 * 2**0.4))],
)
def test_few_rows_get_a_quarter_of_them_in_steps_more_for_more_than_six_classes(rows, classes, steps):
    assert fit_to_data(STRONG, of_size(rows, classes), mean_length=40).steps == steps


def test_there_is_at_least_one_step():
    assert steps_of(replace(STRONG, epochs=0.01), 64) == 1
    assert steps_of(replace(STRONG, epochs=2.0, batch_size=64), 320) == 10


def test_without_warm_up_the_rate_falls_from_its_height_in_even_steps_to_almost_zero():
    settings = replace(STRONG, warmup_steps=0)
    rates = [learning_rate(step, 10, settings) / settings.learning_rate for step in range(10)]
    assert rates == pytest.approx([1.0, 1.0, *(i / 9 for i in range(8, 0, -1))])
    assert learning_rate(0, 1, settings) == settings.learning_rate


def test_warm_up_is_never_more_than_a_tenth_of_the_run():
    settings = replace(STRONG, warmup_steps=500)
    rates = [learning_rate(step, 100, settings) for step in range(100)]
    assert rates.index(max(rates)) == 9


def test_classes_count_by_how_rare_they_are_and_one_without_rows_does_no_harm():
    data = Dataset(["x"] * 8, np.array([0, 0, 0, 0, 0, 0, 0, 2]), ("a", "b", "c"))
    assert class_weights(data, BALANCED) == pytest.approx([8 / 14, 4.0, 4.0])
    tagged = TaggedDataset([("x", "y"), ("z",)], [np.array([0, 0]), np.array([1])], ("O", "B"))
    assert class_weights(tagged, BALANCED) == pytest.approx([3 / 4, 3 / 2])
    marks = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=bool)
    several = class_weights(Dataset(["x"] * 4, marks, ("a", "b", "c")), BALANCED)
    assert several == pytest.approx([1 / 3, 3.0, 4.0])
    extreme = np.zeros((5000, 2), dtype=bool)
    extreme[0, 0], extreme[:, 1] = True, True
    assert class_weights(Dataset(["x"] * 5000, extreme, ("a", "b")), BALANCED) == [1e3, 1e-3]
    assert class_weights(data, STRONG) is None
    with pytest.raises(InputError, match="numbers have none"):
        class_weights(Dataset(["x"] * 2, np.array([0.5, 1.0]), ("value",)), BALANCED)


def test_a_twentieth_is_held_back_but_no_more_than_two_thousand_rows():
    assert [len(held_back(of_size(rows, 2), 0)[1]) for rows in (400, 40_000, 100_000)] == [20, 2000, 2000]
