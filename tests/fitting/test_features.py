"""Convex fits: their gradients against torch's, their minimum against scikit-learn's, sums against a loop."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from torch.nn import functional as F

from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.fitting.features import Dense, Ngrams, fit, segment_sums
from ade.fitting.objective import Objective

PROBLEMS = pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])


def objective(problem: str, rows: int, labels: int, weighted: bool = False) -> Objective:
    draw = np.random.default_rng(1)
    given = {
        SINGLE: draw.integers(0, labels, rows),
        MULTI: draw.random((rows, labels)) < 0.4,
        REGRESSION: draw.standard_normal(rows),
    }[problem]
    class_weights = tuple(draw.uniform(0.5, 3, labels)) if weighted and problem != REGRESSION else None
    return Objective.of(given, problem, labels, class_weights, draw.uniform(0.5, 2, rows) if weighted else None)


def ngrams(rows: int, entries: int) -> Ngrams:
    """Entries of texts, one of which has none."""
    draw = np.random.default_rng(2)
    of_text = [np.unique(draw.integers(0, entries, draw.integers(1, 9))) for _ in range(rows - 1)] + [np.empty(0, int)]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in of_text])])
    return Ngrams(draw.uniform(1, 8, entries).astype(np.float32), np.concatenate(of_text).astype(int), starts)


def as_matrix(features: Ngrams) -> np.ndarray:
    """The definition: the idf of a text's entries as a row of unit length."""
    matrix = np.zeros((len(features), features.width))
    for row, (start, end) in enumerate(zip(features.starts[:-1], features.starts[1:], strict=True)):
        own = features.entry[start:end]
        matrix[row, own] = features.idf[own] / max(1e-12, np.linalg.norm(features.idf[own]))
    return matrix


@PROBLEMS
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradient_are_those_of_torch(problem, weighted):
    labels = 1 if problem == REGRESSION else 4
    judge = objective(problem, 30, labels, weighted)
    scores = torch.from_numpy(np.random.default_rng(3).standard_normal((30, labels)) * 2).requires_grad_()
    targets, weights = (torch.from_numpy(each).double() for each in (judge.targets, judge.weights))
    if problem == SINGLE:
        each = F.cross_entropy(scores, targets, reduction="none")[:, None]
    elif problem == MULTI:
        each = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    else:
        each = (scores - targets) ** 2 / 2
    loss = (each * weights).sum() / 30
    loss.backward()
    found, gradient = judge.loss_and_gradient(scores.detach().numpy())
    assert found == pytest.approx(loss.item(), rel=1e-6)
    np.testing.assert_allclose(gradient, scores.grad.numpy(), atol=1e-7)
    np.testing.assert_allclose(judge.losses(scores.detach().numpy()), each.sum(1).detach().numpy(), rtol=1e-5)


@given(st.integers(1, 40), st.integers(1, 12), st.sampled_from([1, 3, 20]))
def test_sums_of_segments_are_those_of_a_loop(rows, most, columns):
    draw = np.random.default_rng(rows * most)
    values = draw.standard_normal((15, columns)).astype(np.float32)
    counts = draw.integers(0, most + 1, rows)
    starts = np.concatenate([[0], np.cumsum(counts)])
    index = draw.integers(0, 15, starts[-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ade.fitting.features.CHUNK", 7)
        found = segment_sums(values, index, starts)
    expected = [values[index[a:b]].sum(0) for a, b in pairwise(starts)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_ngrams_are_a_sparse_matrix():
    features, draw = ngrams(25, 30), np.random.default_rng(0)
    matrix = as_matrix(features)
    weights, of_scores = draw.standard_normal((31, 3)), draw.standard_normal((25, 3))
    np.testing.assert_allclose(features.scores(weights), matrix @ weights[:-1] + weights[-1], atol=1e-5)
    expected = np.vstack([matrix.T @ of_scores, of_scores.sum(0)])
    np.testing.assert_allclose(features.gradient(of_scores), expected, atol=1e-5)
    rows, entries = np.array([3, 24, 0]), np.array([1, 4, 5, 20, 29])
    np.testing.assert_allclose(as_matrix(features.take(rows)), matrix[rows], atol=1e-6)
    unscaled = matrix * np.linalg.norm(matrix, axis=1, keepdims=True)
    few = as_matrix(features.only(entries))
    expected = unscaled[:, entries] / np.maximum(np.linalg.norm(unscaled[:, entries], axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(few, expected, atol=1e-5)


@PROBLEMS
@pytest.mark.parametrize("make", ["dense", "ngrams"])
def test_a_fit_is_the_minimum_that_scikit_learn_finds(problem, make):
    rows, labels, strength = 200, 1 if problem == REGRESSION else 3, 5.0
    sparse = ngrams(rows, 12)
    matrix = as_matrix(sparse).astype(np.float32)
    features, judge = sparse if make == "ngrams" else Dense(matrix), objective(problem, rows, labels)
    weights = fit(features, judge, strength, None, 60)
    if problem == REGRESSION:
        other = Ridge(1 / strength).fit(matrix, judge.targets[:, 0])
        expected = other.predict(matrix)[:, None]
    elif problem == MULTI:
        fits = [LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(matrix, each) for each in judge.targets.T]
        expected = np.stack([each.decision_function(matrix) for each in fits], 1)
    else:
        other = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(matrix, judge.targets.argmax(1))
        expected = other.decision_function(matrix)
    found = features.scores(weights)
    if problem == SINGLE:
        found = found - found.mean(1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=0.02)


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_the_temperature_is_the_best(scale):
    judge = objective(SINGLE, 400, 3)
    scores = scale * (judge.targets + np.random.default_rng(0).standard_normal((400, 3)))
    least = min(judge.losses(scores / each).mean() for each in np.geomspace(1 / 32, 32, 300))
    assert judge.calibrated_loss(scores) <= least * 1.001


@pytest.mark.parametrize("problem", [SINGLE, MULTI])
def test_few_rows_that_are_all_right_make_no_certainty(problem):
    for rows in (10, 1000):
        judge = objective(problem, rows, 3)
        scores = 10 * (judge.targets - 0.5)
        sharp = scores / judge.temperature(scores)
        right = 1 / (1 + np.exp(-np.abs(sharp))) if problem == MULTI else np.exp(sharp - sharp.max(1, keepdims=True))
        doubt = 1 - right.mean() if problem == MULTI else 1 - (1 / right.sum(1)).mean()
        assert 0.2 / rows < doubt < 1 / rows
