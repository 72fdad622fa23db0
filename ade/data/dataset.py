"""Dataset: texts, each with a class, several classes or a number; `table` makes one of rows.

Texts are collected in one array of bytes, which is memory-mapped if it is large.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ade.data.columns import Schema, find_columns
from ade.data.problems import MULTI, REGRESSION, SINGLE, ValueProblem, is_listed
from ade.data.records import Records, required, row_error
from ade.data.texts import GrowingTexts, Texts
from ade.errors import InputError

SEPARATOR = "|"  # between the labels of a multi-label column of strings
RARE = 0.1  # of the largest class: smaller ones are remarked on
SAMPLE = 1000  # texts in which empty ones are counted
LARGEST = float(np.finfo(np.float32).max)
MULTI_TAKES = "(which --problem multi-label takes)"


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


def table(rows: Records, schema: Schema | None = None) -> Dataset:
    """The texts and labels of rows; `schema` says which columns, and the kind of problem, where they are known.

    Without a kind of problem, rows are multi-label where one has several labels, decimals are a regression, and
    everything else is single-label. What is missing or wrong is an error that names the row, counted from 1 without a
    header.
    """
    schema = schema or Schema()
    if not rows.columns:
        raise InputError(f"{rows.source}: has no rows")
    rows, sample = rows.sampled()
    columns = find_columns(rows.source, rows.columns, schema.text, schema.label, sample)
    text_column, label_column = columns
    texts, labels = GrowingTexts(), _Labels(schema.problem)
    for number, row in enumerate(rows.rows if rows.select is None else rows.select(columns), 1):
        column = text_column
        try:
            texts.add(required(row.get(text_column), "text")[0].encode("utf8"))
            column = label_column
            labels.add(row.get(label_column))
        except ValueProblem as problem:
            raise row_error(rows.source, number, column, problem) from None
    if not labels.counts:
        raise InputError(f"{rows.source}: has no rows")

    kind = schema.problem or labels.problem_found()
    counts = np.frombuffer(labels.counts, np.int64)
    if kind != MULTI and counts.min() == 0:
        raise row_error(rows.source, int(counts.argmin()) + 1, label_column, f"holds no label {MULTI_TAKES}")
    if kind == REGRESSION:
        return Dataset(texts.texts(), labels.numbers(), ("value",), columns=columns)
    if not labels.names:
        raise InputError(f"{rows.source}: no row has a label (column '{label_column}')")
    values = np.frombuffer(labels.ids, np.int64)
    if kind == MULTI:
        place = np.repeat(np.arange(len(counts)), counts), values
        values = np.zeros((len(counts), len(labels.names)), bool)
        values[place] = True
    label_type = labels.types.pop() if len(labels.types) == 1 else "str"
    dataset = Dataset(texts.texts(), values, tuple(labels.names), label_type=label_type, columns=columns)
    return dataset.relabelled(sorted(labels.names, key=_place))


class _Labels:
    """The labels of rows, collected one row after the other: the next `counts[i]` of the `ids` belong to row i.

    An id is the number of a name; of a regression, the `ids` are the numbers to predict.
    """

    def __init__(self, problem: str | None) -> None:
        self.problem = problem
        self.ids: array[Any] = array("d" if problem == REGRESSION else "q")
        self.counts = array("q")
        self.names: dict[str, int] = {}
        self.types: set[str] = set()

    def add(self, given: Any) -> None:
        """Add the label of a row, or its labels."""
        listed = is_listed(given)
        values = [required(value, "label") for value in (given if listed else [given])]
        if self.problem == MULTI and not listed:
            name, kind = values[0]
            values = [(part.strip(), kind) for part in name.split(SEPARATOR) if part.strip()]
        if self.problem in (SINGLE, REGRESSION) and len(values) != 1:
            raise ValueProblem(f"holds {'several labels' if values else 'no label'} {MULTI_TAKES}")
        self.ids.extend([self._id(name, kind) for name, kind in values])
        self.counts.append(len(values))

    def _id(self, name: str, kind: str) -> int | float:
        """The number of a name that was given as a `kind` of value; of a regression, the value."""
        if not name.strip():
            raise ValueProblem("holds no number" if self.problem == REGRESSION else "holds an empty label")
        if self.problem == REGRESSION:
            return _number(name)
        self.types.add(kind)
        return self.names.setdefault(name, len(self.names))

    def problem_found(self) -> str:
        """The kind of problem, where nobody has said it; labels that are numbers with fractions are no classes."""
        if max(self.counts) > 1:
            return MULTI
        try:
            numbers = [_number(name) for name in self.names]
        except ValueProblem:
            return SINGLE
        return REGRESSION if any(number % 1 for number in numbers) else SINGLE

    def numbers(self) -> np.ndarray:
        """The numbers to predict: (n,)."""
        ids = np.frombuffer(self.ids, self.ids.typecode)
        numbers = ids if self.problem == REGRESSION else np.array([float(name) for name in self.names])[ids]
        return numbers.astype(np.float32)


def _number(name: str) -> float:
    """A finite number that float32 can hold, from its name."""
    try:
        number = float(name)
    except ValueError:
        raise ValueProblem(f"does not hold numbers, but {name!r:.40}") from None
    if not abs(number) <= LARGEST:
        raise ValueProblem(f"holds a number that is not finite: {name:.40}")
    return number


def _place(name: str) -> tuple[int, str]:
    """The place of a name in order: integers first, by their value."""
    try:
        return int(name), ""
    except ValueError:
        return 0, name


def remarks(data: Dataset, problem: str | None) -> Iterator[str]:
    """What to know before training on labelled texts, a line each; `problem` is the kind that was asked for."""
    if problem is None and data.problem == REGRESSION:
        yield "the labels are decimals, so numbers are predicted; '--problem single-label' makes classes of them"
    if problem is None and len(data.names) > 2 and all(name.isdecimal() for name in data.names):
        yield f"the numbers {data.names[0]} to {data.names[-1]} are classes; '--problem regression' predicts numbers"
    counts = np.bincount(data.labels) if data.problem == SINGLE else np.ones(1, int)
    rarest, largest = counts[counts > 0].min(), counts.max()
    if rarest < RARE * largest:
        names = data.names[int(np.flatnonzero(counts == rarest)[0])], data.names[int(counts.argmax())]
        sizes = f"'{names[0]:.40}' has {rarest:,} rows, '{names[1]:.40}' {largest:,}"
        yield f"{sizes}; '--set class_weights=balanced' gives every class the same weight"
    sample = data.texts[:: max(1, len(data) // SAMPLE)]
    empty = sum(not text.strip() for text in sample)
    if 2 * empty >= len(sample):
        yield f"{100 * empty // len(sample)}% of the texts are empty; is this the column of the texts?"
