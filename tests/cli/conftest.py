"""A small codebook and a small model for the tests of the verbs, made once."""

from dataclasses import replace
from pathlib import Path

import pytest

from ade.settings import STRONG
from ade.training.loop import fit_model

SPEED = ["--set", "steps=100", "--set", "batch_size=16", "--set", "learning_rate=0.02", "--device", "cpu"]


@pytest.fixture(scope="session")
def trained(codebook, topics, tmp_path_factory) -> Path:
    """A model folder that tells the topics apart; not to be changed."""
    settings = replace(STRONG, steps=100, batch_size=16, learning_rate=0.02, device="cpu")
    out = tmp_path_factory.mktemp("trained") / "model"
    fit_model(codebook, topics, settings=settings, out=out)
    return out


@pytest.fixture(scope="session")
def book(codebook, tmp_path_factory) -> Path:
    """A codebook folder; not to be changed."""
    out = tmp_path_factory.mktemp("books") / "book"
    codebook.save(out)
    return out
