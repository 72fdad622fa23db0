"""Distillation: what planted tables give back, thresholds, sizes of settings, and the paper's gradient solver."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ade.codebook import Codebook
from ade.configuration import CODEBOOK
from ade.distillation import distill
from ade.errors import InputError
from ade.folder import Saved
from ade.settings import DistillationSettings
from ade.teachers import Teacher
from tests.conftest import word_tokenizer


def planted(tokens: int = 400, anchors: int = 20, dim: int = 16, pairs: int = 3) -> Teacher:
    """A table that a codebook of this shape can express exactly."""
    generator = torch.Generator().manual_seed(0)
    directions = F.normalize(torch.randn(anchors, dim, generator=generator), dim=1)
    chosen = torch.stack([torch.randperm(anchors, generator=generator)[:pairs] for _ in range(tokens)])
    signs = torch.randn(tokens, pairs, generator=generator).sign()
    weights = signs * (0.5 + torch.rand(tokens, pairs, generator=generator))
    table = torch.einsum("nk,nkd->nd", weights, directions[chosen])
    return Teacher("planted", table, word_tokenizer([f"w{i}" for i in range(tokens - 2)]))


def book_of(saved: Saved) -> Codebook:
    assert isinstance(saved.table, Codebook)
    return saved.table


def cosines(saved: Saved, teacher: Teacher) -> torch.Tensor:
    return F.cosine_similarity(torch.from_numpy(saved.table.rows(np.arange(saved.table.vocabulary))), teacher.table)


def reached(**settings: object) -> float:
    return distill(planted(), DistillationSettings(**settings)).config.metadata["cosine"]


@pytest.mark.parametrize(("solver", "rounds", "least"), [("pursuit", 30, 0.93), ("gradient", 300, 0.83)])
def test_both_solvers_recover_a_planted_codebook(solver, rounds, least):
    teacher, settings = planted(), DistillationSettings(anchors=20, pairs=3, solver=solver, rounds=rounds)
    saved = distill(teacher, settings)
    book, found = book_of(saved), saved.config.metadata
    assert float(cosines(saved, teacher).mean()) > least
    assert found["cosine"] == pytest.approx(float(cosines(saved, teacher).mean()), abs=1e-4)
    assert found["dead_anchors"] == 0
    assert (found["teacher"], found["rows"], found["dim"], found["settings"]["rounds"]) == ("planted", 400, 16, rounds)
    np.testing.assert_allclose(np.linalg.norm(book.anchors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(book.rows(np.arange(400)), axis=1), 1, atol=0.2)
    assert (saved.config.kind, saved.tokenizer, dict(saved.layers)) == (CODEBOOK, teacher.tokenizer, {})
    assert book.counts.tolist() == [3] * 400


@pytest.mark.parametrize("solver", ["pursuit", "gradient"])
def test_the_same_seed_gives_the_same_codebook(solver):
    settings = DistillationSettings(anchors=16, pairs=3, rounds=3, solver=solver)
    first, second, other = (book_of(distill(planted(), replace(settings, seed=seed))) for seed in (1, 1, 2))
    assert np.array_equal(first.weights, second.weights)
    assert np.array_equal(first.indices, second.indices)
    assert not np.array_equal(first.anchors, other.anchors)


def test_a_threshold_gives_each_token_its_own_cardinality():
    book = book_of(distill(planted(), DistillationSettings(anchors=30, pairs=6, threshold=0.3)))
    assert 1 <= book.counts.min() < book.counts.max() <= 6
    sizes = [np.abs(book.of(token)[1]).min() for token in range(400) if book.counts[token] > 1]
    assert min(sizes) >= 0.3


@pytest.mark.parametrize(("solver", "least"), [("pursuit", 0.3), ("gradient", 0.81)])
def test_unsigned_weights(solver, least):
    rounds = 300 if solver == "gradient" else 4
    saved = distill(planted(), DistillationSettings(anchors=20, pairs=3, signed=False, solver=solver, rounds=rounds))
    assert book_of(saved).weights.min() >= 0
    assert saved.config.metadata["cosine"] > least


def test_a_row_of_zeros_keeps_one_pair():
    teacher = planted()
    teacher.table[3] = 0
    book = book_of(distill(teacher, DistillationSettings(anchors=16, pairs=3)))
    assert book.counts[3] == 1
    assert not book.rows(np.array([3])).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"anchors": 401}, "401 anchors, but the teacher has only 400 tokens"),
        ({"anchors": 10, "pairs": 11}, "pairs must lie between 1 and the 10 anchors, not 11"),
        ({"anchors": 10, "pairs": 0}, "pairs must be at least 1"),
        ({"anchors": 10, "pairs": 2, "device": "tpu9"}, "unknown device"),
    ],
)
def test_impossible_settings(changes, message):
    with pytest.raises(InputError, match=message):
        distill(planted(), DistillationSettings(**changes))
