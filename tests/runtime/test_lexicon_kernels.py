"""The lexicon's kernels equal the reference implementations, and those equal the lexicon."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ade.lexicon_layer import LexiconTables
from ade.runtime import lexicon_kernels as kernels
from tests.test_lexicon import ragged, some_lexicon, texts_strategy

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(kernels.triton is None, reason="there is no Triton for this platform")


def batch_of(texts: list[list[int]], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded to a length, with a token the lexicon knows."""
    ids = torch.tensor([text + [3] * (length - len(text)) for text in texts], dtype=torch.int32)
    return ids.to(DEVICE), torch.tensor([len(text) for text in texts], dtype=torch.int32, device=DEVICE)


@given(texts_strategy, st.integers(1, 5))
def test_the_reference_scores_as_the_lexicon_does(texts, labels):
    lexicon = some_lexicon(labels)
    tables = LexiconTables.of(lexicon, DEVICE)
    ids, lengths = batch_of(texts, 14)
    found = kernels.sum_distinct(tables, kernels.find_reference(tables, ids, lengths)).cpu().numpy()
    np.testing.assert_allclose(found, lexicon.logits(*ragged(texts)), rtol=1e-4, atol=1e-5)


@needs_triton
@settings(max_examples=10)
@given(texts_strategy, st.sampled_from([1, 3, 9]), st.sampled_from([12, 16, 37]))
def test_the_kernels_equal_the_reference(texts, labels, length):
    tables = LexiconTables.of(some_lexicon(labels), DEVICE)
    ids, lengths = batch_of(texts, length)
    entries = kernels.find_reference(tables, ids, lengths)
    assert torch.equal(kernels.find_entries(tables, ids, lengths), entries)
    assert torch.allclose(kernels.add_entries(tables, entries), kernels.sum_distinct(tables, entries), atol=1e-4)
