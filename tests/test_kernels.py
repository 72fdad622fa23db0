"""The kernels say what their twins say (interpreted where there is no GPU), and the twins what the model says."""

import numpy as np
import pytest
import torch
from conftest import ragged_codebook
from hypothesis import given, settings
from hypothesis import strategies as st
from test_projection import folded, reference, shaken, texts_of

from ade import accelerated, kernels
from ade.accelerated import Accelerated, bucketed
from ade.batching import Encoded
from ade.kernels import Elements, Folded

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(kernels.triton is None, reason="there is no Triton for this platform")


def random_batch(heads: int, width: int, scores: int, batch: int, length: int) -> tuple[Folded, Elements]:
    generator = torch.Generator().manual_seed(length)
    columns = 2 * heads * width + heads * scores + scores
    rows, places = (torch.randn(count, columns, generator=generator) / 2 for count in (30, length))
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    position = torch.arange(length).repeat(batch, 1)
    absent = (position >= lengths.unsqueeze(1)) | (torch.rand(batch, length, generator=generator) < 0.2)
    absent[:, 0] = False
    index = torch.randint(0, 30, (batch, length), generator=generator)
    scale = torch.randn(batch, length, generator=generator)
    moved = (index.int(), torch.where(absent, -1, position).int(), scale, lengths.int())
    return Folded(rows.to(DEVICE), places.to(DEVICE), heads, width, scores), Elements(*(t.to(DEVICE) for t in moved))


@needs_triton
@settings(max_examples=8)
@given(
    shape=st.sampled_from([(1, 16), (2, 16), (3, 32)]),
    scores=st.sampled_from([3, 5, 17]),
    batch=st.integers(1, 3),
    length=st.integers(1, 40),
)
def test_kernels_equal_their_twins(shape, scores, batch, length):
    tables, elements = random_batch(*shape, scores, batch, length)
    heard = kernels.attend_plainly(tables, elements)
    real = (elements.position >= 0)[:, None, :, None].expand_as(heard)
    found = kernels.attend(tables, elements)
    assert torch.allclose(found[real], heard[real], atol=1e-4)
    expected = kernels.pool_plainly(tables, elements, heard)
    assert torch.allclose(kernels.pool(tables, elements, heard), expected, atol=1e-4)


@needs_triton
def test_several_blocks_of_queries_and_keys():
    tables, elements = random_batch(1, 16, 4, 2, 150)
    heard = kernels.attend_plainly(tables, elements)
    real = (elements.position >= 0)[:, None, :, None].expand_as(heard)
    assert torch.allclose(kernels.attend(tables, elements)[real], heard[real], atol=1e-4)


@pytest.mark.parametrize("positions", ["grouped", "each", "none"])
@pytest.mark.parametrize("attend", ["tokens", "anchors"])
@pytest.mark.parametrize("by_kernel", [False, pytest.param(True, marks=needs_triton)])
def test_the_tables_on_a_device_equal_the_model(attend, positions, by_kernel, monkeypatch):
    if by_kernel:
        monkeypatch.setattr(accelerated, "class_scores", lambda f, e: kernels.pool(f, e, kernels.attend(f, e)))
    model = shaken(ragged_codebook([1, 3, 2, 4] * 5, dim=32), 3, attend=attend, positions=positions, heads=2)
    ids, offsets = texts_of([5, 1, 18, 7], 20)
    projection = folded(model)
    assert Accelerated.fits(projection)
    found = Accelerated(projection, DEVICE, torch.float32).logits(Encoded(torch.from_numpy(ids), offsets))
    assert np.abs(found - reference(model, ids, offsets)).max() < 1e-4
    if by_kernel and DEVICE.type == "cpu":
        return  # the interpreter has no bfloat16
    narrow = Accelerated(projection, DEVICE, torch.bfloat16).logits(Encoded(torch.from_numpy(ids), offsets))
    assert np.abs(narrow - found).max() < 0.03 * np.abs(found).max()  # eight bits of mantissa


@pytest.mark.parametrize("shape", [{"attend": "gated"}, {"sat": False}, {"pooling": "mean"}, {"labels": 40}])
def test_other_models_are_left_to_themselves(shape):
    labels = shape.pop("labels", 3)
    model = shaken(ragged_codebook([1, 2], dim=32), labels, **{"attend": "tokens", "heads": 2, **shape})
    assert not Accelerated.fits(folded(model))


def test_lengths_are_bucketed():
    assert [bucketed(n) for n in (1, 16, 17, 128, 129, 512)] == [16, 16, 32, 128, 192, 512]
