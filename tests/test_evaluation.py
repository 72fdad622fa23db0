"""Metrics are those of scikit-learn and scipy; labels are matched by name; many labels need no matrix."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats
from sklearn import metrics

from ade import evaluation
from ade.data.dataset import Dataset
from ade.errors import InputError
from ade.evaluation import calibration, compare, compare_multi_label, compare_numbers, compare_tags, evaluate, spans
from ade.trained_model import Classifier
from tests.models import random_model


@given(rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_metrics_of_one_label_are_those_of_scikit_learn(rows):
    truth, predicted = np.array(rows).T
    own = compare(truth, predicted, "abcde")
    seen = sorted(set(truth) | set(predicted))
    options = {"average": "macro", "labels": seen, "zero_division": 0}
    assert own.accuracy == pytest.approx(metrics.accuracy_score(truth, predicted))
    assert own.macro_f1 == pytest.approx(metrics.f1_score(truth, predicted, **options))
    assert own.precision == pytest.approx(metrics.precision_score(truth, predicted, **options))
    assert own.recall == pytest.approx(metrics.recall_score(truth, predicted, **options))
    matrix = metrics.confusion_matrix(truth, predicted, labels=range(5))
    assert np.array_equal(own.confusion, matrix)
    assert own.counts.tolist() == [[i, j, matrix[i, j]] for i, j in zip(*np.nonzero(matrix), strict=True)]
    expected = metrics.precision_recall_fscore_support(truth, predicted, labels=range(5), zero_division=0)
    np.testing.assert_allclose([each[1:] for each in own.classes], np.transpose(expected))
    confused = own.confused(1000)
    assert [each.n for each in confused] == sorted((each.n for each in confused), reverse=True)
    assert sum(each.n for each in confused) == (truth != predicted).sum()
    for each in confused:
        true = "abcde".index(each.label)
        assert (each.n, each.of) == (matrix[true, "abcde".index(each.predicted)], matrix[true].sum())


@given(rows=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=20))
def test_metrics_of_several_labels_are_those_of_scikit_learn(rows):
    marks = np.array(rows)
    truth, predicted = marks[:, :3], marks[:, 3:]
    own = compare_multi_label(truth, predicted, "abc")
    seen = np.flatnonzero((truth | predicted).any(0))
    for name, average in (("micro_f1", "micro"), ("macro_f1", "macro")):
        expected = metrics.f1_score(truth, predicted, average=average, labels=seen, zero_division=0) if len(seen) else 0
        assert getattr(own, name) == pytest.approx(expected)
    options = {"average": "micro", "zero_division": 0}
    assert own.precision == pytest.approx(metrics.precision_score(truth, predicted, **options))
    assert own.recall == pytest.approx(metrics.recall_score(truth, predicted, **options))
    assert own.exact == pytest.approx(metrics.accuracy_score(truth, predicted))
    assert own.n == len(rows)
    named = compare_multi_label(truth, predicted, ["a", "b", "c"])
    expected = metrics.precision_recall_fscore_support(truth, predicted, zero_division=0)
    np.testing.assert_allclose([each[1:] for each in named.classes], np.transpose(expected))


@given(rows=st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=30))
def test_metrics_of_numbers_are_those_of_scikit_learn_and_scipy(rows):
    truth, predicted = np.array(rows, dtype=np.float64).T
    own = compare_numbers(truth, predicted)
    assert own.mean_error == pytest.approx(metrics.mean_absolute_error(truth, predicted))
    assert own.root_mean_square_error == pytest.approx(metrics.root_mean_squared_error(truth, predicted))
    constant = np.ptp(truth) == 0
    assert own.r2 == pytest.approx(0.0 if constant else metrics.r2_score(truth, predicted))
    if constant or np.ptp(predicted) == 0:
        assert (own.pearson, own.spearman) == (None, None)
    else:
        assert own.pearson == pytest.approx(stats.pearsonr(truth, predicted).statistic)
        assert own.spearman == pytest.approx(stats.spearmanr(truth, predicted).statistic)


def test_labels_are_matched_by_name():
    classifier = Classifier(random_model())
    texts = ["w0 w1", "w3", "w2 w2 w1", "w1"]
    predicted = [each.label for each in classifier.predict(texts)]
    names = ("label 2", "label 0", "label 1")  # another order than the model's
    data = Dataset(texts, np.array([names.index(label) for label in predicted]), names)
    assert evaluate(classifier, data).accuracy == evaluate(classifier, texts, predicted).accuracy == 1.0
    for rows, message in (
        (Dataset(["w0"], np.array([0]), ("z",)), "not trained on: z"),
        (Dataset([], np.array([], dtype=np.int64), ("label 0",)), "no rows"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate(classifier, rows)


def test_many_labels_need_no_matrix():
    """Metrics of 50,000 labels, whose dense confusion matrix would be 20 GB."""
    count, generator = 50_000, np.random.default_rng(0)
    truth = generator.integers(0, count, 3000)
    predicted = np.where(generator.random(3000) < 0.7, truth, generator.integers(0, count, 3000))
    names = [f"label {i}" for i in range(count)]
    tracemalloc.start()
    own = compare(truth, predicted, names)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100e6
    assert own.accuracy == pytest.approx(metrics.accuracy_score(truth, predicted))
    assert own.macro_f1 == pytest.approx(metrics.f1_score(truth, predicted, average="macro", zero_division=0))
    assert own.counts[:, 2].sum() == 3000


def test_scores_of_many_labels_are_not_held_all_at_once(monkeypatch):
    """Texts are evaluated some at a time, to the same metrics."""
    classifier = Classifier(random_model())
    texts = ["w0 w1", "w3", "w2 w2 w1", "w1", "w0", ""] * 3
    data = Dataset(texts, np.arange(18) % 3, ("label 0", "label 1", "label 2"))
    whole, seen, scores = evaluate(classifier, data), [], classifier.scores
    monkeypatch.setattr(evaluation, "MAX_SCORES", 12)
    monkeypatch.setattr(classifier, "scores", lambda some: seen.append(len(some)) or scores(some))
    again = evaluate(classifier, data)
    assert again.as_dict() == whole.as_dict()
    np.testing.assert_array_equal(again.predicted, whole.predicted)
    assert seen == [4, 4, 4, 4, 2]


def test_calibration_groups_by_probability():
    probability, right = np.array([0.05, 0.31, 0.33, 0.95, 1.0]), np.array([False, True, False, True, True])
    bins = calibration(probability, right)
    assert [(round(p, 3), a, n) for p, a, n in bins] == [(0.05, 0.0, 1), (0.32, 0.5, 2), (0.975, 1.0, 2)]
    result = replace(compare(np.zeros(5, int), np.zeros(5, int), "a"), bins=bins)
    assert result.calibration_error == pytest.approx((0.05 + 2 * 0.18 + 2 * 0.025) / 5)


def test_spans():
    def of(*tags: str) -> list[tuple[int, int, str]]:
        return list(spans(tags))

    assert of("B-x", "I-x", "O", "B-y") == [(0, 2, "x"), (3, 4, "y")]
    assert of("I-x", "I-y", "B-y", "I-y") == [(0, 1, "x"), (1, 2, "y"), (2, 4, "y")]
    assert of("B-x", "I-x", "E-x", "S-y", "S-y") == [(0, 3, "x"), (3, 4, "y"), (4, 5, "y")]
    assert of("NOUN", "VERB", "O", "VERB") == [(0, 1, "NOUN"), (1, 2, "VERB"), (3, 4, "VERB")]
    assert of() == of("O", "O") == []
    assert of("B-a-b", "I-a-b") == [(0, 2, "a-b")]


@pytest.mark.parametrize(
    ("truth", "predicted", "expected"),  # accuracy, F1, precision, recall, words, spans
    [
        ([[0, 1, 2, 0], [2]], [[0, 1, 2, 2], [0]], (3 / 5, 1 / 2, 1 / 2, 1 / 2, 5, 2)),
        ([[2, 0]], [[2, 0]], (1, 1, 1, 1, 2, 1)),
        ([[2, 0]], [[2, 2]], (1 / 2, 0, 0, 0, 2, 1)),
        ([[2, 2]], [[2, 2]], (1, 0, 0, 0, 2, 0)),
    ],
)
def test_metrics_of_spans(truth, predicted, expected):
    metrics = compare_tags(list(map(np.array, truth)), list(map(np.array, predicted)), ("B-x", "I-x", "O"))
    assert (metrics.accuracy, metrics.f1, metrics.precision, metrics.recall, metrics.words, metrics.spans) == expected
