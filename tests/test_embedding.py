import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ade import embedding
from ade.embedding import AnchorEmbedding, Dictionary, TensorCache
from tests.conftest import ragged_codebook

COUNTS = st.one_of(
    st.lists(st.integers(1, 12), min_size=2, max_size=20),
    st.integers(2, 20).map(lambda n: [1] * n),
    st.integers(2, 20).map(lambda n: [1] * (n - 1) + [12]),
)


@given(counts=COUNTS, seed=st.integers(0, 99))
def test_composed_rows_have_unit_variance_and_the_codebooks_direction(counts, seed):
    book = ragged_codebook(counts, seed=seed)
    rows = AnchorEmbedding.from_codebook(book).compose(torch.arange(len(counts)))
    torch.testing.assert_close(rows.norm(dim=1), torch.full((len(counts),), 8**0.5), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        torch.cosine_similarity(rows, book.rows()), torch.ones(len(counts)), rtol=1e-4, atol=1e-4
    )


@given(counts=COUNTS, lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_the_expanded_sequence_adds_up_to_the_composed_tokens(counts, lengths, seed):
    """Algorithm 1's scatter-add over the anchor sequence is the composed look-up."""
    layer = AnchorEmbedding.from_codebook(ragged_codebook(counts, seed=seed)).double()
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(len(counts), (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    expanded = layer.expand(ids, mask)
    elements = layer.anchors[expanded.anchor] * (expanded.weight * expanded.mask).unsqueeze(2)
    summed = torch.zeros(*ids.shape, layer.anchors.shape[1], dtype=torch.float64)
    summed.scatter_add_(1, expanded.word.unsqueeze(2).expand(elements.shape), elements)
    expected = layer.compose(ids.flatten()).view(*ids.shape, -1) * mask.unsqueeze(2)
    torch.testing.assert_close(summed, expected, rtol=1e-10, atol=1e-10)


@given(counts=COUNTS)
def test_both_ways_of_composing_agree(counts):
    layer = AnchorEmbedding.from_codebook(ragged_codebook(counts)).double()
    ids = torch.arange(len(counts)).repeat(2)
    pull = torch.randn(len(ids), 8, dtype=torch.float64)
    results = []
    for limit in (10_000, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(embedding, "DENSE_ANCHORS", limit)
            value = layer.compose(ids)
        results.append((value, *torch.autograd.grad((value * pull).sum(), [layer.anchors, layer.weights])))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(layer.compose(ids), results[0][0], rtol=1e-10, atol=1e-10)


def test_offsets_follow_a_reload_and_a_new_codebook():
    layer = AnchorEmbedding.from_codebook(ragged_codebook([1, 2, 3]))
    assert layer.offsets.tolist() == [0, 1, 3]
    layer.load_codebook(ragged_codebook([3, 2, 1]))
    assert layer.offsets.tolist() == [0, 3, 5]
    fresh = AnchorEmbedding(3, 12, 8, 6, 3)
    assert fresh.offsets.tolist() == [0, 1, 2]  # derived before the real counts arrive
    fresh.load_state_dict(layer.state_dict())
    assert fresh.offsets.tolist() == [0, 3, 5]


def test_a_cached_value_is_computed_again_when_a_tensor_changes_and_not_otherwise():
    computed, cache, tensor = [], TensorCache[float](), torch.ones(3)

    def total() -> float:
        computed.append(float(tensor.sum()))
        return computed[-1]

    assert cache.get([tensor], total) == cache.get([tensor], total) == 3
    tensor += 1  # written in place
    assert cache.get([tensor], total) == 6
    tensor = torch.full((3,), 5.0)  # replaced
    assert cache.get([tensor], total) == 15
    assert computed == [3, 6, 15]
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):  # start empty
        other.get([tensor], total)
    assert len(computed) == 5


def test_a_dictionary_without_a_table_cannot_be_made():
    class Half(Dictionary):
        def table(self) -> torch.Tensor:
            return torch.eye(2)

    with pytest.raises(TypeError, match="pairs_of"):
        Half()


def test_a_token_may_have_more_pairs_than_a_byte_counts():
    layer = AnchorEmbedding.from_codebook(ragged_codebook([1, 300, 2], anchors=400))
    assert layer.counts.tolist() == [1, 300, 2]
    assert layer.offsets.tolist() == [0, 1, 301]
