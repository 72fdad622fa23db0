"""From scores to labels: the one rule, written out once more for single rows."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from ade.configuration import Config
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.tokens import Ragged
from ade.decision import Prediction, decide, labels_as_given, probabilities_of, tags_of_words
from ade.errors import InputError

NAMES = ("3", "10", "-1")
LABELS = (3, 10, -1)
SCORES = arrays(np.float32, (4, 3), elements=st.floats(-90, 90, width=32))


def config(problem: str, names: tuple[str, ...] = NAMES) -> Config:
    return Config(labels=names, label_type="int", problem=problem)


@given(scores=SCORES, threshold=st.none() | st.floats(0, 1))
def test_one_label_is_the_most_probable_or_none_below_a_threshold(scores, threshold):
    for row, prediction in zip(scores.tolist(), decide(scores, config(SINGLE), threshold), strict=True):
        weights = [math.exp(score - max(row)) for score in row]
        best = max(range(3), key=row.__getitem__)
        assert prediction.probability == pytest.approx(weights[best] / sum(weights), abs=1e-5)
        below = threshold is not None and prediction.probability < threshold
        assert prediction.label == (None if below else LABELS[best])


@given(scores=SCORES, threshold=st.none() | st.floats(0.01, 0.99))
def test_several_labels_are_those_that_reach_the_threshold(scores, threshold):
    for row, prediction in zip(scores.tolist(), decide(scores, config(MULTI), threshold), strict=True):
        probabilities = [1 / (1 + math.exp(-score)) for score in np.clip(row, -80, 80)]
        limit = 0.5 if threshold is None else threshold
        clear = [i for i in range(3) if abs(probabilities[i] - limit) > 1e-5]
        for i in clear:
            assert (LABELS[i] in prediction.label) == (probabilities[i] >= limit)
        for label, probability in zip(*prediction, strict=True):
            assert probability == pytest.approx(probabilities[LABELS.index(label)], abs=1e-6)
        assert [label for label in LABELS if label in prediction.label] == prediction.label  # in the model's order


@given(scores=SCORES, top_k=st.integers(1, 5), problem=st.sampled_from([SINGLE, MULTI]))
def test_the_k_most_probable_come_first_whatever_their_probability(scores, top_k, problem):
    probabilities = probabilities_of(scores, problem)
    for i, prediction in enumerate(decide(scores, config(problem), threshold=0.9, top_k=top_k)):
        assert len(prediction.label) == min(3, top_k)
        order = sorted(range(3), key=lambda j: -scores[i, j])[:top_k]  # stable: of equal ones the first
        assert prediction == Prediction([LABELS[j] for j in order], [float(probabilities[i, j]) for j in order])


def test_a_score_at_the_threshold_is_predicted_with_and_without_it():
    scores = np.array([[0.0, -1e-3, 1e-3]], np.float32)
    for threshold in (None, 0.5):
        assert decide(scores, config(MULTI), threshold)[0].label == [3, -1]
    assert decide(np.zeros((1, 2), np.float32), config(SINGLE, NAMES[:2]), 0.5)[0].label == 3


def test_numbers_have_no_probabilities():
    assert decide(np.array([[1.5], [-2.0]]), config(REGRESSION, ("5",))) == [(1.5, None), (-2.0, None)]
    with pytest.raises(InputError, match="has no probabilities; use predict"):
        probabilities_of(np.zeros((1, 1)), REGRESSION)


@pytest.mark.parametrize("problem", [SINGLE, MULTI])
def test_nothing_gives_nothing_and_huge_scores_stay_finite(problem):
    assert decide(np.empty((0, 3), np.float32), config(problem)) == []
    huge = probabilities_of(np.array([[1e30, -1e30, 0]], np.float32), problem)
    assert np.isfinite(huge).all()
    assert huge[0, :2].tolist() == pytest.approx([1, 0])


@pytest.mark.parametrize(
    ("names", "kind", "labels"),
    [
        (NAMES, "int", LABELS),
        (("true", "false"), "bool", (True, False)),
        (("0.5", "2.0"), "float", (0.5, 2.0)),
        (("1", "01"), "str", ("1", "01")),
    ],
)
def test_labels_have_the_type_in_which_they_were_given(names, kind, labels):
    restored = labels_as_given(Config(labels=names, label_type=kind, problem=SINGLE))
    assert restored == labels
    assert [type(label) for label in restored] == [type(label) for label in labels]


@pytest.mark.parametrize(("names", "outside"), [(("B", "O"), 1), (("B", "I"), 0)])
def test_a_words_tag_is_its_first_tokens_and_outside_without_one(names, outside):
    """Three tokens of the first sentence, for words 0 and 2; the second has none."""
    scores = np.array([[1, 0], [0, 9], [0, 1], [0, 5]])
    texts, words = Ragged(np.zeros(4, np.int32), np.array([0, 3, 4])), np.array([0, -1, 2, -1])
    tags = tags_of_words(scores, texts, words, [["a", "b", "c"], []], names)
    assert [each.tolist() for each in tags] == [[0, outside, 1], []]
