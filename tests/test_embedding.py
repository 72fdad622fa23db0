"""The table and the lexicon as layers: rows, gradients, anchor sequences, entries; rounded as they will be stored."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.nn import functional as F

from ade import embedding
from ade.codebook import rounded as rounded_table
from ade.data.tokens import Ragged
from ade.embedding import (
    AnchorEmbedding,
    LexiconLayer,
    Positions,
    RoundedLinear,
    linear,
    real_tokens,
    rounded,
    table_layer,
)
from ade.packing.bits import pack_rows, unpack_rows
from ade.plain import sinusoidal
from tests.conftest import ragged_codebook
from tests.models import CODED, coded_table, packed_codebook, random_lexicon
from tests.test_lexicon import TEXTS, VOCABULARY

COUNTS = st.one_of(
    st.lists(st.integers(1, 12), min_size=2, max_size=20),
    st.integers(2, 20).map(lambda n: [1] * n),
    st.integers(2, 20).map(lambda n: [1] * (n - 1) + [12]),
)


@given(counts=COUNTS, seed=st.integers(0, 99))
def test_composed_rows_are_those_of_the_table_and_come_back(counts, seed):
    book = ragged_codebook(counts, seed=seed).table
    layer, ids = table_layer(book), torch.arange(len(counts)).flip(0)
    with torch.no_grad():
        np.testing.assert_allclose(layer(ids), book.rows(ids.numpy()), rtol=1e-4, atol=1e-5)
        _, _, mask = layer.pairs_of(ids)
    assert mask.sum(1).tolist() == book.counts[ids].tolist()
    assert mask.shape == (len(counts), max(counts))
    with torch.no_grad():
        layer.anchors += 1
    again = layer.to_table()
    np.testing.assert_allclose(again.anchors, book.anchors + 1)
    for name in ("indices", "weights", "counts", "packing"):
        assert np.array_equal(getattr(again, name), getattr(book, name))


@given(counts=COUNTS, lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_the_expanded_sequence_adds_up_to_the_composed_tokens(counts, lengths, seed):
    """Algorithm 1's scatter-add over the anchor sequence is the composed look-up."""
    layer = AnchorEmbedding(ragged_codebook(counts, seed=seed).table).double()
    ids = torch.randint(len(counts), (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    anchor, weight, word, real = layer.expand(ids, mask)
    elements = layer.anchors[anchor] * (weight * real).unsqueeze(2)
    summed = torch.zeros(*ids.shape, 8, dtype=torch.float64)
    summed.scatter_add_(1, word.unsqueeze(2).expand(elements.shape), elements)
    expected = layer(ids.flatten()).view(*ids.shape, -1) * mask.unsqueeze(2)
    torch.testing.assert_close(summed, expected, rtol=1e-10, atol=1e-10)


@given(counts=COUNTS)
def test_both_ways_of_composing_agree(counts):
    layer = AnchorEmbedding(ragged_codebook(counts).table).double()
    ids = torch.arange(len(counts)).repeat(2)
    pull = torch.randn(len(ids), 8, dtype=torch.float64)
    results = []
    for limit in (10_000, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(embedding, "DENSE_ANCHORS", limit)
            value = layer(ids)
        results.append((value, *torch.autograd.grad((value * pull).sum(), [layer.anchors, layer.weights])))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(layer(ids), results[0][0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("dim", [1, 7])
def test_rounding_is_that_of_packing_and_lets_gradients_through(bits, dim):
    rows = torch.randn(9, dim, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 2, 9).unsqueeze(1)
    rows[3] = 0
    rows.requires_grad_()
    near = rounded(rows, bits)
    stored = unpack_rows(*pack_rows(rows.detach().numpy(), bits), dim)
    np.testing.assert_allclose(near.detach(), stored, rtol=1e-6, atol=1e-9)
    pull = torch.randn(9, dim)
    (gradient,) = torch.autograd.grad((near * pull).sum(), rows)
    assert torch.equal(gradient, pull)


@pytest.mark.parametrize("own", [0, 1, 3])
def test_a_packed_table_is_composed_as_it_will_be_read_back(own):
    """But for the length of rows: scales of tokens are on a grid, which LayerNorm hides."""
    book = packed_codebook(own)
    book.weights[-1] = -abs(book.weights[-1]) if own else book.weights[-1]  # the sign of an own row is not stored
    layer, stored, ids = AnchorEmbedding(book), rounded_table(book), np.arange(book.vocabulary)
    with torch.no_grad():
        np.testing.assert_allclose(layer.all_anchors(), stored.anchors, rtol=1e-6, atol=1e-8)
        found, expected = layer(torch.from_numpy(ids)), torch.from_numpy(stored.rows(ids))
    torch.testing.assert_close(F.normalize(found, dim=1), F.normalize(expected, dim=1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.norm(dim=1), expected.norm(dim=1), rtol=0.03, atol=0)
    assert np.abs(found - book.rows(ids)).max() > 1e-3
    found = layer(torch.from_numpy(ids))
    gradients = torch.autograd.grad(found.square().sum(), [layer.anchors, layer.weights])
    assert all((gradient != 0).any() and torch.isfinite(gradient).all() for gradient in gradients)


def test_a_coded_table_is_rounded_when_it_comes_back():
    table, ids = coded_table(), torch.arange(CODED.rows)
    layer = table_layer(table)
    with torch.no_grad():
        np.testing.assert_allclose(layer(ids), table.rows(ids.numpy()), rtol=1e-5, atol=1e-5)
        for parameter in layer.parameters():
            parameter *= 1.5
        trained, again = layer(ids).numpy(), layer.to_table()
    assert 0 < np.abs(again.rows(ids.numpy()) - trained).max() < 0.05
    assert np.abs(again.rows(ids.numpy()) - table.rows(ids.numpy())).max() > 0.5
    np.testing.assert_allclose(table_layer(again).to_table().rows(ids.numpy()), again.rows(ids.numpy()), atol=1e-5)
    layer.to(torch.bfloat16)
    assert all(parameter.dtype == torch.float32 for parameter in layer.parameters())


def test_a_linear_layer_computes_with_the_weights_that_are_stored():
    whole, short = linear(6, 3, 0), linear(6, 3, 4)
    assert not isinstance(whole, RoundedLinear)
    x = torch.randn(2, 6)
    torch.testing.assert_close(short(x), x @ rounded(short.weight, 4).T + short.bias)
    assert not torch.allclose(short(x), F.linear(x, short.weight, short.bias), atol=1e-3)
    short(x).sum().backward()
    torch.testing.assert_close(short.weight.grad, x.sum(0).expand(3, 6))


def test_positions_grow_with_the_text_and_are_a_single_zero_where_there_are_none():
    like = torch.zeros(1, dtype=torch.float64)
    positions = Positions(8, 0.3, 5)
    for count in (3, 5, 6, 40):
        found = positions(count, like)
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found, 0.3 * sinusoidal(np.arange(count), 8), rtol=1e-5, atol=1e-6)
    assert len(positions.encodings) == 64
    assert positions.state_dict() == {}
    assert Positions(8, 0.0, 5)(3, like).shape == ()


def test_a_text_without_tokens_becomes_token_0():
    ids, mask = real_tokens(torch.tensor([[3, 1], [4, 4]]), torch.tensor([[1, 0], [0, 0]]))
    assert ids.tolist() == [[3, 1], [0, 4]]
    assert mask.tolist() == [[True, False], [True, False]]
    ids, mask = real_tokens(torch.empty(2, 0, dtype=torch.long), torch.empty(2, 0))
    assert (ids.tolist(), mask.tolist()) == ([[0], [0]], [[True], [True]])
    assert real_tokens(torch.tensor([[3, 1]]), None)[1].tolist() == [[True, True]]


@given(TEXTS, st.integers(0, 3))
def test_a_padded_batch_gets_what_numpy_adds(texts, spare):
    lexicon = random_lexicon(VOCABULARY, 4)
    length = max(map(len, texts)) + spare
    known = int(lexicon.keys[0])
    ids = torch.tensor([text + [known] * (length - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (length - len(text)) for text in texts]).bool()
    expected = lexicon.added(Ragged.of(texts))
    np.testing.assert_allclose(LexiconLayer(lexicon)(ids, mask), expected, rtol=1e-4, atol=1e-5)
