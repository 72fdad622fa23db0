"""Projected inference is exact: against the training forward pass, over ragged codebooks, lengths and every shape."""

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ade.classifier import predict_logits
from ade.data.batches import Encoded
from ade.model import AdeForSequenceClassification
from ade.runtime import attention, tables
from ade.runtime.projection import Projection
from ade.runtime.tables import fold
from ade.runtime.type_cache import TypeCache
from ade.settings import Architecture
from tests.conftest import ragged_codebook


def shaken(
    codebook, labels: int, size: float = 0.3, position_scale: float = 0.5, **shape
) -> AdeForSequenceClassification:
    """A model none of whose parameters is at its starting value."""
    names = [f"label {i}" for i in range(labels)]
    architecture = Architecture(**{"heads": 4, **shape})
    model = AdeForSequenceClassification.from_codebook(codebook, names, architecture, position_scale=0.5)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def folded(model: AdeForSequenceClassification, cached_types: int = 64) -> Projection:
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return Projection(fold(model.config.to_dict(), state), cached_types)


def texts_of(lengths: list[int], vocabulary: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.random.default_rng(seed).integers(0, vocabulary, offsets[-1]).astype(np.int32), offsets


def off(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, in units of the largest score where that is more than 1."""
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def reference(model: AdeForSequenceClassification, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    return predict_logits(model, Encoded(torch.from_numpy(ids), offsets))


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
@given(
    counts=st.lists(st.integers(1, 5), min_size=3, max_size=30),
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=12),
    labels=st.sampled_from([2, 5, 20]),  # below and above the width of a head
    positions=st.sampled_from(["grouped", "each", "none"]),
)
def test_it_equals_the_model(attend, counts, lengths, labels, positions):
    model = shaken(ragged_codebook(counts, dim=32), labels, attend=attend, positions=positions)
    ids, offsets = texts_of(lengths, len(counts))
    assert off(folded(model).logits(ids, offsets), reference(model, ids, offsets)) < 1e-4


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
@pytest.mark.parametrize(("sat", "pooling"), [(True, "mean"), (False, "attention"), (False, "mean")])
def test_it_equals_the_ablations(attend, sat, pooling):
    model = shaken(ragged_codebook([1, 2, 3, 4, 5] * 4, dim=16), 3, attend=attend, sat=sat, pooling=pooling)
    ids, offsets = texts_of([3, 1, 9, 9, 4], 20)
    assert off(folded(model).logits(ids, offsets), reference(model, ids, offsets)) < 1e-4


@pytest.mark.parametrize(("attend", "layers"), [("tokens", 2), ("tokens", 4), ("gated", 2)])
@pytest.mark.parametrize("pooling", ["attention", "mean"])
def test_it_equals_a_model_of_several_layers(attend, layers, pooling):
    model = shaken(ragged_codebook([1, 2, 3, 4, 5] * 4, dim=16), 3, 0.1, attend=attend, layers=layers, pooling=pooling)
    ids, offsets = texts_of([3, 1, 9, 9, 4], 20)
    scores, shallow = reference(model, ids, offsets), copy.deepcopy(model)
    assert off(folded(model).logits(ids, offsets), scores) < 1e-4
    shallow.ade.layers = shallow.ade.layers[:0]
    assert off(reference(shallow, ids, offsets), scores) > 1e-2  # the further layers do something


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_scores_beyond_the_exponential_are_shifted(attend, monkeypatch):
    """Weights so large that a bare exponential would overflow, and rows so low that it would vanish."""
    model = shaken(ragged_codebook([2, 3, 4] * 5, dim=16), 3, size=3.0, attend=attend)
    ids, offsets = texts_of([7, 2, 11, 5], 15)
    found = folded(model).logits(ids, offsets)
    assert np.isfinite(found).all()
    judge = reference(model.double(), ids, offsets)
    assert np.abs(found - judge).max() < 1e-3 * np.abs(judge).max()
    monkeypatch.setattr(attention, "MAX_SAFE_SCORE", -1e9)  # always shifted: the same
    assert np.allclose(folded(model.float()).logits(ids, offsets), found, atol=1e-3 * np.abs(judge).max())


def test_many_anchors_need_no_matrix_of_them_all(monkeypatch):
    model = shaken(ragged_codebook([2, 5, 3] * 8, dim=16), 4, attend="gated")
    ids, offsets = texts_of([6, 13], 24)
    known = folded(model).logits(ids, offsets)
    monkeypatch.setattr(tables, "MAX_GRAM_ANCHORS", 0)
    assert np.allclose(folded(model).logits(ids, offsets), known, atol=1e-5)


@pytest.mark.parametrize("attend", ["tokens", "gated"])
def test_a_small_cache_changes_nothing(attend):
    """More types than it holds: halves, evictions, rows made again."""
    model = shaken(ragged_codebook([1, 3, 2, 4] * 15, dim=16), 3, attend=attend, max_tokens=12)
    small, large = folded(model, cached_types=12), folded(model, cached_types=60)
    with ThreadPoolExecutor(2) as pool:
        for seed in range(3):
            ids, offsets = texts_of([12, 5, 1, 9, 12, 7], 60, seed)
            expected = reference(model, ids, offsets)
            assert off(small.logits(ids, offsets, pool), expected) < 1e-4
            assert off(large.logits(ids, offsets), expected) < 1e-4
    assert len(small.cache.rows) == 12
    assert small.cache.hit_rate < large.cache.hit_rate < 1


def test_the_cache_keeps_what_is_used():
    cache, made = TypeCache(100, 1, 4), []

    def make(types: np.ndarray) -> np.ndarray:
        made.extend(types.tolist())
        return types[:, None].astype(np.float32)

    for ids in ([1, 2], [1, 3, 1], [1, 4], [1, 5], [3]):
        slots = cache.slots(np.array(ids), make)
        assert cache.rows[slots, 0].tolist() == ids
    assert made == [1, 2, 3, 4, 5]  # 2 made room for 5; 1 never left, 3 was still there
    assert cache.slots(np.array([1, 2, 3, 4, 5]), make) is None
    assert cache.hit_rate == pytest.approx(5 / 10)


def test_no_texts_no_scores():
    model = shaken(ragged_codebook([1, 2], dim=8), 3, heads=2)
    assert folded(model).logits(np.empty(0, np.int32), np.zeros(1, np.int64)).shape == (0, 3)


def test_an_interrupted_fill_leaves_no_wrong_row():
    cache = TypeCache(10, 1, 3)
    cache.slots(np.array([0, 1, 2]), lambda types: types[:, None].astype(np.float32))

    def stop(types: np.ndarray) -> np.ndarray:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.slots(np.array([5, 6]), stop)
    for ids in ([5, 0], [9, 1], [2, 6, 5]):
        slots = cache.slots(np.array(ids), lambda types: types[:, None].astype(np.float32))
        assert cache.rows[slots, 0].tolist() == ids


def test_long_texts_are_attended_to_in_parts(monkeypatch):
    model = shaken(ragged_codebook([1, 3, 2], dim=16), 3, attend="gated")
    ids, offsets = texts_of([9, 30, 2], 3)
    whole = folded(model).logits(ids, offsets)
    monkeypatch.setattr(attention, "MAX_ATTENTION_SCORES", 100)
    assert np.allclose(folded(model).logits(ids, offsets), whole, atol=1e-5)


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_it_equals_the_model_where_rows_are_so_small_that_the_norms_epsilon_counts(attend):
    model = shaken(ragged_codebook([1, 2, 3, 4] * 4, dim=16), 3, attend=attend)
    with torch.no_grad():
        model.ade.embedding.anchors *= 3e-3
    ids, offsets = texts_of([3, 1, 9], 16)
    assert off(folded(model).logits(ids, offsets), reference(model, ids, offsets)) < 1e-4
