"""Lookup tables on a GPU give the model's scores; without a GPU the kernels are interpreted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from ade import triton_backend
from ade.runtime import kernels
from ade.runtime.tables import LookupTables
from ade.triton_backend import TritonBackend, bucketed, can_run
from tests.conftest import ragged_codebook
from tests.models import CODED as CODED_SHAPE, coded_table, off, oracle, random_model, random_texts

pytestmark = pytest.mark.skipif(not kernels.available, reason="there is no Triton for this platform")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOOK = ragged_codebook([1, 3, 2, 4] * 5, dim=32).table
CODED = coded_table(replace(CODED_SHAPE, dim=32))


def backend_of(saved, dtype: torch.dtype = torch.float32) -> TritonBackend:
    tables = LookupTables(saved)
    assert can_run(tables)
    return TritonBackend(saved, tables, DEVICE, dtype)


def check(saved, lengths: list[int]) -> None:
    texts, model = random_texts(lengths, saved.table.vocabulary), oracle(saved)
    assert off(backend_of(saved).scores(texts), np.stack([model.scores(ids) for ids in texts])) < 1e-4


@pytest.mark.parametrize(("table", "positions"), [(BOOK, "grouped"), (BOOK, "none"), (CODED, "grouped")])
def test_scores_are_those_of_the_model(table, positions, monkeypatch):
    monkeypatch.setattr(kernels, "TYPES_PER_BLOCK", 7)
    check(random_model(table, positions=positions, heads=2, mean=3.5, deviation=1.5), [5, 1, 18, 7])


@settings(max_examples=8)
@given(
    heads=st.sampled_from([1, 2]),
    labels=st.sampled_from([2, 5, 15]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_any_lengths_labels_and_heads(heads, labels, lengths):
    check(random_model(BOOK, labels, heads=heads), lengths)


def test_several_blocks_of_queries_and_keys(monkeypatch):
    monkeypatch.setattr(kernels, "MAX_BLOCK", 64)
    check(random_model(BOOK, heads=1), [150, 70])


@pytest.mark.parametrize("max_tokens", [64, 8])
def test_the_lexicon_reads_whole_texts(max_tokens, monkeypatch):
    monkeypatch.setattr(triton_backend, "BATCH_TOKENS", 40)  # in several batches
    check(random_model(BOOK, heads=2, lexicon=True, max_tokens=max_tokens), [5, 1, 18, 7, 30])


@pytest.mark.skipif(DEVICE.type == "cpu", reason="the interpreter has no bfloat16")
def test_bfloat16_is_near():
    saved, texts = random_model(BOOK, heads=2), random_texts([5, 1, 18, 7], 20)
    exact, narrow = (backend_of(saved, dtype).scores(texts) for dtype in (torch.float32, torch.bfloat16))
    assert np.abs(narrow - exact).max() < 0.03 * np.abs(exact).max()  # eight bits of mantissa


@pytest.mark.parametrize(
    ("shape", "can"),
    [
        ({"sat": False}, False),
        ({"pooling": "mean"}, False),
        ({"layers": 2}, False),
        ({"labels": 15}, True),
        ({"labels": 16}, False),  # more scores than a head is wide
        ({"heads": 4}, False),  # heads of width 8
        ({"max_tokens": 32_768}, True),
        ({"max_tokens": 32_769}, False),
    ],
)
def test_models_that_the_kernels_cannot_run(shape, can):
    tables = LookupTables(random_model(ragged_codebook([1, 2], dim=32).table, **{"heads": 2, **shape}))
    assert can_run(tables) is can


def test_tables_that_are_too_large_are_left_to_torch(monkeypatch):
    tables = LookupTables(random_model(BOOK, heads=2))
    monkeypatch.setattr(triton_backend, "MAX_TABLE_BYTES", 4 * 20 * tables.columns.total - 1)
    assert not can_run(tables)


def test_lengths_are_bucketed():
    assert [bucketed(n) for n in (1, 16, 17, 128, 129, 512)] == [16, 16, 32, 128, 192, 512]
