"""Lookup tables on a GPU give the model's scores, from recorded graphs too; elsewhere their references do."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ade.embedding import LexiconLayer
from ade.runtime import gpu, kernels
from ade.runtime.gpu import GpuScores, bucketed, unsupported
from ade.runtime.tables import lookup_tables
from tests.conftest import ragged_codebook
from tests.models import CODED as CODED_SHAPE
from tests.models import coded_table, off, oracle, random_model, random_texts

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(kernels.triton is None, reason="there is no Triton for this platform")
BOOK = ragged_codebook([1, 3, 2, 4] * 5, dim=32).table
CODED = coded_table(replace(CODED_SHAPE, dim=32))


def scores_of(saved, dtype: torch.dtype = torch.float32) -> GpuScores:
    lexicon = None if saved.lexicon is None else LexiconLayer(saved.lexicon).to(DEVICE)
    return GpuScores(lookup_tables(saved), DEVICE, dtype, lexicon)


@pytest.mark.parametrize(("table", "positions"), [(BOOK, "grouped"), (BOOK, "none"), (CODED, "grouped")])
@pytest.mark.parametrize("by_kernel", [False, pytest.param(True, marks=needs_triton)])
def test_scores_are_those_of_the_model(table, positions, by_kernel, monkeypatch):
    monkeypatch.setattr("ade.runtime.kernels.TYPES_PER_BLOCK", 7)
    if by_kernel:
        for step in ("attend", "pool"):
            monkeypatch.setattr(kernels, f"{step}_reference", getattr(kernels, step))
    saved = random_model(table, positions=positions, heads=2, mean=3.5, deviation=1.5)
    assert unsupported(lookup_tables(saved)) is None
    fast, texts, model = scores_of(saved), random_texts([5, 1, 18, 7], table.vocabulary), oracle(saved)
    for _ in range(3):  # on a GPU the second time is recorded, the third replayed
        found = fast.pooled(texts)
        assert off(found, np.stack([model.scores(ids) for ids in texts])) < 1e-4
    if by_kernel and DEVICE.type == "cpu":
        return  # the interpreter has no bfloat16
    narrow = scores_of(saved, torch.bfloat16).pooled(texts)
    assert np.abs(narrow - found).max() < 0.03 * np.abs(found).max()  # eight bits of mantissa


@pytest.mark.parametrize("max_tokens", [64, 8])
def test_the_lexicon_reads_whole_texts(max_tokens):
    saved = random_model(BOOK, heads=2, lexicon=True, max_tokens=max_tokens)
    texts, model = random_texts([5, 1, 18, 7, 30], 20), oracle(saved)
    without = oracle(random_model(BOOK, heads=2, max_tokens=max_tokens))
    expected = [without.scores(ids[:max_tokens]) + model.scores(ids) - without.scores(ids) for ids in texts]
    assert off(scores_of(saved).pooled(texts), np.stack(expected)) < 1e-4


def test_graphs_are_replayed_with_what_they_are_given():
    """On a GPU from recorded graphs, elsewhere not: the same shape again and again, each time other texts."""
    saved = random_model(BOOK, heads=2)
    fast, model = scores_of(saved), oracle(saved)
    for seed, lengths in enumerate(([5, 1, 18, 7], [18, 18, 2, 9], [17, 3, 3, 3], [20, 1, 1, 30])):
        texts = random_texts(lengths, 20, seed)
        assert off(fast.pooled(texts), np.stack([model.scores(ids) for ids in texts])) < 1e-4


def test_batches_are_as_large_as_the_device_holds_and_each_text_is_in_one(monkeypatch):
    monkeypatch.setattr(gpu, "BATCH_TOKENS", 60)
    monkeypatch.setattr(gpu, "MAX_BATCH_TEXTS", 7)
    saved = random_model(BOOK, heads=2)
    fast, model, texts = scores_of(saved), oracle(saved), random_texts([5, 1, 18, 7, *[2] * 30], 20)
    batches = [batch.tolist() for batch in fast._batches(texts.lengths)]
    assert sorted(row for batch in batches for row in batch) == list(range(34))
    assert max(map(len, batches)) == 7
    assert off(fast.pooled(texts), np.stack([model.scores(ids) for ids in texts])) < 1e-4


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ({"sat": False}, "no attention"),
        ({"pooling": "mean"}, "pools by the mean"),
        ({"layers": 2}, "several layers"),
        ({"labels": 40}, "more labels"),
        ({"labels": 15}, None),
        ({"labels": 16}, "more labels"),
        ({"heads": 4}, "width of its heads"),
        ({"heads": 2}, None),
        ({"max_tokens": 32_768}, None),
        ({"max_tokens": 32_769}, "too long"),
    ],
)
def test_models_the_kernels_cannot_run_are_named(shape, reason):
    found = unsupported(lookup_tables(random_model(ragged_codebook([1, 2], dim=32).table, **{"heads": 2, **shape})))
    assert found is None if reason is None else reason in found


def test_tables_that_are_too_large_are_refused(monkeypatch):
    tables = lookup_tables(random_model(BOOK, heads=2))
    monkeypatch.setattr(gpu, "MAX_TABLE_BYTES", 4 * 20 * tables.columns.total)
    assert unsupported(tables) is None
    monkeypatch.setattr(gpu, "MAX_TABLE_BYTES", 4 * 20 * tables.columns.total - 1)
    assert "too large" in unsupported(tables)


def test_lengths_are_bucketed():
    assert [bucketed(n) for n in (1, 16, 17, 128, 129, 512)] == [16, 16, 32, 128, 192, 512]
