"""Texts that mean the same: read from lines, and given one vector."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ade.errors import InputError
from ade.training import translations
from ade.training.distill_encoder import gather_texts
from ade.training.translations import Lines, shared_vectors

TEXTS = [f"a text of number {number}" for number in range(25)]


def lines_of(*groups: list[int]) -> Lines:
    return Lines(np.array([n for group in groups for n in group], np.int64), np.cumsum([0, *map(len, groups)]))


def unit_rows(count: int, dim: int = 6, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def slowly(vectors: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    found = vectors.astype(np.float64)
    for text in range(len(vectors)):
        means = [vectors[group].astype(np.float64).mean(0) for group in groups if text in group]
        if means:
            total = sum(mean / np.linalg.norm(mean) for mean in means)
            found[text] = total / np.linalg.norm(total)
    return found


def test_texts_of_a_line_get_its_mean():
    vectors, groups = unit_rows(6), [[0, 3], [4, 0, 1]]
    found = shared_vectors(vectors, lines_of(*groups))
    assert np.allclose(found, slowly(vectors, groups), atol=2e-3)
    assert np.array_equal(found[[2, 5]], vectors[[2, 5]])
    assert found.dtype == np.float16


@settings(max_examples=30, deadline=None)
@given(groups=st.lists(st.lists(st.integers(0, 19), min_size=2, max_size=4, unique=True), max_size=12))
def test_any_lines_and_blocks_of_rows(groups: list[list[int]]):
    vectors = unit_rows(20, seed=len(groups))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translations, "ROWS", 3)
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


def test_without_lines_vectors_stay_as_they_are():
    vectors = unit_rows(5)
    assert shared_vectors(vectors, lines_of()) is vectors
