"""Coded tables read by numpy: the rows of the torch layer, whatever the shape; damaged arrays are refused."""

import numpy as np
import pytest
import torch
from hypothesis import given

from ade.errors import InputError
from ade.packing.coded import CodedRows, Stage, TableShape
from tests.compression.test_table import random_table, shapes

SMALL = TableShape(21, 8, 2, (Stage(4, 19), Stage(2, 5, shared=True)))


def arrays_of(table) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in table.state_dict().items()}


@given(shape=shapes())
def test_rows_are_those_of_the_layer(shape):
    table = random_table(shape, dtype=torch.float16)
    ids = np.random.default_rng(0).integers(0, shape.rows, 60)
    rows = CodedRows(shape.to_dict(), arrays_of(table)).of(ids)
    assert rows.dtype == np.float32
    assert np.allclose(rows, table(torch.from_numpy(ids)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["codes_1", "depths", "rotation"])
def test_arrays_of_another_shape_are_refused(name):
    arrays = arrays_of(random_table(SMALL))
    with pytest.raises(InputError, match=name):
        CodedRows(SMALL.to_dict(), {**arrays, name: arrays[name][..., :-1]})
    with pytest.raises(InputError, match=name):
        CodedRows(SMALL.to_dict(), {key: array for key, array in arrays.items() if key != name})


def test_depths_that_do_not_fit_the_shape_are_refused():
    arrays = arrays_of(random_table(SMALL))
    with pytest.raises(InputError, match="damaged"):
        CodedRows(SMALL.to_dict(), {**arrays, "depths": arrays["depths"] * 0})


def test_arrays_of_another_type_are_refused():
    arrays = arrays_of(random_table(SMALL))
    for name, kind in (("codes_0", np.float32), ("codes_0", np.int32), ("book_1", np.float32), ("mean", np.int64)):
        with pytest.raises(InputError, match=name):  # float codes could not be used as indices
            CodedRows(SMALL.to_dict(), {**arrays, name: arrays[name].astype(kind)})


@pytest.mark.parametrize(
    "change",
    [
        {"rows": True},
        {"exact": "2"},
        {"stages": [{"width": 4, "rows": 0}]},
        {"stages": [{"width": 3, "rows": 5}]},
        {"stages": [{"width": 8, "rows": 1}] * 15},
    ],
)
def test_numbers_that_do_not_fit_are_refused(change):
    with pytest.raises(InputError, match="cannot have the stages"):
        TableShape.from_dict({**SMALL.to_dict(), **change})
