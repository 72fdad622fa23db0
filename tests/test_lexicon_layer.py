"""The lexicon in PyTorch adds what it adds in numpy, whatever stands in the padding."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ade.data.tokens import Ragged
from ade.lexicon_layer import LexiconLayer, look_up
from tests.models import random_lexicon
from tests.test_lexicon import TEXTS, VOCABULARY


@given(TEXTS, st.integers(0, 3))
def test_a_padded_batch_gets_what_numpy_adds(texts, spare):
    lexicon = random_lexicon(VOCABULARY, 4)
    length = max(map(len, texts)) + spare
    known = int(lexicon.keys[0])
    ids = torch.tensor([text + [known] * (length - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (length - len(text)) for text in texts]).bool()
    expected = lexicon.added(Ragged.of(texts))
    np.testing.assert_allclose(LexiconLayer(lexicon)(ids, mask), expected, rtol=1e-4, atol=1e-5)


def test_entries_of_tokens_come_before_those_of_the_bigrams_that_start_with_them():
    lexicon = random_lexicon(VOCABULARY, 2)
    lexicon = lexicon.select(np.arange(len(lexicon) - 1))  # without the last of all bigrams
    ids, mask = torch.tensor([[2, 5, 12, 12, 2]]), torch.tensor([[True, True, True, True, False]])
    bigrams = [VOCABULARY * (first + 1) + second for first, second in ((2, 5), (5, 12), (12, 12))]
    place = {int(key): i for i, key in enumerate(lexicon.keys)}
    found = look_up(LexiconLayer(lexicon).tables(), ids, mask)
    assert found.tolist() == [[place.get(key, len(place)) for key in (2, 5, 12, 12, None, *bigrams, None, None)]]


def test_no_parameter_and_nothing_that_is_saved():
    layer = LexiconLayer(random_lexicon(VOCABULARY, 2))
    assert list(layer.parameters()) == []
    assert layer.state_dict() == {}
