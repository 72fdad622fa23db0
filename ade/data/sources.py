"""Whatever holds labelled texts -> datasets: files, hub names, lists, DataFrames, `datasets.Dataset`, dictionaries."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ade.data.columns import find_columns
from ade.data.conll import TaggedDataset, is_tagged, load_tagged
from ade.data.dataset import Dataset
from ade.data.gathering import gather
from ade.data.loading import from_hugging_face, from_table, has_split, load_dataset
from ade.data.tables import SPLITS, Schema
from ade.data.values import is_listed
from ade.errors import InputError

AnyDataset = Dataset | TaggedDataset
GIVEN = "the data"  # what error messages call data that has no name


def load_splits(data: Any, labels: Any = None, schema: Schema | None = None) -> dict[str, Any]:
    """The splits that data has, by name (train, dev, test); all of them use the label ids of the training split."""
    schema = schema or Schema()
    if isinstance(data, (str, Path)) and labels is None:
        splits = _splits_of_path(data, schema)
    elif isinstance(data, Mapping) and labels is None and _is_split_mapping(data):
        named = {split: next((data[name] for name in names if name in data), None) for split, names in SPLITS.items()}
        splits = {split: as_dataset(part, None, schema) for split, part in named.items() if part is not None}
    else:
        splits = {"train": as_dataset(data, labels, schema)}
    names = splits["train"].names
    return {split: rows if split == "train" else rows.relabelled(names) for split, rows in splits.items()}


def _splits_of_path(data: str | Path, schema: Schema) -> dict[str, Any]:
    splits: dict[str, Any] = {}
    if is_tagged(data):
        if schema.problem is not None:
            raise InputError(f"{data}: words with a tag each; --problem is for texts")
        single_file = Path(data).is_file()
        for split in SPLITS:
            if split == "train" or (not single_file and is_tagged(data, split)):
                splits[split] = load_tagged(data, split)
        return splits
    for split in SPLITS:  # train first: if it cannot be loaded, the hub is not asked for the others
        if split == "train" or has_split(data, split):
            splits[split] = load_dataset(data, split, schema.text, schema.label, schema.problem)
    return splits


def _is_split_mapping(data: Mapping[Any, Any]) -> bool:
    """Whether a dictionary holds splits, as `datasets.DatasetDict` does, and not columns."""
    return "train" in data and not is_listed(data["train"])


def as_dataset(data: Any, labels: Any = None, schema: Schema | None = None, split: str = "train") -> AnyDataset:
    """The dataset of a file, folder or hub name (of which `split` is read), or of Python objects.

    These are texts with `labels`; a DataFrame, a `datasets.Dataset` or a dictionary of columns; a list of dictionaries
    or of (text, label) pairs; or a dataset as it is.
    """
    schema = schema or Schema()
    if labels is not None:
        return _from_columns(data, labels, ("text", "label"), schema)
    if isinstance(data, (Dataset, TaggedDataset)):
        return data
    if isinstance(data, (str, Path)):
        if is_tagged(data, split):
            return load_tagged(data, split)
        return load_dataset(data, split, schema.text, schema.label, schema.problem)
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return from_hugging_face(data, GIVEN, schema)
    if isinstance(data, Mapping) or hasattr(data, "columns"):  # columns by their names
        names = {str(name): name for name in (data if isinstance(data, Mapping) else data.columns)}
        columns = find_columns(GIVEN, list(names), schema.text, schema.label)
        return _from_columns(data[names[columns[0]]], data[names[columns[1]]], columns, schema)
    return _from_records(data, schema)


def _from_columns(texts: Any, labels: Any, columns: tuple[str, str], schema: Schema) -> Dataset:
    """A dataset from a text for each row, and a label, a list of labels or a number."""
    if isinstance(texts, (str, bytes)) or isinstance(labels, (str, bytes)):
        raise InputError("give a list of texts and a list of labels, not a single string")
    if not hasattr(texts, "__len__") or not hasattr(labels, "__len__"):
        texts, labels = list(texts), list(labels)
    if getattr(labels, "ndim", 1) > 1:
        raise InputError(f"labels of shape {tuple(labels.shape)}; give one for each text, or a list of names for each")
    if len(texts) != len(labels):
        raise InputError(f"{len(texts):,} texts, but {len(labels):,} labels")
    return from_table(gather(GIVEN, zip(texts, labels, strict=True), columns), GIVEN, schema)


def _from_records(data: Any, schema: Schema) -> Dataset:
    """A dataset from a list of dictionaries, or of (text, label) pairs."""
    if not isinstance(data, Iterable):
        raise InputError(f"cannot read {type(data).__name__} as data; give a file, a list, a DataFrame or a dataset")
    rows: Sequence[Any] = list(data)
    if not rows:
        raise InputError(f"{GIVEN}: has no rows")
    if isinstance(rows[0], Mapping):
        text, label = find_columns(GIVEN, list(rows[0]), schema.text, schema.label)
        _check_rows(rows, Mapping, "a dictionary as the first row")
        return from_table(
            gather(GIVEN, ((row.get(text), row.get(label)) for row in rows), (text, label)), GIVEN, schema
        )
    if isinstance(rows[0], str):
        raise InputError("the texts have no labels: give them too, as in train(texts, labels)")
    _check_rows(rows, Sequence, "a pair of a text and a label")
    wrong = next((i for i, row in enumerate(rows) if isinstance(row, str) or len(row) != 2), None)
    if wrong is not None:
        raise InputError(f"{GIVEN}, row {wrong + 1}: not a pair of a text and a label")
    return from_table(gather(GIVEN, ((row[0], row[1]) for row in rows), ("text", "label")), GIVEN, schema)


def _check_rows(rows: Sequence[Any], kind: Any, expected: str) -> None:
    wrong = next((i for i, row in enumerate(rows) if not isinstance(row, kind)), None)
    if wrong is not None:
        raise InputError(f"{GIVEN}, row {wrong + 1}: not {expected}")
