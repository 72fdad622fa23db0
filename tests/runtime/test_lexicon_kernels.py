"""The lexicon's kernels equal the reference implementations, and those equal the lexicon."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ade.data.tokens import Ragged
from ade.embedding import LexiconLayer
from ade.runtime import lexicon_kernels as kernels
from tests.models import random_lexicon
from tests.test_lexicon import TEXTS, VOCABULARY

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(kernels.triton is None, reason="there is no Triton for this platform")


def tables_of(labels: int) -> LexiconLayer:
    return LexiconLayer(random_lexicon(VOCABULARY, labels)).to(DEVICE)


def batch_of(texts: list[list[int]], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded to a length, with a token the lexicon knows."""
    known = int(random_lexicon(VOCABULARY, 1).keys[0])
    ids = torch.tensor([text + [known] * (length - len(text)) for text in texts], dtype=torch.int32)
    return ids.to(DEVICE), torch.tensor([len(text) for text in texts], dtype=torch.int32, device=DEVICE)


@given(TEXTS, st.integers(1, 5))
def test_scores_are_those_of_the_lexicon(texts, labels):
    found = kernels.lexicon_scores(tables_of(labels), *batch_of(texts, 14)).cpu()
    np.testing.assert_allclose(found, random_lexicon(VOCABULARY, labels).added(Ragged.of(texts)), rtol=1e-4, atol=1e-5)


@needs_triton
@settings(max_examples=10)
@given(TEXTS, st.sampled_from([1, 3, 9]), st.sampled_from([12, 16, 37]))
def test_the_kernels_equal_the_reference(texts, labels, length):
    tables, (ids, lengths) = tables_of(labels), batch_of(texts, length)
    entries = kernels.find_reference(tables, ids, lengths)
    assert torch.equal(kernels.find_entries(tables, ids, lengths), entries)
    torch.testing.assert_close(kernels.add_entries(tables, entries), tables.added(entries), rtol=0, atol=1e-4)
