"""A small trained model for the tests of the verbs."""

from dataclasses import replace
from pathlib import Path

import pytest

from ade.settings import STRONG
from ade.training.loop import fit_model


@pytest.fixture(scope="session")
def trained(codebook, topics, tmp_path_factory) -> Path:
    """A model folder that tells the topics apart; not to be changed."""
    settings = replace(STRONG, steps=400, batch_size=16, learning_rate=0.01, device="cpu")
    out = tmp_path_factory.mktemp("trained") / "model"
    fit_model(codebook, topics, settings=settings, out=out)
    return out
