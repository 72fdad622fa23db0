"""A coded table in the place of a codebook, for tables of very many rows: books and short codes instead of pairs.

A dictionary of another kind: its entries are pieces of vectors rather than whole anchors, so tokens cannot be expanded
into anchors, and attention runs over tokens. It is found much faster than pairs are.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ade.compression.table import PackedTable
from ade.compression.trainable import TrainableTable
from ade.embedding import Dictionary
from ade.errors import InputError
from ade.packing.coded import NO_PAIRS, TableShape
from ade.packing.format import Packing


class CodedDictionary(Dictionary):
    """A coded table as a layer: its books are trained, or it is read as it is stored."""

    def __init__(self, shape: Mapping[str, Any], packed: bool) -> None:
        super().__init__()
        sizes = TableShape.from_dict(shape)
        self.coded = PackedTable(sizes) if packed else TrainableTable(sizes, rotation=False)

    def load(self, table: PackedTable) -> None:
        """Copy a table of the same shape into this layer."""
        assert isinstance(self.coded, TrainableTable)
        self.coded.load(table)

    def choose_trained(self, anchors: bool, weights: bool) -> None:
        """Choose whether books are trained, as anchors are; there are no weights."""
        assert isinstance(self.coded, TrainableTable)
        self.coded.books.requires_grad_(anchors)
        self.coded.mean_values.requires_grad_(anchors)
        self.coded.gain_values.requires_grad_(False)  # they stay 1: rows are not scored here

    def round_as_stored(self) -> bool:
        """Round the books to bytes: they are trained in float32."""
        assert isinstance(self.coded, TrainableTable)
        self.coded.load(self.coded.packed())
        return True

    def packed_arrays(self, packing: Packing) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the sizes and the arrays of the table with its books as bytes."""
        assert isinstance(self.coded, TrainableTable)
        table = self.coded.packed()
        return table.shape.to_dict(), {f"coded.{name}": array.numpy() for name, array in table.state_dict().items()}

    def check(self) -> None:
        """Raise `InputError` where stored arrays do not fit each other."""
        self.coded.check_depths()

    def compose(self, ids: Tensor) -> Tensor:
        """Return the rows of tokens (n,): (n, d)."""
        rows: Tensor = self.coded(ids)
        return rows

    def table(self) -> Tensor:
        """Refuse: there are no anchors."""
        raise InputError(NO_PAIRS)

    def pairs_of(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Refuse: there are no pairs."""
        raise InputError(NO_PAIRS)
