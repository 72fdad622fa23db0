"""Every backend gives the numbers of the method in plain numpy, on random models of every setting."""

from dataclasses import replace
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ade import backends
from ade.backends import Backend, PlainBackend, TableBackend, backend_for
from ade.codebook import rounded
from ade.configuration import CLASSIFIER, ENCODER, TAGGER
from ade.data.tokens import Ragged
from ade.errors import InputError
from ade.folder import Saved
from ade.model import model_of
from ade.torch_backends import TorchBackend, torch_backend
from tests.conftest import ragged_codebook
from tests.models import coded_table, off, oracle, packed_codebook, random_model, random_texts

NEAR = 1e-4  # of float32 arithmetic in another order, relative to the largest number
TABLES = {
    "pairs": lambda: ragged_codebook([1, 3, 2, 4, 1, 5] * 3, dim=16).table,
    "packed": packed_codebook,
    "coded": coded_table,
}


def backends_of(saved: Saved) -> list[Backend]:
    """All that can run a model on this machine."""
    made = [PlainBackend(saved), TorchBackend(model_of(saved))]
    if torch.cuda.is_available():
        made.append(torch_backend(saved, "cuda"))
    return [*made, TableBackend(saved, 1)] if saved.config.attend == "tokens" else made


def check(saved: Saved, texts: Ragged) -> None:
    """Scores and token scores are those of the oracle, by every backend."""
    model, first = oracle(saved), texts.first(saved.config.max_tokens)
    bias = saved.layers["head.bias"] * saved.config.deviation + saved.config.mean
    for backend in backends_of(saved):
        name = type(backend).__name__
        weights, scores = backend.token_scores(texts)
        assert (weights.shape, scores.shape) == ((len(first.ids),), (len(first.ids), saved.config.outputs)), name
        if saved.config.kind == TAGGER:
            assert off(scores, np.concatenate([model.token_scores(ids) for ids in first])) < NEAR, name
            assert off(weights, np.repeat(1 / first.lengths, first.lengths)) < NEAR, name
            continue
        assert off(backend.scores(texts), np.stack([model.scores(ids) for ids in texts])) < NEAR, name
        contributions = np.concatenate([model.contributions(ids) for ids in first])
        assert off(weights[:, None] * (scores - bias), contributions) < NEAR, name
        assert off(np.add.reduceat(weights, first.offsets[:-1]), np.ones(len(first))) < NEAR, name


SHAPES: list[dict[str, Any]] = [
    *({"sat": sat, "pooling": pooling} for sat, pooling in product([True, False], ["attention", "mean"])),
    {"positions": "none"},
    {"position_scale": 0.0},
    {"layers": 2},
    {"layers": 3, "pooling": "mean", "positions": "none"},
    {"labels": 2, "heads": 2},
    {"labels": 20},  # more than a head is wide: values are kept as they are
    {"labels": 20, "sat": False},
    {"labels": 1, "mean": 3.5, "deviation": 1.5},
    {"labels": 20, "mean": 3.5, "deviation": 1.5, "lexicon": True, "max_tokens": 8},
    {"lexicon": True, "layers": 2, "max_tokens": 8},
    {"layer_bits": 4},
    {"kind": ENCODER, "labels": 24},
    {"kind": ENCODER, "labels": 5, "layers": 2},
    {"kind": TAGGER},
    {"kind": TAGGER, "layers": 2, "sat": True},
    {"kind": TAGGER, "sat": False, "positions": "none"},
]
ANCHORS: list[dict[str, Any]] = [
    {},
    {"positions": "each"},
    {"positions": "none", "pooling": "mean"},
    {"sat": False, "lexicon": True, "max_tokens": 8, "mean": 3.5, "deviation": 1.5},
    {"kind": ENCODER, "labels": 24},
    {"kind": TAGGER},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("table", TABLES)
def test_attention_over_tokens(shape, table):
    book = TABLES[table]()
    saved = random_model(rounded(book), **shape).rounded()
    check(saved, random_texts([3, 1, 9, 9, 4, 30], book.vocabulary))


@pytest.mark.parametrize("shape", ANCHORS, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_attention_over_anchors(shape, packed):
    saved = random_model(rounded(packed_codebook()) if packed else None, attend="anchors", **shape).rounded()
    check(saved, random_texts([3, 1, 9, 9, 4, 30], saved.table.vocabulary))


@given(
    counts=st.lists(st.integers(1, 5), min_size=3, max_size=30),
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=12),
    labels=st.sampled_from([2, 5, 20]),
    attend=st.sampled_from(["tokens", "anchors"]),
)
def test_ragged_codebooks_and_texts(counts, lengths, labels, attend):
    saved = random_model(ragged_codebook(counts, dim=16).table.normalised(), labels, attend=attend)
    check(saved, random_texts(lengths, len(counts)))


def test_rows_so_small_that_the_norms_epsilon_counts():
    book = ragged_codebook([1, 2, 3, 4] * 4, dim=16).table
    check(random_model(replace(book, anchors=3e-3 * book.anchors)), random_texts([3, 1, 9], 16))


def test_lookup_tables_are_for_attention_over_tokens():
    with pytest.raises(InputError, match="this model attends over anchors"):
        TableBackend(random_model(attend="anchors"))


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_no_texts_no_numbers(attend):
    saved = random_model(attend=attend)
    for backend in backends_of(saved):
        assert backend.scores(Ragged.of([])).shape == (0, 3)
        weights, scores = backend.token_scores(Ragged.of([]))
        assert (weights.shape, scores.shape) == ((0,), (0, 3))


def test_numpy_runs_all_on_a_cpu_and_torch_attention_over_anchors_where_it_is_installed():
    tokens, anchors = random_model(), random_model(attend="anchors")
    assert isinstance(backend_for(tokens), TableBackend)
    assert isinstance(backend_for(anchors), TorchBackend)
    with mock.patch.object(backends, "find_spec", return_value=None):
        assert isinstance(backend_for(anchors), PlainBackend)
        assert isinstance(backend_for(tokens, "auto"), TableBackend)
    assert isinstance(backend_for(tokens, "auto"), TorchBackend if torch.cuda.is_available() else TableBackend)


def test_a_forward_pass_is_in_evaluation_mode():
    model = model_of(random_model(dropout=0.5, token_dropout=0.9)).train()
    texts = random_texts([5, 9], 18)
    assert np.array_equal(TorchBackend(model).scores(texts), TorchBackend(model).scores(texts))
    assert not model.training


@pytest.mark.parametrize(("kind", "bits"), [(CLASSIFIER, 4), (ENCODER, 8), (CLASSIFIER, 16)])
@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_a_model_that_is_trained_predicts_as_what_it_is_saved_as(attend, kind, bits):
    """The forward pass rounds as packing will; but for the grid of the tokens' scales, which LayerNorm hides."""
    saved = random_model(packed_codebook(), attend=attend, kind=kind, layer_bits=bits)
    texts = random_texts([5, 1, 18, 7], 19)
    trained, stored = TorchBackend(model_of(saved)).scores(texts), backend_for(saved.rounded()).scores(texts)
    assert off(trained, stored) < (0.02 if attend == "anchors" else 2e-3)
