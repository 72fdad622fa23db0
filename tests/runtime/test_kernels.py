"""The lexicon's kernels give what `LexiconLayer` gives; without a GPU they are interpreted."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from ade.embedding import LexiconLayer
from ade.runtime import kernels
from tests.models import random_lexicon
from tests.test_lexicon import TEXTS, VOCABULARY

pytestmark = pytest.mark.skipif(not kernels.available, reason="there is no Triton for this platform")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@settings(max_examples=10)
@given(TEXTS, st.sampled_from([1, 3, 9]), st.sampled_from([12, 16, 37]))
def test_scores_are_those_of_the_layer(texts, labels, length):
    lexicon = random_lexicon(VOCABULARY, labels)
    layer, known = LexiconLayer(lexicon).to(DEVICE), int(lexicon.keys[0])  # padding must not count, though it is known
    ids = torch.tensor([text + [known] * (length - len(text)) for text in texts], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([len(text) for text in texts], dtype=torch.int32, device=DEVICE)
    mask = torch.arange(length, device=DEVICE) < lengths[:, None]
    torch.testing.assert_close(kernels.lexicon_scores(layer, ids, lengths), layer(ids, mask), rtol=0, atol=1e-4)
