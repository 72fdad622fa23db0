import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ade.data.batches import DeviceTokens, padded_batches, shuffled_batches
from ade.data.tokens import Ragged, sorted_batches

CPU = torch.device("cpu")
TEXTS = [[5, 1, 2], [7], [4, 4, 4, 4, 4], [9, 8]]
LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=200).map(np.array)


@pytest.mark.parametrize("count", [None, 2])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"))])  # fmt: skip
def test_a_batch_holds_its_texts_and_padding(count, device):
    texts = Ragged.of(TEXTS)
    tokens = DeviceTokens(texts, torch.device(device), count)
    for rows in (np.arange(4), np.array([2]), np.array([3, 0, 2])):
        expected = [TEXTS[row][:count] for row in rows]
        ids, mask = tokens.padded(rows, fill=-1)
        assert [row[real].tolist() for row, real in zip(ids, mask, strict=True)] == expected
        assert ids.shape == (len(rows), max(map(len, expected)))
        assert (ids[~mask] == -1).all()
        assert ids.device.type == device
    if device == "cpu":
        assert tokens.ids.data_ptr() == texts.ids.ctypes.data  # nothing is copied
    assert tokens.padded(np.array([1]), length=16)[0].shape == (1, 16)


def test_every_text_is_in_one_batch_the_longest_first():
    batches = list(padded_batches(Ragged.of(TEXTS), CPU, tokens=6))
    assert [rows.tolist() for rows, _, _ in batches] == [[2], [0, 3], [1]]
    for rows, ids, mask in batches:
        assert [row[real].tolist() for row, real in zip(ids, mask, strict=True)] == [TEXTS[row] for row in rows]
    assert list(padded_batches(Ragged.of([]), CPU)) == []


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
