"""The map of anchors: every vector has a point of its own, similar ones lie together, the result never varies."""

import sys

import numpy as np
import pytest

from ade.inspector import layout
from ade.inspector.layout import map_vectors


def clusters(groups: int, each: int, dim: int = 32) -> np.ndarray:
    """Groups of vectors that point about the same way, group after group."""
    generator = np.random.default_rng(3)
    centres = generator.standard_normal((groups, dim))
    return np.repeat(centres, each, 0) + 0.3 * generator.standard_normal((groups * each, dim))


def check(points: np.ndarray, count: int) -> None:
    assert points.shape == (count, 2)
    assert np.isfinite(points).all()
    assert points.min(initial=0) >= 0
    assert points.max(initial=1) <= 1
    assert len({tuple(point) for point in points.round(5).tolist()}) == count


@pytest.fixture(params=["t-SNE", "principal components"])
def method(request, monkeypatch):
    """With scikit-learn and without."""
    if request.param == "principal components":
        monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    return request.param


def test_any_number_of_vectors_equal_or_not_has_points(method):
    some = [clusters(8, 5)[:count] for count in (0, 1, 2, 3, 4, 5, 40)]
    for vectors in (*some, np.ones((6, 4)), np.zeros((5, 3)), np.arange(7.0)[:, None] + 1, np.ones((40, 8))):
        points = map_vectors(vectors)
        check(points, len(vectors))
        assert np.array_equal(map_vectors(vectors.copy()), points)


def test_similar_vectors_lie_together(method):
    points, group = map_vectors(clusters(6, 15)), np.repeat(np.arange(6), 15)
    check(points, 90)
    distance = np.linalg.norm(points[:, None] - points, axis=2) + np.eye(90) * 9
    nearest = distance.argsort(1)[:, :5]
    assert (group[nearest] == group[:, None]).mean() > (0.95 if method == "t-SNE" else 0.7)


def test_more_than_tsne_maps_lie_around_the_most_similar(monkeypatch):
    order = np.random.default_rng(0).permutation(90)
    vectors = clusters(6, 15)[order]
    monkeypatch.setattr(layout, "MAX_TSNE", 60)
    points = map_vectors(vectors)
    check(points, 90)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similar = (unit[60:] @ unit[:60].T).argmax(1)
    assert np.linalg.norm(points[60:] - points[similar], axis=1).max() < 0.1
