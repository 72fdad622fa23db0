"""What an encoder learns: texts that mean the same have one vector; vectors rotated, less what all share."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ade.encoders import targets
from ade.encoders.distil import gather_texts
from ade.encoders.targets import Lines, shared_vectors, target_vectors
from ade.errors import InputError
from ade.trained_model import unit

TEXTS = [f"a text of number {number}" for number in range(25)]


def lines_of(*groups: list[int]) -> Lines:
    return Lines(np.array([n for group in groups for n in group], np.int64), np.cumsum([0, *map(len, groups)]))


def random(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim))


def slowly(vectors: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    found = vectors.astype(np.float64)
    for text in range(len(vectors)):
        means = [vectors[group].astype(np.float64).mean(0) for group in groups if text in group]
        if means:
            total = sum(mean / np.linalg.norm(mean) for mean in means)
            found[text] = total / np.linalg.norm(total)
    return found


@settings(max_examples=30, deadline=None)
@given(groups=st.lists(st.lists(st.integers(0, 19), min_size=2, max_size=4, unique=True), max_size=12))
def test_any_lines_and_blocks_of_rows(groups: list[list[int]]):
    vectors = unit(random(20, 6, len(groups))).astype(np.float16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "BLOCK", 3)
        found = shared_vectors(vectors, lines_of(*groups))
    assert np.allclose(found, slowly(vectors, groups), atol=4e-3)


def test_lines_name_texts_by_number_and_known_texts_are_not_doubled(tmp_path: Path):
    file = tmp_path / "lines.tsv"
    file.write_text(f"{TEXTS[3]}\tein Text\n\nein Text\t un texte \tein Text\nalone\t\n", "utf8")
    texts, lines = gather_texts([], TEXTS, [file])
    assert list(texts)[25:] == ["ein Text", "un texte", "alone"]
    assert lines.members.tolist() == [3, 25, 25, 26]  # a text beside an empty one means the same as no other
    assert lines.offsets.tolist() == [0, 2, 4]


def test_a_line_of_one_text_is_refused(tmp_path: Path):
    file = tmp_path / "lines.tsv"
    file.write_text("one\tuno\nonly one\n", "utf8")
    with pytest.raises(InputError, match=r"lines.tsv, line 2: one text; .* separated by tabs"):
        gather_texts([], TEXTS, [file])
    file.write_bytes(b"one\t\xff\xfe\n")
    with pytest.raises(InputError, match="not UTF-8 text"):
        gather_texts([], TEXTS, [file])


def test_rotating_keeps_cosines_and_puts_the_most_first():
    vectors = unit(random(500, 6) @ np.diag([0.1, 2, 0.1, 1, 0.1, 0.1])).astype(np.float16)
    turned = target_vectors(vectors, lines_of(), 6).astype(np.float32)
    before = vectors.astype(np.float32)
    assert np.allclose(turned @ turned.T, before @ before.T, atol=4e-3)
    share = (turned**2).mean(0)
    assert (np.diff(share) < 1e-4).all()
    assert share[:2].sum() > 0.9
    assert np.array_equal(target_vectors(vectors, lines_of(), 2), target_vectors(vectors, lines_of(), 6)[:, :2])


def test_what_all_vectors_share_is_taken_off_first():
    own = 0.3 * random(400, 8) @ np.diag([2, 1, 1, 1, 0.1, 0.1, 0.1, 0.1])
    shared = unit(own + 2.0).astype(np.float16)
    apart = shared.astype(np.float32) - shared.astype(np.float32).mean(0)
    turned = target_vectors(shared, lines_of(), 8).astype(np.float32)
    assert np.allclose(turned @ turned.T, unit(apart) @ unit(apart).T, atol=1e-2)
    assert abs(turned.mean(0)).max() < 0.1

    little = unit(own + 0.1).astype(np.float16)  # too little to be taken off: cosines stay as they are
    turned = target_vectors(little, lines_of(), 8).astype(np.float32)
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
    monkeypatch.setattr(targets, "MIN_LINES", 100)
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
    vectors = unit(random(50, 5)).astype(np.float16)
    double = np.concatenate([vectors, vectors])
    made = target_vectors(double, lines_of(*([n % 50, 50 + n % 50] for n in range(count))), 5).astype(np.float32)
    assert np.allclose(made @ made.T, double.astype(np.float32) @ double.astype(np.float32).T, atol=1e-2)
