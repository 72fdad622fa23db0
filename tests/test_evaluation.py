import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from ade.classifier import Classifier
from ade.data.dataset import Dataset
from ade.errors import InputError
from ade.evaluation import compare, evaluate, spread
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
