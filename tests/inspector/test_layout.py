"""The map of anchors: every vector a place of its own, like ones together, always the same."""

import numpy as np
import pytest

from ade.inspector import layout
from ade.inspector.layout import flattened


def clusters(groups: int, each: int, dim: int = 32) -> np.ndarray:
    """Groups of vectors that point about the same way, group after group."""
    generator = np.random.default_rng(3)
    centres = generator.standard_normal((groups, dim))
    return np.repeat(centres, each, 0) + 0.3 * generator.standard_normal((groups * each, dim))


def check(places: np.ndarray, count: int) -> None:
    assert places.shape == (count, 2)
    assert np.isfinite(places).all()
    assert places.min() >= 0
    assert places.max() <= 1
    assert len({tuple(place) for place in places.round(5).tolist()}) == count


@pytest.mark.parametrize("count", [1, 2, 3, 4, 40])
def test_any_number_of_vectors_has_places(count):
    vectors = clusters(8, 5)[:count]
    check(flattened(vectors), count)
    assert np.array_equal(flattened(vectors), flattened(vectors.copy()))


@pytest.mark.parametrize("vectors", [np.ones((6, 4)), np.zeros((5, 3)), np.arange(7.0)[:, None] + 1])
def test_vectors_that_are_alike_have_places_of_their_own(vectors):
    check(flattened(vectors), len(vectors))


def test_what_is_alike_lies_together():
    places = flattened(clusters(6, 15))
    check(places, 90)
    group = np.repeat(np.arange(6), 15)
    distance = np.linalg.norm(places[:, None] - places, axis=2) + np.eye(90) * 9
    nearest = distance.argsort(1)[:, :5]
    assert (group[nearest] == group[:, None]).mean() > 0.95
    assert distance.min() > 0.5 * layout.APART / 90**0.5


def test_more_than_are_laid_out_are_put_beside_the_nearest(monkeypatch):
    monkeypatch.setattr(layout, "MOST", 30)
    vectors = clusters(3, 20)[np.arange(60).reshape(3, 20).T.ravel()]  # the groups in turn
    places = flattened(vectors)
    check(places, 60)
    distance = np.linalg.norm(places[30:, None] - places[:30], axis=2)
    group = np.tile(np.arange(3), 20)
    assert (group[:30][distance.argmin(1)] == group[30:]).mean() > 0.9
