"""A coded table: rows that stay whole, and rows as sums of codes of short pieces; its shape, and a reader in numpy.

    row = mean + (book_1[codes_1] + book_2[codes_2] + ...) * gains[stages] @ rotation

A stage cuts the rotated row into pieces of `width` numbers and keeps, for each, the index of an entry of a book. The
first stages have few bits a weight and nearly all rows have them; later ones refine what is left of the rows that are
used most. Rows are kept in order of their number of stages, so that stage j covers the first `rows_j` of them. Codes
are means of what they stand for, so rows come out shorter than they were; gains can lengthen those of so many stages.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ade.arrays import Array
from ade.errors import InputError

ENTRIES = 256  # of a book: an index is a byte
WHOLE = 15  # the depth of a row that stays whole
TABLE_FILE = "table.json"  # that a folder of a table in codes has
NO_PAIRS = "the table of this model is coded: it has no anchors, and its tokens no weights"
ITEMSIZE = {"uint8": 1, "int8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Stage:
    """One stage: `width` numbers a code, for the first `rows` rows; a book for each piece, or one for all."""

    width: int
    rows: int
    shared: bool = False


@dataclass(frozen=True)
class TableShape:
    """All that says how large the arrays of a coded table are."""

    rows: int
    dim: int
    exact: int  # rows that stay whole
    stages: tuple[Stage, ...]

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "TableShape":
        """Read what `to_dict` wrote; raises InputError if it is not a shape."""
        try:
            stages = tuple(Stage(**stage) for stage in given["stages"])
            shape = cls(given["rows"], given["dim"], given["exact"], stages)
        except (KeyError, TypeError) as error:
            raise InputError(f"not the shape of a packed table: {error}") from error
        shape.check()
        return shape

    def to_dict(self) -> dict[str, Any]:
        """Return the shape as JSON."""
        return {**asdict(self), "stages": [asdict(stage) for stage in self.stages]}

    def check(self) -> None:
        """Raise InputError unless the numbers fit each other."""
        numbers = (self.rows, self.dim, self.exact, *(n for stage in self.stages for n in (stage.width, stage.rows)))
        whole = all(type(number) is int and number >= 0 for number in numbers) and len(self.stages) < WHOLE
        if not whole or not self._fits():
            raise InputError(f"a packed table of {self.rows} x {self.dim} cannot have the stages {self.stages}")

    def _fits(self) -> bool:
        if self.dim < 1 or self.exact > self.rows:
            return False
        counts = [self.rows - self.exact, *(stage.rows for stage in self.stages)]
        fewer = all(before >= after > 0 for before, after in pairwise(counts))
        return fewer and all(stage.width > 0 and self.dim % stage.width == 0 for stage in self.stages)

    def ranges(self) -> list[tuple[int, int]]:
        """Return first and end of the places, among the coded rows, of those that have 1, 2, ... stages."""
        counts = [stage.rows for stage in self.stages]
        return list(zip([*counts[1:], 0], counts, strict=True)) if counts else []

    def check_depths(self, depths: Array) -> None:
        """Raise InputError unless the stored numbers of stages (rows,) are those that the shape says."""
        counts = [int(((depths > number) & (depths < WHOLE)).sum()) for number in range(len(self.stages))]
        if int((depths == WHOLE).sum()) != self.exact or counts != [stage.rows for stage in self.stages]:
            raise InputError("a packed table whose rows have other stages than its shape says: the file is damaged")

    def arrays(self, exact: str = "float16") -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of every stored array; whole rows have the type `exact`."""
        found: dict[str, tuple[tuple[int, ...], str]] = {
            "depths": ((-(-self.rows // 2),), "uint8"),
            "exact": ((self.exact, self.dim), exact),
            "mean": ((self.dim,), "float32"),
            "rotation": ((self.dim, self.dim), "int8"),
            "rotation_scale": ((self.dim, 1), "float32"),
            "gains": ((len(self.stages),), "float32"),  # of rows of 1, 2, ... stages
        }
        for number, stage in enumerate(self.stages):
            pieces = self.dim // stage.width
            found[f"codes_{number}"] = ((pieces, stage.rows), "uint8")
            found[f"book_{number}"] = ((1 if stage.shared else pieces, ENTRIES, stage.width), "int8")
            found[f"scale_{number}"] = ((pieces, 1, 1), "float32")
        return found

    def nbytes(self, exact: str = "float16") -> int:
        """Bytes of every stored array."""
        return sum(prod(size) * ITEMSIZE[kind] for size, kind in self.arrays(exact).values())


class CodedRows:
    """The rows of a stored coded table, decoded as they are read. In place of pairs: there are no anchors."""

    max_pairs = 0

    def __init__(self, given: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Take the shape as JSON has it and the arrays by name; raises InputError unless they fit each other."""
        self.shape = TableShape.from_dict(given)
        self.vocabulary, self.dim = self.shape.rows, self.shape.dim
        for name, (size, kind) in self.shape.arrays().items():
            array = arrays.get(name)
            alike = array is not None and (array.dtype == kind or array.dtype.kind == np.dtype(kind).kind == "f")
            if array is None or array.shape != size or not alike:
                raise InputError(f"a packed table whose array {name} is not {kind} of the shape {size}: damaged")

        depths = np.stack([arrays["depths"] & 15, arrays["depths"] >> 4], 1).ravel()[: self.vocabulary]
        self.shape.check_depths(depths)
        self.place = np.empty(self.vocabulary, np.int32)  # whole rows first, then by falling number of stages
        self.place[np.argsort(-depths.astype(np.int8), kind="stable")] = np.arange(self.vocabulary, dtype=np.int32)

        stages = range(len(self.shape.stages))
        self._codes = [arrays[f"codes_{number}"] for number in stages]
        self._books = [arrays[f"book_{number}"] * arrays[f"scale_{number}"] for number in stages]  # (pieces, E, width)
        self._rotation = arrays["rotation"] * arrays["rotation_scale"]
        self._mean, self._exact, self._gains = arrays["mean"], arrays["exact"].astype(np.float32), arrays["gains"]

    def anchors(self) -> np.ndarray:
        """Every anchor: none, (0, d)."""
        return np.empty((0, self.dim), np.float32)

    def of(self, types: np.ndarray) -> np.ndarray:
        """Return the rows of token types (n,): (n, d), float32."""
        place = self.place[types] - self.shape.exact  # among the coded rows
        total, depth = np.zeros((len(types), self.dim), np.float32), np.zeros(len(types), np.int64)
        for stage, codes, book in zip(self.shape.stages, self._codes, self._books, strict=True):
            has = place < stage.rows
            has &= place >= 0
            pieces = np.arange(len(book))
            total[has] += book[pieces, codes[:, place[has]].T].reshape(-1, self.dim)
            depth += has
        total *= np.append(self._gains, np.float32(1))[depth - 1][:, None]
        rows = total @ self._rotation + self._mean

        whole = place < 0
        rows[whole] = self._exact[place[whole] + self.shape.exact]
        return rows
