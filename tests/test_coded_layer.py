"""Packed tables: rows, products with all rows, ragged shapes, what is stored."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file, save_file

from ade.codebook import Stage, TableShape
from ade.coded_layer import FEW, PackedTable, TrainableTable
from ade.errors import InputError
from tests.models import coded_table, table_shapes


def random_table(shape: TableShape, seed: int = 0) -> PackedTable:
    return PackedTable.of_table(coded_table(shape, seed))


@given(shape=table_shapes(), seed=st.integers(0, 99))
def test_rows_and_products_agree_with_those_in_numpy(shape, seed):
    in_numpy = coded_table(shape, seed)
    table = PackedTable.of_table(in_numpy)
    table.check_depths()
    rows = table(torch.arange(shape.rows))
    assert np.allclose(in_numpy.rows(np.arange(shape.rows)), rows, rtol=1e-4, atol=1e-3)
    assert np.array_equal(table.to_table().arrays["depths"], in_numpy.arrays["depths"])
    depths = torch.from_numpy(np.stack([in_numpy.arrays["depths"] & 15, in_numpy.arrays["depths"] >> 4], 1).ravel())
    table.set_depths(depths[: shape.rows].clone(), torch.from_numpy(in_numpy.exact_rows))
    assert torch.equal(table(torch.arange(shape.rows)), rows)
    for count in (1, FEW, FEW + 1):  # by code, and by blocks
        hidden = torch.randn(count, shape.dim)
        assert torch.allclose(table.scores(hidden), hidden @ rows.T, rtol=1e-3, atol=1e-2)


def test_ids_of_any_shape_and_types_that_stay():
    table = random_table(TableShape(21, 8, 2, (Stage(4, 19), Stage(2, 5))))
    rows = table(torch.arange(21))
    assert torch.equal(table(torch.tensor(20)), rows[20])
    assert torch.equal(table(torch.tensor([[1, 1], [20, 0]])), rows[torch.tensor([[1, 1], [20, 0]])])
    assert table(torch.zeros(0, 3, dtype=torch.long)).shape == (0, 3, 8)
    assert table.scores(torch.randn(2, 3, 8)).shape == (2, 3, 21)
    for dtype in (torch.bfloat16, torch.float64):  # as a model is cast
        table.to(dtype)
        kinds = {array.dtype for array in table.state_dict().values()}
        assert kinds == {torch.float16, torch.float32, torch.int8, torch.uint8}
        assert torch.equal(table(torch.arange(21)), rows)


def test_saved_arrays_give_the_same_rows(tmp_path):
    shape = TableShape(33, 8, 3, (Stage(8, 30), Stage(4, 11, shared=True)), "bfloat16")  # which numpy lacks
    table = PackedTable(shape)
    table.fill(random_table(replace(shape, exact_type="float32")).state_dict())
    save_file(table.state_dict(), tmp_path / "table.safetensors")
    loaded = PackedTable(shape)
    loaded(torch.arange(33))  # what is kept from now on must not survive the loading
    loaded.load_state_dict(load_file(tmp_path / "table.safetensors"))
    assert torch.equal(loaded(torch.arange(33)), table(torch.arange(33)))
    loaded.depths[3] ^= 1
    with pytest.raises(InputError, match="damaged"):
        loaded.check_depths()


TRAINED = TableShape(40, 12, 3, (Stage(4, 37), Stage(2, 20, shared=True), Stage(3, 6)))
IDS = torch.arange(TRAINED.rows)


def test_a_trained_table_starts_with_the_rows_of_the_packed_table():
    packed = random_table(TRAINED)
    assert torch.allclose(TrainableTable(packed)(IDS), packed(IDS), rtol=1e-5, atol=1e-5)
    assert "rotation" not in dict(TrainableTable(packed, rotation=False).named_parameters())
    without_codes = TrainableTable(random_table(TableShape(9, 4, 3, ())))
    assert dict(without_codes.named_parameters())["exact"].dtype == torch.float32
    assert without_codes.packed().exact.dtype == torch.float16


def test_every_book_gets_gradients_and_they_are_those_of_the_rows():
    table = TrainableTable(random_table(TRAINED))
    wanted = torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    (table(IDS) * wanted).sum().backward()
    for book in (table.book_0, table.book_1, table.book_2):
        assert book.grad is not None
        assert (book.grad != 0).any()

    # The number that a small step of one entry changes the sum by.
    book, step = table.book_1, 1e-2
    at = tuple(int(i) for i in (book.grad.abs() == book.grad.abs().max()).nonzero()[0])
    with torch.no_grad():
        before = (table(IDS) * wanted).sum()
        book[at] += step
        after = (table(IDS) * wanted).sum()
    assert torch.isclose((after - before) / step, book.grad[at], rtol=0.02)
