"""Packed tables: rows, products with all rows, ragged shapes, what is stored."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ade.compression.table import FEW, PackedTable, type_name
from ade.errors import InputError
from ade.packing.coded import ENTRIES, WHOLE, Stage, TableShape


def random_table(shape: TableShape, seed: int = 0, dtype: torch.dtype = torch.float32) -> PackedTable:
    """A table of this shape with random arrays; ids are in no order."""
    generator = torch.Generator().manual_seed(seed)
    table = PackedTable(shape, dtype)
    for name, (size, type_) in shape.arrays(type_name(dtype)).items():
        kind = getattr(torch, type_)
        if kind.is_floating_point:
            array = torch.randn(size, generator=generator) * (0.01 if "scale" in name else 1)
        else:
            low, high = (0, 256) if kind == torch.uint8 else (-127, 128)
            array = torch.randint(low, high, size, generator=generator)
        table.fill({name: array.to(kind)})
    order = torch.randperm(shape.rows, generator=generator)
    depths = torch.zeros(shape.rows, dtype=torch.long)
    for stage in shape.stages:
        depths[order[shape.exact : shape.exact + stage.rows]] += 1
    table.set_depths(depths, order[: shape.exact])
    return table


def plain_rows(table: PackedTable) -> torch.Tensor:
    """The rows by the formula, one by one."""
    shape, found = table.shape, []
    for row, slot in enumerate(table.slots().tolist()):
        depth = int(table.depths[row // 2] >> (4 * (row % 2))) & 15
        if depth == WHOLE:
            found.append(table.exact[slot].float())
            continue
        total = torch.zeros(shape.dim)
        for number, stage in enumerate(shape.stages[:depth]):
            codes = table.get_buffer(f"codes_{number}")[:, slot - shape.exact].tolist()
            books = table.book(number)
            total += torch.cat([books[piece, code] for piece, code in enumerate(codes)])
            assert len(codes) * stage.width == shape.dim
        gain = table.gains[depth - 1] if depth else 1
        found.append(table.mean + total * gain @ table.directions())
    return torch.stack(found)


@st.composite
def shapes(draw: st.DrawFn) -> TableShape:
    """Shapes of any vocabulary, with stages for ever fewer rows, down to none."""
    dim = draw(st.sampled_from([1, 6, 8, 12]))
    rows = draw(st.integers(1, 41))
    exact = draw(st.integers(0, rows))
    widths = [n for n in range(1, dim + 1) if dim % n == 0]
    left, stages = rows - exact, []
    for _ in range(draw(st.integers(0, 4))):
        left = draw(st.integers(0, left))
        if left:
            stages.append(Stage(draw(st.sampled_from(widths)), left, draw(st.booleans())))
    return TableShape(rows, dim, exact, tuple(stages))


@given(shape=shapes(), seed=st.integers(0, 99))
def test_rows_and_products_agree_with_the_formula(shape, seed):
    table = random_table(shape, seed)
    table.check_depths()
    rows = table(torch.arange(shape.rows))
    assert torch.allclose(rows, plain_rows(table), rtol=1e-4, atol=1e-3)
    for count in (1, FEW, FEW + 1):  # by code, and by blocks
        hidden = torch.randn(count, shape.dim)
        assert torch.allclose(table.scores(hidden), hidden @ rows.T, rtol=1e-3, atol=1e-2)


@given(shape=shapes())
def test_bytes_are_those_of_the_arrays_and_the_shape_survives_json(shape):
    table = PackedTable(shape, torch.float16)
    assert shape.nbytes() == sum(array.numel() * array.element_size() for array in table.state_dict().values())
    assert TableShape.from_dict(shape.to_dict()) == shape


def test_ids_of_any_shape():
    table = random_table(TableShape(21, 8, 2, (Stage(4, 19), Stage(2, 5))))
    rows = table(torch.arange(21))
    assert torch.equal(table(torch.tensor(20)), rows[20])
    assert torch.equal(table(torch.tensor([[1, 1], [20, 0]])), rows[torch.tensor([[1, 1], [20, 0]])])
    assert table(torch.zeros(0, 3, dtype=torch.long)).shape == (0, 3, 8)
    assert table.scores(torch.randn(2, 3, 8)).shape == (2, 3, 21)


def test_saved_arrays_give_the_same_rows(tmp_path):
    shape = TableShape(33, 8, 3, (Stage(8, 30), Stage(4, 11, shared=True)))
    table = random_table(shape, dtype=torch.bfloat16)
    save_file(table.state_dict(), tmp_path / "table.safetensors")
    loaded = PackedTable(shape, torch.bfloat16)
    loaded(torch.arange(33))  # what is kept from now on must not survive the loading
    loaded.load_state_dict(load_file(tmp_path / "table.safetensors"))
    assert torch.equal(loaded(torch.arange(33)), table(torch.arange(33)))


def test_a_table_keeps_its_types_when_a_model_is_cast():
    table = random_table(TableShape(21, 8, 2, (Stage(4, 19),)))
    before = table(torch.arange(21))
    for dtype in (torch.bfloat16, torch.float64):
        table.to(dtype)
        assert {array.dtype for array in table.buffers()} == {torch.float32, torch.int8, torch.uint8}
        assert torch.equal(table(torch.arange(21)), before)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": -1},
        {"exact": 50},
        {"dim": 0},
        {"stages": [{"width": 3, "rows": 9, "shared": False}]},
        {"stages": [{"width": 4, "rows": 40, "shared": False}]},
        {"stages": [{"width": 4, "rows": 4, "shared": False}, {"width": 4, "rows": 5, "shared": False}]},
        {"stages": [{"width": "4", "rows": 4}]},
        {"stages": 7},
    ],
)
def test_a_shape_that_cannot_be_is_refused(change):
    shape = TableShape(21, 8, 2, (Stage(4, 19),)).to_dict()
    TableShape.from_dict(shape)
    with pytest.raises(InputError, match="packed table"):
        TableShape.from_dict(shape | change)


def test_rows_with_other_stages_than_the_shape_says_are_refused():
    table = random_table(TableShape(21, 8, 2, (Stage(4, 19), Stage(2, 5))))
    table.check_depths()
    table.depths[3] ^= 1
    with pytest.raises(InputError, match="damaged"):
        table.check_depths()


def test_books_have_a_byte_of_entries():
    assert ENTRIES == 2**8
