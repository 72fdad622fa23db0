"""Small codebooks and models for the tests of the verbs: one trained once, others made by the verbs themselves."""

from dataclasses import replace
from pathlib import Path

import pytest

from ade.settings import STRONG
from ade.training.loop import fit_model

SPEED = ["--steps", "400", "--batch-size", "16", "--learning-rate", "0.01", "--device", "cpu"]


@pytest.fixture(scope="session")
def trained(codebook, topics, tmp_path_factory) -> Path:
    """A model folder that tells the topics apart; not to be changed."""
    settings = replace(STRONG, steps=400, batch_size=16, learning_rate=0.01, device="cpu")
    out = tmp_path_factory.mktemp("trained") / "model"
    fit_model(codebook, topics, settings=settings, out=out)
    return out


@pytest.fixture
def book(ade, teacher_folder, tmp_path):
    status, _, errors = ade(
        "distill", "--teacher", teacher_folder, "--out", tmp_path / "book", "--anchors", 10, "--pairs", 3
    )
    assert (status, errors) == (0, "")
    return tmp_path / "book"


@pytest.fixture
def model(ade, book, topic_folder, tmp_path):
    status, _, errors = ade("train", "--codebook", book, "--data", topic_folder, "--out", tmp_path / "model", *SPEED)
    assert (status, errors) == (0, "")
    return tmp_path / "model"
