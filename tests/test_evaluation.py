import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from ade import evaluation
from ade.classifier import Classifier
from ade.data.dataset import Dataset
from ade.errors import InputError
from ade.evaluation import compare, compare_multi_label, compare_numbers, compare_tags, evaluate, spread
from tests.conftest import ragged_codebook
from tests.test_paper import small_model


@given(rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_figures_are_those_of_scikit_learn(rows):
    truth, predicted = np.array(rows).T
    found = compare(truth, predicted, "abcde")
    seen = sorted(set(truth) | set(predicted))
    options = {"average": "macro", "labels": seen, "zero_division": 0}
    assert found.accuracy == pytest.approx(metrics.accuracy_score(truth, predicted))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(truth, predicted, **options))
    assert found.precision == pytest.approx(metrics.precision_score(truth, predicted, **options))
    assert found.recall == pytest.approx(metrics.recall_score(truth, predicted, **options))
    assert np.array_equal(found.confusion, metrics.confusion_matrix(truth, predicted, labels=range(5)))


def test_labels_are_matched_by_name():
    classifier = Classifier(small_model(), ragged_codebook([1, 3, 2, 4, 1, 5]).tokenizer)
    texts = ["w0 w1", "w3", "w2 w2 w1", "w1"]
    right = classifier.predict(texts)
    names = ("c", "a", "b")  # another order than the model's
    data = Dataset(texts, np.array([names.index(label) for label in right]), names)
    assert evaluate(classifier, data).accuracy == 1.0
    with pytest.raises(InputError, match="not trained on: z"):
        evaluate(classifier, Dataset(["w0"], np.array([0]), ("z",)))
    with pytest.raises(InputError, match="no rows"):
        evaluate(classifier, Dataset([], np.array([], dtype=np.int64), ("a",)))


def test_spread():
    assert spread([0.9, 0.92, 0.94]) == (pytest.approx(0.92), pytest.approx(0.02))
    assert spread([0.5]) == (0.5, 0.0)


def test_many_labels_need_no_matrix():
    """Metrics of 50,000 labels, whose dense confusion matrix would be 20 GB."""
    import tracemalloc

    count = 50_000
    generator = np.random.default_rng(0)
    truth = generator.integers(0, count, 3000)
    predicted = np.where(generator.random(3000) < 0.7, truth, generator.integers(0, count, 3000))
    names = [f"label {i}" for i in range(count)]
    tracemalloc.start()
    found = compare(truth, predicted, names)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100e6
    options = {"average": "macro", "zero_division": 0}
    assert found.accuracy == pytest.approx(metrics.accuracy_score(truth, predicted))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(truth, predicted, **options))
    assert found.counts[:, 2].sum() == 3000
    with pytest.raises(InputError, match=r"50,000 labels.*counts"):
        _ = found.confusion


@given(rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_counts_are_the_entries_of_the_matrix(rows):
    truth, predicted = np.array(rows).T
    found = compare(truth, predicted, "abcde")
    assert [tuple(entry) for entry in found.counts] == [
        (i, j, found.confusion[i, j]) for i, j in zip(*np.nonzero(found.confusion), strict=True)
    ]


def test_scores_of_many_labels_are_not_held_all_at_once(monkeypatch):
    """Texts are evaluated some at a time, to the same metrics."""
    classifier = Classifier(small_model(), ragged_codebook([1, 3, 2, 4, 1, 5]).tokenizer)
    texts = ["w0 w1", "w3", "w2 w2 w1", "w1", "w0", ""] * 3
    data = Dataset(texts, np.arange(18) % 3, ("a", "b", "c"))
    whole, seen, scores = evaluate(classifier, data), [], classifier.predict_scores
    monkeypatch.setattr(evaluation, "MAX_SCORES", 12)
    monkeypatch.setattr(classifier, "predict_scores", lambda some, first: seen.append(len(some)) or scores(some, first))
    assert evaluate(classifier, data).as_dict() == whole.as_dict()
    assert max(seen) == 4
    assert sum(seen) == 18


def test_one_span_found_is_all_of_the_precision_and_none_is_nothing():
    names = ("O", "B-X")
    right, empty = np.array([0, 1]), np.array([0, 0])
    found = compare_tags([right], [right], names)
    assert (found.accuracy, found.f1, found.precision, found.recall, found.words, found.spans) == (1, 1, 1, 1, 2, 1)
    found = compare_tags([right], [empty], names)
    assert (found.accuracy, found.f1, found.precision, found.recall) == (0.5, 0, 0, 0)
    found = compare_tags([empty], [empty], names)
    assert (found.accuracy, found.f1, found.precision, found.recall, found.spans) == (1, 0, 0, 0, 0)


@given(
    rows=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=20),
)
def test_figures_of_several_labels_are_those_of_scikit_learn(rows):
    marks = np.array(rows)
    truth, predicted = marks[:, :3], marks[:, 3:]
    found = compare_multi_label(truth, predicted)
    seen = np.flatnonzero((truth | predicted).any(0))
    for name, average in (("micro_f1", "micro"), ("macro_f1", "macro")):
        expected = metrics.f1_score(truth, predicted, average=average, labels=seen, zero_division=0) if len(seen) else 0
        assert getattr(found, name) == pytest.approx(expected)
    options = {"average": "micro", "zero_division": 0}
    assert found.precision == pytest.approx(metrics.precision_score(truth, predicted, **options))
    assert found.recall == pytest.approx(metrics.recall_score(truth, predicted, **options))
    assert found.exact == pytest.approx(metrics.accuracy_score(truth, predicted))
    assert found.n == len(rows)


@given(rows=st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=30))
def test_figures_of_numbers_are_those_of_scikit_learn_and_scipy(rows):
    truth, predicted = np.array(rows, dtype=np.float64).T
    found = compare_numbers(truth, predicted)
    assert found.mean_error == pytest.approx(metrics.mean_absolute_error(truth, predicted))
    assert found.root_mean_square_error == pytest.approx(metrics.mean_squared_error(truth, predicted) ** 0.5)
    constant = np.ptp(truth) == 0
    assert found.r2 == pytest.approx(0.0 if constant else metrics.r2_score(truth, predicted))
    if constant or np.ptp(predicted) == 0:
        assert (found.pearson, found.spearman) == (None, None)
    else:
        assert found.pearson == pytest.approx(stats.pearsonr(truth, predicted).statistic)
        assert found.spearman == pytest.approx(stats.spearmanr(truth, predicted).statistic)


def test_one_mark_given_and_right_is_all_of_precision_and_recall():
    marks = np.array([[True, False], [False, False]])
    found = compare_multi_label(marks, marks)
    assert (found.micro_f1, found.macro_f1, found.precision, found.recall, found.exact) == (1, 1, 1, 1, 1)
    empty = np.zeros_like(marks)
    found = compare_multi_label(empty, empty)
    assert (found.micro_f1, found.macro_f1, found.precision, found.recall, found.exact) == (0, 0, 0, 0, 1)
