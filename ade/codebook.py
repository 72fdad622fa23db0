"""The table of a model in numpy: a codebook, or a coded table. Token ids become rows; nothing else asks for the kind.

A codebook is shared anchors and, for each token, a few (index, weight) pairs (the paper's Vocabulary Projection). The
pairs of all tokens are stored one after the other, so tokens may have any number of pairs, at least one. Anchors of a
distilled codebook have norm one; the composed rows, too, unless it was made for a size.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ade import plain
from ade.errors import InputError
from ade.packing.format import PackedSizes, Packing, Pairs, check_arrays, check_finite, pack, unpack

BLOCK = 4096  # rows composed at once
ITEMSIZE = {"uint8": 1, "int8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
ENTRIES = 256  # of a book: an index is a byte
WHOLE = 15  # the depth of an exact row
Stored = tuple[dict[str, Any], dict[str, np.ndarray]]  # sizes, ready for JSON, and arrays by name


@dataclass(frozen=True, eq=False)
class Codebook(plain.Pairs):
    """Anchors A, and for token i the pairs (I_i, beta_i) with k_i = counts[i] >= 1; float32 and int32."""

    packing: Packing | None = None  # in how many bits it is stored; None for full precision

    def __post_init__(self) -> None:
        for name, kind in (("anchors", "float32"), ("indices", "int32"), ("weights", "float32"), ("counts", "int32")):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), kind))
        if len(self.counts) == 0 or self.counts.min() < 1:
            raise InputError("every token needs at least one pair")
        pairs = int(self.counts.sum(dtype=np.int64))
        if not len(self.indices) == len(self.weights) == pairs:
            raise InputError(f"{len(self.indices)} indices, {len(self.weights)} weights, the counts add up to {pairs}")
        if self.indices.min() < 0 or self.indices.max() >= len(self.anchors):
            raise InputError(f"an index lies outside the {len(self.anchors)} anchors")
        for name in ("anchors", "weights"):
            check_finite(name, getattr(self, name))

    def __repr__(self) -> str:
        pairs = len(self.indices) / self.vocabulary
        return f"Codebook({self.vocabulary:,} tokens, {len(self.anchors):,} anchors, {pairs:.1f} pairs, d={self.dim})"

    @property
    def vocabulary(self) -> int:
        """N, the number of tokens."""
        return len(self.counts)

    @property
    def dim(self) -> int:
        """d, the width of an anchor."""
        return int(self.anchors.shape[1])

    @property
    def max_pairs(self) -> int:
        """The largest number of pairs of any token."""
        return int(self.counts.max())

    @cached_property
    def starts(self) -> np.ndarray:
        """Position of each token's first pair: (N,) int64."""
        return np.cumsum(self.counts, dtype=np.int64) - self.counts

    def padded(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return anchors and weights of tokens (n,), padded with weight 0, and a mask of the real ones: each (n, k)."""
        counts = self.counts[ids]
        real = np.arange(counts.max(initial=1)) < counts[:, None]
        slot = (self.starts[ids][:, None] + np.arange(real.shape[1])) * real
        return self.indices[slot], self.weights[slot] * real, real

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return the composed rows of tokens (n,), the weighted sums of their anchors: (n, d) float32."""
        index, weight, real = self.padded(np.asarray(ids))
        rows = self.anchors[index[:, 0]] * weight[:, :1]
        for j in range(1, index.shape[1]):
            has = real[:, j]
            rows[has] += self.anchors[index[has, j]] * weight[has, j : j + 1]
        return rows

    def blocks(self, size: int = BLOCK) -> Iterator[np.ndarray]:
        """Yield all composed rows in blocks of `size`; the whole table is never built."""
        for start in range(0, self.vocabulary, size):
            yield self.rows(np.arange(start, min(start + size, self.vocabulary)))

    def normalised(self) -> "Codebook":
        """Return the codebook with anchors and weights scaled so that its composed rows have unit variance."""
        norm = np.concatenate([np.linalg.norm(rows, axis=1) for rows in self.blocks()])  # (N,)
        weights = self.weights / np.repeat(np.maximum(norm, 1e-6), self.counts)
        return Codebook(self.anchors * np.float32(self.dim**0.5), self.indices, weights, self.counts, self.packing)

    def stored(self) -> Stored:
        """Return sizes and arrays as they are stored: packed where it has a packing."""
        if self.packing is not None:
            packed, arrays = pack(Pairs(self.anchors, self.indices, self.weights, self.counts), self.packing)
            return {"kind": "packed", **asdict(packed)}, arrays
        return {"kind": "pairs"}, {
            "anchors": self.anchors,
            "weights": self.weights,
            "indices": self.indices.astype(np.int16 if len(self.anchors) <= 2**15 else np.int32),
            "counts": self.counts.astype(np.uint8 if self.max_pairs < 2**8 else np.int32),
        }


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
    exact: int  # rows that stay exact
    stages: tuple[Stage, ...]
    exact_type: str = "float16"

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "TableShape":
        """Read what `asdict` gave; raises InputError if it is not a shape."""
        try:
            shape = cls(**{**given, "stages": tuple(Stage(**stage) for stage in given["stages"])})
        except (KeyError, TypeError) as error:
            raise InputError(f"not the shape of a coded table: {error}") from error
        shape.check()
        return shape

    def check(self) -> None:
        """Raise InputError unless the numbers fit each other."""
        numbers = [self.rows, self.dim, self.exact]
        for stage in self.stages:
            numbers += [stage.width, stage.rows]
        fits = all(type(number) is int and number >= 0 for number in numbers) and self.dim > 0
        fits = fits and self.exact <= self.rows and self.exact_type in ITEMSIZE and len(self.stages) < WHOLE
        fits = fits and all(stage.width > 0 and self.dim % stage.width == 0 for stage in self.stages)
        if fits:
            counts = [self.rows - self.exact, *(stage.rows for stage in self.stages)]
            fits = all(before >= after > 0 for before, after in pairwise(counts))
        if not fits:
            raise InputError(
                f"a coded table of {self.rows} x {self.dim} cannot have {self.exact} exact rows in {self.exact_type} "
                f"and the stages {self.stages}"
            )

    def check_depths(self, depths: np.ndarray) -> None:
        """Raise InputError unless the stored numbers of stages (rows,) are those that the shape says."""
        counts = [int(((depths > number) & (depths < WHOLE)).sum()) for number in range(len(self.stages))]
        if int((depths == WHOLE).sum()) != self.exact or counts != [stage.rows for stage in self.stages]:
            raise InputError("a coded table whose rows have other stages than its shape says: the file is damaged")

    def arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of every stored array."""
        arrays: dict[str, tuple[tuple[int, ...], str]] = {
            "depths": ((-(-self.rows // 2),), "uint8"),  # two rows a byte
            "exact": ((self.exact, self.dim), self.exact_type),
            "mean": ((self.dim,), "float32"),
            "rotation": ((self.dim, self.dim), "int8"),
            "rotation_scale": ((self.dim, 1), "float32"),
        }
        for number, stage in enumerate(self.stages):
            pieces = self.dim // stage.width
            arrays[f"codes_{number}"] = ((pieces, stage.rows), "uint8")
            arrays[f"book_{number}"] = ((1 if stage.shared else pieces, ENTRIES, stage.width), "int8")
            arrays[f"scale_{number}"] = ((pieces, 1, 1), "float32")
        return arrays

    @property
    def nbytes(self) -> int:
        """Bytes of every stored array."""
        return sum(prod(size) * ITEMSIZE[kind] for size, kind in self.arrays().values())


class CodedTable:
    """A coded table, decoded as rows are read: there are no anchors."""

    def __init__(self, shape: TableShape, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the arrays by name; raises `InputError` unless they fit the shape."""
        self.shape, self.arrays = shape, dict(arrays)
        self.vocabulary, self.dim = shape.rows, shape.dim
        check_arrays({name: (kind, size) for name, (size, kind) in shape.arrays().items()}, arrays)
        for name, array in arrays.items():
            check_finite(name, array)

        depths = np.stack([arrays["depths"] & 15, arrays["depths"] >> 4], 1).ravel()[: shape.rows]
        shape.check_depths(depths)
        self._place = np.empty(shape.rows, np.int32)  # exact rows first, then by falling number of stages
        self._place[np.argsort(-depths.astype(np.int8), kind="stable")] = np.arange(shape.rows, dtype=np.int32)
        stages = range(len(shape.stages))
        self._books = [arrays[f"book_{number}"] * arrays[f"scale_{number}"] for number in stages]  # (pieces, E, width)
        self._rotation = arrays["rotation"] * arrays["rotation_scale"]  # (d, d)

    @property
    def exact_rows(self) -> np.ndarray:
        """The tokens whose rows are exact: (n,)."""
        return np.flatnonzero(self._place < self.shape.exact)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows of tokens (n,): (n, d) float32."""
        place = self._place[np.asarray(ids)] - self.shape.exact  # among the coded rows
        total = np.zeros((len(place), self.dim), np.float32)
        for number, (stage, book) in enumerate(zip(self.shape.stages, self._books, strict=True)):
            has = (place >= 0) & (place < stage.rows)
            codes = self.arrays[f"codes_{number}"][:, place[has]].T  # (m, pieces)
            total[has] += book[np.arange(len(book)), codes].reshape(-1, self.dim)
        rows = total @ self._rotation + self.arrays["mean"]

        exact = place < 0
        rows[exact] = self.arrays["exact"][place[exact] + self.shape.exact]
        return rows

    def stored(self) -> Stored:
        """Return sizes and arrays as they are stored: in codes."""
        return {"kind": "coded", **asdict(self.shape)}, self.arrays


Table = Codebook | CodedTable


def read_table(sizes: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Table:
    """Return the table that `stored` gave; raises `InputError` for damaged sizes or arrays."""
    sizes = dict(sizes)
    kind = sizes.pop("kind", None)
    try:
        if kind == "packed":
            packed = PackedSizes(**sizes)
            return Codebook(*unpack(packed, arrays), packed.packing)
        if kind == "coded":
            return CodedTable(TableShape.from_dict(sizes), arrays)
        if kind == "pairs":
            return Codebook(arrays["anchors"], arrays["indices"], arrays["weights"], arrays["counts"])
    except (KeyError, TypeError) as error:
        raise InputError(f"the sizes or arrays of its table are not valid ({error})") from None
    raise InputError(f"a kind of table that this version does not know: {kind!r}")


def rounded(table: Table) -> Table:
    """Return the table as it will be read back: with its values rounded, where it is packed."""
    return read_table(*table.stored())


def codebook_of(table: Table) -> Codebook:
    """Return a table that has anchors and pairs; raises `InputError` for a coded one, which has none."""
    if not isinstance(table, Codebook):
        raise InputError("the table of this model is coded: it has no anchors, and its tokens no weights")
    return table
