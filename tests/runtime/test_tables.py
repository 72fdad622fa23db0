"""Lookup tables: how wide they are, what they keep; tests/test_backends.py holds what they give against the method."""

import numpy as np
import pytest

from ade.errors import InputError
from ade.runtime.tables import LookupTables
from tests.models import random_model

DIM = 16  # and four heads


@pytest.mark.parametrize(
    ("shape", "widths", "outputs"),
    [
        ({"labels": 3}, (DIM, DIM, 4 * 4, 4), 3),  # a head's part of the scores
        ({"labels": 4}, (DIM, DIM, DIM, 5), 4),  # its value, which is no longer
        ({"sat": False}, (0, 0, 0, 4), 3),
        ({"layers": 2}, (DIM, DIM, DIM, 1 + DIM), 3),  # vectors for the layer after it
    ],
)
def test_columns_are_query_key_value_and_own_scores(shape, widths, outputs):
    tables = LookupTables(random_model(**shape))
    assert tuple(part.stop - part.start for part in tables.columns) == widths
    assert tables.columns.total == sum(widths) == tables.rows(np.arange(18)).shape[1]
    assert (tables.outputs, tables.dim) == (outputs, DIM)
    assert tables.position_rows(5).shape == (5, sum(widths))
    assert LookupTables(random_model(**shape, positions="none")).position_rows(5).shape == (1, sum(widths))


def test_attention_over_anchors_is_refused():
    with pytest.raises(InputError, match="lookup tables are for attention over tokens"):
        LookupTables(random_model(attend="anchors"))
