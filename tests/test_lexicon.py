"""The lexicon: keys, storage and scores, against a slow reference that knows only dictionaries."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ade.errors import InputError
from ade.lexicon import Lexicon, LexiconShape, key_range, pack_keys, unpack, unpack_keys
from ade.lexicon_layer import LexiconLayer
from ade.packing.lexicon_packing import pack_lexicon
from ade.training.lexicon_loss import Ragged

VOCABULARY = 13
ONE = ("vocabulary", "dim", "anchors", "pairs", "most")
SCORES = {**dict.fromkeys(ONE, 1), "whole_8": 0, "whole_4": 0, "weight_bits": 4, "anchor_bits": 8}


def ragged(texts: list[list[int]]) -> Ragged:
    ids = np.array([token for text in texts for token in text], np.int32)
    return Ragged(ids, np.cumsum([0, *map(len, texts)]))


def some_lexicon(labels: int, seed: int = 0) -> Lexicon:
    draw = np.random.default_rng(seed)
    tokens = draw.permutation(VOCABULARY)[:8]
    pairs = VOCABULARY * (draw.integers(0, VOCABULARY, 60) + 1) + draw.integers(0, VOCABULARY, 60)
    keys = np.unique(np.concatenate([tokens, pairs]))
    idf = draw.uniform(1, 9, len(keys)).astype(np.float32)
    scores = draw.standard_normal((len(keys), labels)).astype(np.float32)
    return Lexicon(VOCABULARY, keys, idf, scores, draw.standard_normal(labels).astype(np.float32))


def slow_logits(lexicon: Lexicon, text: list[int]) -> np.ndarray:
    """The definition, entry by entry."""
    known = {int(key): i for i, key in enumerate(lexicon.keys)}
    keys = {*text, *(VOCABULARY * (a + 1) + b for a, b in pairwise(text))}
    entries = [known[key] for key in keys if key in known]
    norm = math.sqrt(sum(float(lexicon.idf[i]) ** 2 for i in entries))
    total = sum((lexicon.scores[i].astype(np.float64) for i in entries), np.zeros(len(lexicon.bias)))
    return lexicon.bias + (total / norm if entries else 0)


texts_strategy = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12), min_size=1, max_size=6)


@given(texts_strategy, st.integers(1, 5))
def test_scores_are_those_of_the_definition(texts, labels):
    lexicon = some_lexicon(labels)
    expected = np.stack([slow_logits(lexicon, text) for text in texts])
    np.testing.assert_allclose(lexicon.logits(*ragged(texts)), expected, rtol=1e-4, atol=1e-5)


@given(texts_strategy)
def test_the_layer_scores_as_numpy_does(texts):
    shape, arrays = pack_lexicon(some_lexicon(4), 1.0, np.full(len(some_lexicon(4)), 3), "single_label_classification")
    layer = LexiconLayer(shape.as_dict())
    layer.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    length = max(map(len, texts))
    ids = torch.tensor([text + [3] * (length - len(text)) for text in texts])  # padded with a token it knows
    mask = torch.tensor([[1] * len(text) + [0] * (length - len(text)) for text in texts]).bool()
    expected = unpack(shape, arrays).logits(*ragged(texts))
    np.testing.assert_allclose(layer(ids, mask).numpy(), expected, rtol=1e-4, atol=1e-5)


@given(st.sets(st.integers(0, key_range(VOCABULARY) - 1), min_size=1, max_size=60))
def test_keys_come_back_as_they_were_stored(keys):
    ascending = np.array(sorted(keys), np.int64)
    shape = LexiconShape(len(keys), VOCABULARY, SCORES)
    assert np.array_equal(unpack_keys(pack_keys(ascending, shape), shape), ascending)


@given(st.sets(st.integers(0, key_range(128_100) - 1), min_size=1, max_size=20))
def test_few_keys_of_a_large_vocabulary_come_back(keys):
    ascending = np.array(sorted(keys), np.int64)
    shape = LexiconShape(len(keys), 128_100, SCORES)
    assert np.array_equal(unpack_keys(pack_keys(ascending, shape), shape), ascending)


@pytest.mark.parametrize("labels", [1, 2, 4, 30])
def test_packed_scores_stay_close(labels):
    lexicon = some_lexicon(labels)
    shape, arrays = pack_lexicon(lexicon, 0.5, np.full(len(lexicon), 3), "multi_label_classification")
    found = unpack(shape, arrays)
    assert np.array_equal(found.keys, lexicon.keys)
    np.testing.assert_allclose(found.idf, lexicon.idf, atol=8 / 15 / 2 + 1e-3)
    alike = (found.scores * lexicon.scores).sum(1)
    alike /= np.linalg.norm(found.scores, axis=1) * np.linalg.norm(lexicon.scores, axis=1)
    assert alike.mean() > 0.8
    np.testing.assert_allclose(found.bias, 0.5 * lexicon.bias, rtol=1e-6)


def test_damaged_arrays_are_refused():
    lexicon = some_lexicon(3)
    shape, arrays = pack_lexicon(lexicon, 1.0, np.full(len(lexicon), 3), "single_label_classification")
    for name in ("keys_high", "bias", "scores.codes"):
        with pytest.raises(InputError):
            unpack(shape, {**arrays, name: arrays[name][:-1]})
    flipped = arrays["keys_high"].copy()
    flipped[0] ^= 255
    with pytest.raises(InputError, match="damaged"):
        unpack(shape, {**arrays, "keys_high": flipped})
