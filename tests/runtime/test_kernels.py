"""The kernels equal the reference implementations (interpreted without a GPU), and those equal the model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ade.data.batches import Encoded
from ade.runtime import kernels
from ade.runtime.gpu import GpuModel, bucketed, unsupported
from ade.runtime.gpu_tables import DeviceTables, Elements, arrange
from ade.runtime.tables import Columns
from tests.conftest import ragged_codebook
from tests.runtime.test_projection import folded, off, reference, shaken, texts_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(kernels.triton is None, reason="there is no Triton for this platform")


def random_batch(heads: int, width: int, scores: int, batch: int, length: int) -> tuple[DeviceTables, Elements]:
    generator = torch.Generator().manual_seed(length)
    columns = Columns.of(heads * width, heads * scores, scores, 0)
    plain = (torch.randn(count, columns.total, generator=generator) / 2 for count in (30, length))
    rows, positions = (arrange(table, columns, heads).to(DEVICE) for table in plain)
    tables = DeviceTables(rows, positions, heads, width, scores, scores)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator).int()
    index = torch.randint(0, 30, (batch, length), generator=generator).int()
    return tables, Elements(lengths.to(DEVICE), tables.rows, index.to(DEVICE))


def there(lengths: torch.Tensor, length: int) -> torch.Tensor:
    """Which elements are real: (B, T)."""
    return torch.arange(length, device=DEVICE) < lengths.unsqueeze(1)


@needs_triton
@settings(max_examples=8)
@given(
    shape=st.sampled_from([(1, 16), (2, 16), (3, 32)]),
    scores=st.sampled_from([3, 5, 17]),
    batch=st.integers(1, 3),
    length=st.integers(1, 40),
    laid_out=st.booleans(),
)
def test_kernels_equal_the_reference(shape, scores, batch, length, laid_out):
    tables, elements = random_batch(*shape, scores, batch, length)
    if laid_out:
        elements = Elements(elements.lengths, tables.rows[elements.index.long()])
    output, real = kernels.attend_reference(tables, elements), there(elements.lengths, length)
    assert torch.allclose(kernels.attend(tables, elements)[real], output[real], atol=1e-4)
    expected = kernels.pool_reference(tables, elements, output)
    assert torch.allclose(kernels.pool(tables, elements, output), expected, atol=1e-4)


@needs_triton
def test_several_blocks_of_queries_and_keys(monkeypatch):
    monkeypatch.setattr(kernels, "blocks_of", lambda length, gathered: (64, 32, 4, 1))
    tables, elements = random_batch(1, 16, 4, 2, 150)
    output, real = kernels.attend_reference(tables, elements), there(elements.lengths, 150)
    assert torch.allclose(kernels.attend(tables, elements)[real], output[real], atol=1e-4)


@needs_triton
@settings(max_examples=8)
@given(counts=st.lists(st.integers(1, 9), min_size=2, max_size=9), length=st.integers(1, 20), grouped=st.booleans())
def test_texts_are_expanded_and_gated_as_in_the_reference(counts, length, grouped):
    model = shaken(ragged_codebook(counts, dim=32), 3, attend="gated", heads=2)
    fast = GpuModel(folded(model).tables, DEVICE, torch.float32).tables
    rows = torch.randn(len(fast.gates.bias), fast.rows.shape[1], generator=torch.Generator().manual_seed(0)).to(DEVICE)
    tables = replace(fast, rows=rows, grouped_positions=grouped)
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, len(counts), (3, length), generator=generator).int().to(DEVICE)
    lengths = torch.randint(1, length + 1, (3,), generator=generator).int().to(DEVICE)
    expected, found = (make(tables, ids, lengths) for make in (kernels.expand_reference, kernels.expand))
    assert torch.equal(found.lengths, expected.lengths)
    real = there(expected.lengths, expected.rows.shape[1])
    assert torch.allclose(found.rows[real], expected.rows[real], atol=1e-5)
    readout = torch.randn(3 * length, tables.gates.readout.shape[1], generator=generator).to(DEVICE)
    both = (make(tables, ids, readout) for make in (kernels.recompose_reference, kernels.recompose))
    assert torch.allclose(*both, atol=1e-4)


@pytest.mark.parametrize("positions", ["grouped", "each", "none"])
@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
@pytest.mark.parametrize("by_kernel", [False, pytest.param(True, marks=needs_triton)])
def test_the_tables_on_a_device_equal_the_model(attend, positions, by_kernel, monkeypatch):
    if by_kernel:
        for step in ("expand", "attend", "recompose", "pool"):
            monkeypatch.setattr(kernels, f"{step}_reference", getattr(kernels, step))
    model = shaken(ragged_codebook([1, 3, 2, 4] * 5, dim=32), 3, attend=attend, positions=positions, heads=2)
    ids, offsets = texts_of([5, 1, 18, 7], 20)
    tables = folded(model).tables
    assert unsupported(tables) is None
    fast, texts = GpuModel(tables, DEVICE, torch.float32), Encoded(torch.from_numpy(ids), offsets)
    for _ in range(3):  # on a GPU the second time is recorded, the third replayed
        found = fast.logits(texts)
        assert off(found, reference(model, ids, offsets)) < 1e-4
    if by_kernel and DEVICE.type == "cpu":
        return  # the interpreter has no bfloat16
    narrow = GpuModel(tables, DEVICE, torch.bfloat16).logits(texts)
    assert np.abs(narrow - found).max() < 0.03 * np.abs(found).max()  # eight bits of mantissa


def test_graphs_are_replayed_with_what_they_are_given():
    """On a GPU from recorded graphs, elsewhere not: the same shape again and again, each time other texts."""
    model = shaken(ragged_codebook([1, 3, 2, 4] * 5, dim=32), 3, attend="gated", heads=2)
    fast = GpuModel(folded(model).tables, DEVICE, torch.float32)
    for seed, lengths in enumerate(([5, 1, 18, 7], [18, 18, 2, 9], [17, 3, 3, 3], [20, 1, 1, 30])):
        ids, offsets = texts_of(lengths, 20, seed)
        found = fast.logits(Encoded(torch.from_numpy(ids), offsets))
        assert off(found, reference(model, ids, offsets)) < 1e-4


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ({"sat": False}, "no attention"),
        ({"pooling": "mean"}, "pools by the mean"),
        ({"attend": "gated", "layers": 2}, "several layers"),
        ({"labels": 40}, "more labels"),
        ({"heads": 4}, "width of its heads"),
        ({"max_tokens": 10**6}, "too long"),
    ],
)
def test_models_the_kernels_cannot_run_are_named(shape, reason):
    labels = shape.pop("labels", 3)
    model = shaken(ragged_codebook([1, 2], dim=32), labels, **{"attend": "tokens", "heads": 2, **shape})
    assert reason in unsupported(folded(model).tables)


def test_lengths_are_bucketed():
    assert [bucketed(n) for n in (1, 16, 17, 128, 129, 512)] == [16, 16, 32, 128, 192, 512]
