import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ade.data.batches import encode, shuffled_batches, sorted_batches
from tests.conftest import word_tokenizer

TOKENIZER = word_tokenizer(["a", "b", "c"])
LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=200).map(np.array)


def test_texts_come_back_as_they_were():
    texts = ["a b c", "", "c", "a " * 40, "   "]
    encoded = encode(TOKENIZER, texts, max_length=10)
    assert encoded.lengths.tolist() == [3, 1, 1, 10, 1]
    ids, mask = encoded.padded(np.array([3, 0, 1]))
    assert ids.shape == (3, 10)
    assert ids[1, :3].tolist() == TOKENIZER.encode("a b c").ids
    assert mask.sum(1).tolist() == [10, 3, 1]
    assert ids[~mask].abs().max() == 0
    assert TOKENIZER.truncation is None  # the caller's tokenizer is left as it was


def test_truncated_texts_share_the_ids():
    whole = encode(TOKENIZER, ["a b c", "", "c a b a", "b"], max_length=10)
    short = whole.first(2)
    assert short.ids is whole.ids
    assert short.lengths.tolist() == [2, 1, 2, 1]
    again = encode(TOKENIZER, ["a b c", "", "c a b a", "b"], max_length=2)
    for rows in (np.arange(4), np.array([2]), np.array([3, 0])):
        for one, two in zip(short.padded(rows), again.padded(rows), strict=True):
            assert torch.equal(one, two)
    moved = short.to(torch.device("meta"))  # where the others are not needed, they are left behind
    assert moved.ids.shape == again.ids.shape
    assert np.array_equal(moved.offsets, again.offsets)


def test_texts_are_taken_by_number():
    whole = encode(TOKENIZER, ["a b c", "", "c a b a", "b"], max_length=10)
    for texts in (whole, whole.first(2)):
        taken = texts.take(np.array([2, 0, 2]))
        for one, two in zip(taken.padded(np.arange(3)), texts.padded(np.array([2, 0, 2])), strict=True):
            assert torch.equal(one, two)
    assert len(whole.take(np.array([], np.int64))) == 0


def test_no_texts():
    encoded = encode(TOKENIZER, [], max_length=10)
    assert len(encoded) == 0
    assert list(sorted_batches(encoded.lengths)) == []


@given(lengths=LENGTHS, size=st.integers(1, 70), seed=st.integers(0, 99))
def test_an_epoch_has_every_row_once(lengths, size, seed):
    batches = shuffled_batches(lengths, size, seed)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert max(map(len, batches)) <= size
    assert len(batches) == -(-len(lengths) // size)
    again = shuffled_batches(lengths, size, seed)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


@given(lengths=LENGTHS, tokens=st.integers(1, 400))
def test_evaluation_batches_hold_every_row_and_no_more_tokens_than_asked(lengths, tokens):
    batches = list(sorted_batches(lengths, tokens))
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * lengths[rows].max() <= tokens


def test_batches_waste_little_padding():
    lengths = np.random.default_rng(0).integers(5, 200, 5000)
    padded = sum(len(rows) * lengths[rows].max() for rows in shuffled_batches(lengths, 32, 0))
    assert padded < 1.1 * lengths.sum()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_are_cut_on_the_device():
    encoded = encode(TOKENIZER, ["a b", "c"], 10).to(torch.device("cuda"))
    ids, mask = encoded.padded(np.array([1, 0]))
    assert ids.is_cuda
    assert mask.tolist() == [[True, False], [True, True]]
