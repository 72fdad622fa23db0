"""Vectors as files: all formats hold the same numbers, and JSON lines the other columns."""

import json

import numpy as np
import pytest

from ade.encoders.vector_files import write_vectors
from ade.errors import InputError

VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
ROWS = [{"text": f"text {i}", "n": i} for i in range(5)]


def batches(count: int):
    return ((ROWS[start : start + count], VECTORS[start : start + count]) for start in range(0, 5, count))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_format_holds_the_vectors(count, tmp_path):
    for name in ("a.npy", "a.jsonl"):
        write_vectors(tmp_path / name, batches(count), 3)
    assert np.array_equal(np.load(tmp_path / "a.npy"), VECTORS)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [{"text": row["text"], "n": row["n"]} for row in lines] == ROWS
    np.testing.assert_allclose([row["vector"] for row in lines], VECTORS, rtol=1e-6)


def test_without_texts_there_are_no_vectors_and_no_other_format(tmp_path):
    write_vectors(tmp_path / "a.npy", iter(()), 3)
    assert np.load(tmp_path / "a.npy").shape == (0, 3)
    with pytest.raises(InputError, match="which format"):
        write_vectors(tmp_path / "a.csv", batches(5), 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy"]
