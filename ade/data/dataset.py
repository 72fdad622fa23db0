"""Dataset: texts with an answer each, which is a class, several classes or a number. Texts stay in Arrow columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
import pyarrow as pa

from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError


class Texts(Sequence[str]):
    """Strings in an Arrow column: sliced without copying, memory-mapped where the column is."""

    def __init__(self, column: pa.ChunkedArray, rows: np.ndarray | None = None) -> None:
        self.column = column
        self.rows = rows  # which of the column's strings, in which order; all where None

    def __len__(self) -> int:
        return len(self.column) if self.rows is None else len(self.rows)

    @overload
    def __getitem__(self, key: int) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> list[str]: ...
    def __getitem__(self, key: int | slice) -> str | list[str]:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if self.rows is not None:
                return self.column.take(pa.array(self.rows[start:stop:step])).to_pylist()
            return self.column.slice(start, max(0, stop - start)).to_pylist()[::step]
        return self.column[key if self.rows is None else int(self.rows[key])].as_py()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 8192):
            yield from self[start : start + 8192]

    def take(self, rows: np.ndarray) -> "Texts":
        """The texts at these rows, in this order."""
        return Texts(self.column, rows if self.rows is None else self.rows[rows])


@dataclass(frozen=True)
class Dataset:
    """Texts with an answer each: a class (`names[labels[i]]` is that of `texts[i]`), several classes, or a number."""

    texts: Sequence[str]
    labels: np.ndarray  # (n,) int64: a class; (n, C) bool: which classes; (n,) float: a number
    names: tuple[str, ...]
    targets: np.ndarray | None = None  # (n, C) float32: probabilities to learn in place of the labels
    name: str = ""  # what people call it
    labelled: int | None = None  # rows that have a label, not a teacher's answer alone: the first ones; None for all

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def problem(self) -> str:
        """What an answer is, told by the labels."""
        if self.labels.ndim == 2:
            return MULTI
        return REGRESSION if np.issubdtype(self.labels.dtype, np.floating) else SINGLE

    def take(self, rows: np.ndarray) -> "Dataset":
        """The given rows as a data set of their own, with the same label names."""
        texts = self.texts.take(rows) if isinstance(self.texts, Texts) else [self.texts[int(i)] for i in rows]
        targets = None if self.targets is None else self.targets[rows]
        labelled = None if self.labelled is None else int((rows < self.labelled).sum())
        return replace(self, texts=texts, labels=self.labels[rows], targets=targets, labelled=labelled)

    def split(self, share: float, seed: int) -> tuple["Dataset", "Dataset"]:
        """Two data sets, the second with this share of the rows, classes in proportion where rows have one class each.

        The second has at least one row where that is possible; every class keeps at least one row in the first.
        """
        generator = np.random.default_rng(seed)
        groups = self.labels if self.problem == SINGLE else np.zeros(len(self), np.int64)

        # Rows class by class, classes and the rows within them in random order; the first row of each class stays.
        order = generator.permutation(len(self))
        place = generator.permutation(int(groups.max(initial=-1)) + 1)
        order = order[np.argsort(place[groups[order]], kind="stable")]
        stays = np.diff(groups[order], prepend=-1) != 0
        free = order[~stays]

        # Systematic sampling: at even steps from a random start, each class gives its share to within a row.
        count = min(max(1, round(share * len(self))), len(free))
        start = generator.integers(max(1, len(free)))
        mask = np.zeros(len(self), dtype=bool)
        mask[free[(np.arange(count) * len(free) + start) // max(1, count)]] = True
        return self.take(np.flatnonzero(~mask)), self.take(np.flatnonzero(mask))

    def relabelled(self, names: Sequence[str]) -> "Dataset":
        """The same rows with labels counted in another list of names, which must hold every name used here."""
        if self.problem == REGRESSION:
            return self
        used = np.flatnonzero(self.labels.any(0)) if self.problem == MULTI else np.unique(self.labels)
        unknown = sorted({self.names[i] for i in used} - set(names))
        if unknown:
            raise InputError(f"labels the model was not trained on: {', '.join(unknown[:5])} (it knows {len(names)})")
        known = {name: i for i, name in enumerate(names)}
        place = np.array([known.get(name, -1) for name in self.names], dtype=np.int64)
        if self.problem == SINGLE:
            return replace(self, labels=place[self.labels], names=tuple(names), targets=None)
        marks = np.zeros((len(self), len(names)), dtype=bool)
        marks[:, place[used]] = self.labels[:, used]
        return replace(self, labels=marks, names=tuple(names))
