"""What an encoder learns: rotated vectors, less what all share, and translations brought together."""

import numpy as np
import pytest

from ade.encoder import unit
from ade.training import target_space
from ade.training.target_space import target_vectors
from ade.training.translations import Lines
from tests.training.test_translations import lines_of

NONE = lines_of()


def test_rotating_keeps_cosines_and_puts_the_most_first():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(500, 6)) @ np.diag([0.1, 2, 0.1, 1, 0.1, 0.1])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    turned = target_vectors(vectors, NONE, 6).astype(np.float32)
    before = vectors.astype(np.float32)
    assert np.allclose(turned @ turned.T, before @ before.T, atol=4e-3)
    share = (turned**2).mean(0)
    assert (np.diff(share) < 1e-4).all()
    assert share[:2].sum() > 0.9
    assert np.array_equal(target_vectors(vectors, NONE, 2), target_vectors(vectors, NONE, 6)[:, :2])


def test_what_all_vectors_share_is_taken_off_first():
    generator = np.random.default_rng(0)
    own = 0.3 * generator.normal(size=(400, 8)) @ np.diag([2, 1, 1, 1, 0.1, 0.1, 0.1, 0.1])
    shared = unit(own + 2.0).astype(np.float16)
    apart = shared.astype(np.float32) - shared.astype(np.float32).mean(0)
    turned = target_vectors(shared, NONE, 8).astype(np.float32)
    assert np.allclose(turned @ turned.T, unit(apart) @ unit(apart).T, atol=1e-2)
    assert abs(turned.mean(0)).max() < 0.1

    little = unit(own + 0.1).astype(np.float16)  # too little to be taken off: cosines stay as they are
    turned = target_vectors(little, NONE, 8).astype(np.float32)
    assert np.allclose(turned @ turned.T, little.astype(np.float32) @ little.astype(np.float32).T, atol=1e-2)


def translated(lines: int, seed: int = 0, dim: int = 12) -> tuple[np.ndarray, np.ndarray, Lines]:
    """Unit vectors of pairs of texts: what both mean, in ten directions, and which language they are in, in two."""
    generator = np.random.default_rng(seed)
    meaning = np.repeat(generator.normal(size=(lines, dim)), 2, 0)
    meaning[:, :2] = 0
    language = np.zeros_like(meaning)
    language[::2, :2] = generator.normal(size=(lines, 2)) * 3
    language[1::2, :2] = generator.normal(size=(lines, 2)) * 3
    noise = 0.2 * generator.normal(size=meaning.shape)
    vectors = unit(meaning + language + noise).astype(np.float16)
    return vectors, meaning, lines_of(*([2 * n, 2 * n + 1] for n in range(lines)))


def found_by_cosine(vectors: np.ndarray) -> float:
    """How often the nearest of the other language's vectors is the translation."""
    alike = vectors[::2].astype(np.float32) @ vectors[1::2].astype(np.float32).T
    return float((alike.argmax(1) == np.arange(len(alike))).mean())


def test_directions_in_which_translations_differ_count_less(monkeypatch):
    monkeypatch.setattr(target_space, "FEWEST", 100)
    vectors, meaning, lines = translated(300)
    fresh, _, _ = translated(60, seed=1)
    made = target_vectors(np.concatenate([vectors, fresh]), lines, 12)
    assert found_by_cosine(fresh) < 0.5
    assert found_by_cosine(made[len(vectors) :]) > 0.8  # these are no lines: the map alone brings them together
    assert np.array_equal(made[0:600:2], made[1:600:2])  # texts of a line have one vector
    assert np.allclose(np.linalg.norm(made.astype(np.float32), axis=1), 1, atol=2e-3)
    cosines = unit(meaning) @ unit(meaning).T
    assert (
        np.corrcoef((made[:600].astype(np.float32) @ made[:600].astype(np.float32).T).ravel(), cosines.ravel())[0, 1]
        > 0.95
    )


def test_few_lines_bring_their_own_texts_together_and_leave_the_space():
    vectors, _, lines = translated(300)
    made = target_vectors(vectors, Lines(lines.members[:20], lines.offsets[:11]), 12).astype(np.float32)
    before = vectors.astype(np.float32)
    assert np.allclose(made[20:] @ made[20:].T, before[20:] @ before[20:].T, atol=1e-2)
    assert np.array_equal(made[0:20:2], made[1:20:2])


@pytest.mark.parametrize("count", [0, 1200])
def test_lines_whose_texts_have_the_same_vector_change_nothing(count):
    vectors = unit(np.random.default_rng(0).normal(size=(50, 5))).astype(np.float16)
    double = np.concatenate([vectors, vectors])
    made = target_vectors(double, lines_of(*([n % 50, 50 + n % 50] for n in range(count))), 5).astype(np.float32)
    assert np.allclose(made @ made.T, double.astype(np.float32) @ double.astype(np.float32).T, atol=1e-2)
