"""The kernels equal the reference implementations (interpreted without a GPU), which equal the lookup tables."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ade.runtime import kernels
from ade.runtime.kernels import DeviceTables, arrange
from ade.runtime.tables import Columns

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(kernels.triton is None, reason="there is no Triton for this platform")


def random_batch(heads: int, width: int, scores: int, batch: int, length: int) -> tuple[DeviceTables, Tensor, Tensor]:
    """Tables of 30 token types, ids (B, L) and lengths (B,)."""
    generator = torch.Generator().manual_seed(length)
    columns = Columns.of(heads * width, heads * scores, scores)
    plain = (torch.randn(count, columns.total, generator=generator) / 2 for count in (30, length))
    rows, positions = (arrange(table, columns, heads).to(DEVICE) for table in plain)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator).int()
    ids = torch.randint(0, 30, (batch, length), generator=generator).int()
    return DeviceTables(rows, positions, heads, width, scores), ids.to(DEVICE), lengths.to(DEVICE)


@needs_triton
@settings(max_examples=8)
@given(
    shape=st.sampled_from([(1, 16), (2, 16), (3, 32)]),
    scores=st.sampled_from([3, 5, 17]),
    batch=st.integers(1, 3),
    length=st.integers(1, 40),
)
def test_kernels_equal_the_reference(shape, scores, batch, length):
    tables, ids, lengths = random_batch(*shape, scores, batch, length)
    output = kernels.attend_reference(tables, ids, lengths)
    real = torch.arange(length, device=DEVICE) < lengths.unsqueeze(1)
    torch.testing.assert_close(kernels.attend(tables, ids, lengths)[real], output[real], rtol=0, atol=1e-4)
    expected = kernels.pool_reference(tables, ids, lengths, output)
    torch.testing.assert_close(kernels.pool(tables, ids, lengths, output), expected, rtol=0, atol=1e-4)


@needs_triton
def test_several_blocks_of_queries_and_keys(monkeypatch):
    monkeypatch.setattr(kernels, "MAX_BLOCK", 64)
    tables, ids, lengths = random_batch(1, 16, 4, 2, 150)
    lengths[0] = 150
    output = kernels.attend_reference(tables, ids, lengths)
    real = torch.arange(150, device=DEVICE) < lengths.unsqueeze(1)
    torch.testing.assert_close(kernels.attend(tables, ids, lengths)[real], output[real], rtol=0, atol=1e-4)
