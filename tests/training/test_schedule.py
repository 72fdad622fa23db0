"""A run fitted to its data, in numbers: steps, the learning rate step by step, what each class counts."""

from dataclasses import replace

import numpy as np
import pytest

from ade.data.dataset import Dataset
from ade.data.tags import TaggedDataset
from ade.errors import InputError
from ade.settings import PAPER, PRESETS, STRONG
from ade.training.schedule import class_weights, fit_to_data, learning_rate, steps_of, validation_split

BALANCED = replace(STRONG, class_weights="balanced")


def of_size(rows: int, classes: int, labelled: int | None = None) -> Dataset:
    """Rows of a data set; with `labelled`, soft targets, and only so many of the rows labelled."""
    targets = None if labelled is None else np.full((rows, classes), 1 / classes, np.float32)
    return Dataset(["x"] * rows, np.arange(rows) % classes, tuple(map(str, range(classes))), targets, labelled=labelled)


def fitted(data: Dataset, **changes):
    return fit_to_data(replace(STRONG, **changes), data, mean_length=40)


def test_presets_are_the_papers_and_ours():
    assert (PAPER.learning_rate, PAPER.batch_size, PAPER.warmup_steps, PAPER.epochs) == (2e-5, 32, 500, 8)
    assert (PAPER.train_anchors, PAPER.train_weights) == (True, False)
    assert set(PRESETS) == {"paper", "strong"}
    assert fit_to_data(PAPER, of_size(100, 16), mean_length=20) == PAPER


def test_settings_fit_themselves_to_the_data():
    settings = fit_to_data(STRONG, of_size(30_000, 16), mean_length=20)
    assert settings.learning_rate == pytest.approx(4**0.8 * STRONG.learning_rate)
    assert fitted(of_size(30_000, 1000)).learning_rate == pytest.approx(5 * STRONG.learning_rate)
    assert settings.token_dropout == pytest.approx(STRONG.token_dropout / 2)
    assert settings.dropout == STRONG.dropout
    assert settings.steps == 8 * 30_000 / 64
    assert fitted(of_size(32, 4)).dropout == 0.4
    assert STRONG.dropout < fitted(of_size(5_000, 4)).dropout <= 0.4
    assert fitted(of_size(5_000, 77)).steps > 2000


@pytest.mark.parametrize(
    ("rows", "classes", "steps"),
    [
        (32, 2, 200), (32, 4, 200), (800, 6, 200), (2_000, 2, 500), (4_000, 6, 1000), (7_999, 2, 1000),
        (400, 12, round(200 * 2**0.4)),
    ],
)  # fmt: skip
def test_few_rows_get_a_quarter_of_them_in_steps_more_for_more_than_six_classes(rows, classes, steps):
    assert fitted(of_size(rows, classes)).steps == steps


@pytest.mark.parametrize("epochs", [7.0, 8.0, 9.0])
def test_epochs_that_were_asked_for_stand(epochs):
    """Whatever their number: 8, which the preset takes, is not another way to leave them out."""
    for rows in (of_size(64, 4), of_size(64, 4, labelled=64)):
        settings = fitted(rows, epochs=epochs)
        assert settings.steps == 0
        assert steps_of(settings, len(rows)) == epochs
    assert steps_of(STRONG, 6_400) == 800
    assert steps_of(replace(STRONG, epochs=0.01), 64) == 1
    assert fitted(of_size(32, 4), steps=7).steps == 7


def test_rows_with_soft_targets_get_as_many_steps_and_less_noise():
    for labelled in (32, 5_000, 30_000):
        plain, soft = fitted(of_size(labelled, 4)), fitted(of_size(labelled, 4, labelled))
        assert soft.steps == plain.steps
        assert fitted(of_size(2 * labelled, 4, labelled)).steps == plain.steps
        assert (soft.dropout, soft.token_dropout) == (STRONG.dropout / 2, STRONG.token_dropout / 2)


def test_many_variants_get_a_quarter_of_the_passes():
    variants = of_size(320_000, 4, labelled=16_000)
    assert fitted(variants).steps == 2 * 320_000 / 64
    part = variants.take(np.arange(8_000, 168_000))
    assert (part.labelled, len(part)) == (8_000, 160_000)
    assert fitted(part).steps == 2 * 160_000 / 64


def test_the_learning_rate_rises_then_falls_to_zero():
    def rates(steps: int, warmup: int) -> list[float]:
        settings = replace(STRONG, warmup_steps=warmup)
        return [learning_rate(step, steps, settings) / settings.learning_rate for step in range(steps)]

    assert rates(10, 0) == pytest.approx([1.0, 1.0, *(i / 9 for i in range(8, 0, -1))])
    assert rates(1, 0) == [1.0]
    warm = rates(100, 10)
    assert warm[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert warm[9:] == sorted(warm[9:], reverse=True)
    assert 0 < warm[-1] < 0.02
    assert np.argmax(rates(100, 500)) == 9  # warm-up is never more than a tenth of the run


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
    assert class_weights(Dataset(["x"] * 5000, extreme, ("a", "b")), BALANCED) == (1e3, 1e-3)
    assert class_weights(data, STRONG) is None
    with pytest.raises(InputError, match="numbers have none"):
        class_weights(Dataset(["x"] * 2, np.array([0.5, 1.0]), ("value",)), BALANCED)


def test_a_twentieth_is_split_off_but_no_more_than_two_thousand_rows():
    assert [len(validation_split(of_size(rows, 2), 0)[1]) for rows in (400, 40_000, 100_000)] == [20, 2000, 2000]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"learning_rate": 0.0}, "learning_rate must be at least 1e-09"),
        ({"dropout": 1.0}, "dropout must be between 0 and 0.99"),
        ({"epochs": -1.0}, "epochs must be at least 0.001"),
        ({"class_weights": "some"}, "class_weights must be one of none, balanced, not some"),
    ],
)
def test_impossible_settings(changes, message):
    with pytest.raises(InputError, match=message):
        replace(STRONG, **changes)
