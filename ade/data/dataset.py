"""Dataset: texts, each with a class, several classes or a number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.texts import Texts
from ade.errors import InputError


@dataclass(frozen=True)
class Dataset:
    """Texts with labels: `names[labels[i]]` is the class of `texts[i]`; or several classes, or a number each."""

    texts: Sequence[str]
    labels: np.ndarray  # (n,) int64: classes; (n, C) bool: multi-label; (n,) float: regression
    names: tuple[str, ...]
    targets: np.ndarray | None = None  # (n, C) float32: soft targets, used in place of the labels
    name: str = ""  # for the model card
    labelled: int | None = None  # the first `labelled` rows have true labels, the others a teacher's; None for all
    label_type: str = "str"  # in which labels were given: str, int, float or bool; predictions come back in it
    columns: tuple[str, str] | None = None  # the text column and the label column of the table it was read from

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def problem(self) -> str:
        """The kind of problem, from the type and shape of the labels."""
        if self.labels.ndim == 2:
            return MULTI
        return REGRESSION if np.issubdtype(self.labels.dtype, np.floating) else SINGLE

    def take(self, rows: np.ndarray) -> "Dataset":
        """A dataset of the given row indices."""
        texts = self.texts.take(rows) if isinstance(self.texts, Texts) else [self.texts[int(i)] for i in rows]
        targets = None if self.targets is None else self.targets[rows]
        labelled = None if self.labelled is None else int((rows < self.labelled).sum())
        return replace(self, texts=texts, labels=self.labels[rows], targets=targets, labelled=labelled)

    def split(self, share: float, seed: int) -> tuple["Dataset", "Dataset"]:
        """Split at random into two datasets, the second with the given share of the rows; single-label data stratified.

        The second has at least one row if possible; every class keeps at least one row in the first.
        """
        generator = np.random.default_rng(seed)
        strata = self.labels if self.problem == SINGLE else np.zeros(len(self), np.int64)

        # Rows class by class, classes and the rows within them in random order; the first row of each class stays.
        order = generator.permutation(len(self))
        class_order = generator.permutation(int(strata.max(initial=-1)) + 1)
        order = order[np.argsort(class_order[strata[order]], kind="stable")]
        first_of_class = np.diff(strata[order], prepend=-1) != 0
        free = order[~first_of_class]

        # Systematic sampling: with even steps from a random start, each class gives its share to within a row.
        count = min(max(1, round(share * len(self))), len(free))
        start = generator.integers(max(1, len(free)))
        in_second = np.zeros(len(self), dtype=bool)
        in_second[free[(np.arange(count) * len(free) + start) // max(1, count)]] = True
        return self.take(np.flatnonzero(~in_second)), self.take(np.flatnonzero(in_second))

    def relabelled(self, names: Sequence[str]) -> "Dataset":
        """The same rows with label ids of another list of names, which must contain every name used here."""
        if self.problem == REGRESSION:
            return self
        used = np.flatnonzero(self.labels.any(0)) if self.problem == MULTI else np.unique(self.labels)
        unknown = sorted({self.names[i] for i in used} - set(names))
        if unknown:
            raise InputError(f"labels the model was not trained on: {', '.join(unknown[:5])} (it knows {len(names)})")
        ids = {name: i for i, name in enumerate(names)}
        new_id = np.array([ids.get(name, -1) for name in self.names], dtype=np.int64)
        if self.problem == SINGLE:
            return replace(self, labels=new_id[self.labels], names=tuple(names), targets=None)
        labels = np.zeros((len(self), len(names)), dtype=bool)
        labels[:, new_id[used]] = self.labels[:, used]
        return replace(self, labels=labels, names=tuple(names))
