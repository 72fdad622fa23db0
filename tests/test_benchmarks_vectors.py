"""Vectors by a transformer, each as if it were alone, and the correlation of their cosines with judgements."""

import csv

import numpy as np
import pytest
import torch

from ade.compression.source import load_model
from benchmarks.vectors import stsb, unit_means
from tests.compression.test_compress import encoder, texts  # noqa: F401

AXES = {"one": [2.0, 0.0], "half": [3.0, 3.0], "other": [0.0, 5.0], "back": [-1.0, 0.0]}  # of any length


def encode(some):
    return np.array([AXES[text] for text in some])


def test_the_mean_of_a_text_is_that_of_its_own_states(encoder):  # noqa: F811
    model, tokenizer = load_model(encoder)
    rows = [tokenizer(text)["input_ids"] for text in texts(9)]
    rows[3], rows[7] = rows[3] * 5, rows[7][:2]  # of other lengths, so that there is padding
    found = unit_means(model, rows, batch_size=4)
    for row, vector in zip(rows, found, strict=True):
        with torch.no_grad():
            mean = model(input_ids=torch.tensor([row])).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, mean / mean.norm(), atol=1e-5)


def test_judgements_are_compared_by_rank(tmp_path):
    pairs = [("one", "one", 5), ("one", "half", 4), ("one", "back", 3), ("one", "other", 2)]
    for part, rows in (("test", pairs), ("dev", pairs[:2])):
        with open(tmp_path / f"stsb-en-{part}.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)
    # By hand: judgements rank 1 2 3 4, cosines 1, 0.7, -1, 0 rank 1 2 4 3; so 1 - 6 * 2 / (4 * 15).
    assert stsb(encode, tmp_path) == pytest.approx(0.8)
    assert stsb(encode, tmp_path, rows=3) == pytest.approx(1)
    assert stsb(encode, tmp_path, part="dev") == pytest.approx(1)
