"""Whatever holds labelled texts gives the same dataset."""

import json

import datasets
import numpy as np
import pandas as pd
import pytest

from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION
from ade.data.sources import as_dataset, load_splits
from ade.data.tables import Schema
from ade.errors import InputError

TEXTS, LABELS = ["good", "bad", "fine"], ["pos", "neg", "pos"]


def _rows(found: Dataset) -> list[tuple[str, str]]:
    return [(text, found.names[i]) for text, i in zip(found.texts, found.labels, strict=True)]


def _frame() -> pd.DataFrame:
    return pd.DataFrame({"id": [7, 8, 9], "review": TEXTS, "sentiment": LABELS}, index=[5, 3, 1])


def _hugging_face() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"sentiment": LABELS, "review": TEXTS})


@pytest.mark.parametrize(
    "make",
    [
        _frame,
        lambda: _frame().astype({"sentiment": "category"}),
        _hugging_face,
        lambda: {"review": TEXTS, "sentiment": LABELS},
        lambda: [{"review": text, "sentiment": label} for text, label in zip(TEXTS, LABELS, strict=True)],
        lambda: list(zip(TEXTS, LABELS, strict=True)),
        lambda: zip(TEXTS, LABELS, strict=True),
    ],
)
def test_python_objects(make):
    assert _rows(as_dataset(make())) == list(zip(TEXTS, LABELS, strict=True))


@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Series, iter])
def test_texts_and_labels(kind):
    assert _rows(as_dataset(kind(TEXTS), kind(LABELS))) == list(zip(TEXTS, LABELS, strict=True))


def test_files_and_datasets_as_they_are(tmp_path):
    _frame().to_csv(tmp_path / "train.csv", sep=";")
    for source in (tmp_path, str(tmp_path), tmp_path / "train.csv"):
        assert _rows(as_dataset(source)) == list(zip(TEXTS, LABELS, strict=True))
    found = as_dataset(tmp_path)
    assert as_dataset(found) is found


def test_rows_that_were_selected_are_the_ones_that_are_read():
    """A `datasets.Dataset` that was filtered or shuffled keeps its table and lists the rows."""
    chosen = _hugging_face().select([2, 1])
    assert _rows(as_dataset(chosen)) == [("fine", "pos"), ("bad", "neg")]


def test_class_labels_of_hugging_face_get_their_names():
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    found = as_dataset(rows)
    assert (_rows(found), found.label_type) == ([("a", "yes"), ("b", "no")], "str")
    hidden = datasets.Dataset.from_dict({"text": ["a"], "label": [-1]}, features=features)
    with pytest.raises(InputError, match="has no labels"):
        as_dataset(hidden)


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        ([3, 10, 3], "int", ("3", "10")),
        ([True, False, True], "bool", ("false", "true")),
        ([1.0, 2.5, 1.0], "float", ("1.0", "2.5")),
        (["a,b", "c\nd", "a,b"], "str", ("a,b", "c\nd")),
        ([1, "x", 1], "str", ("1", "x")),
        (["01", "1", "1"], "str", ("01", "1")),
    ],
)
def test_the_type_of_labels_is_kept(labels, kind, names, tmp_path):
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    sources = [as_dataset(TEXTS, labels), as_dataset(rows), as_dataset(tmp_path / "a.json")]
    if labels[1] != "x":
        pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
        sources += [as_dataset(pd.DataFrame(rows)), as_dataset(tmp_path / "a.parquet")]
        sources += [as_dataset(np.array(TEXTS), np.array(labels))]
    for found in sources:
        assert (found.label_type, set(found.names)) == (kind, set(names))


def test_several_labels_and_numbers():
    found = as_dataset(TEXTS, [["a", "b"], [], ["b"]])
    assert (found.problem, found.labels.tolist()) == (MULTI, [[True, True], [False, False], [False, True]])
    found = as_dataset(TEXTS, [1, 2.5, np.float32(3)], Schema(problem=REGRESSION))
    assert (found.problem, found.labels.tolist()) == (REGRESSION, [1, 2.5, 3])


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        (["a", None, "c", float("nan")], list("xyxy"), r"no text \(column 'text'\) in row 2, 4;"),
        (["a", "b", "c"], ["x", None, pd.NA], r"no label \(column 'label'\) in row 2, 3;"),
        (["a", "b"], ["x", ""], "an empty label in row 2;"),
        (["a", "b"], ["x"], "2 texts, but 1 labels"),
        (["a", ["b"]], ["x", "y"], "row 2: column 'text' holds a list"),
        (["a", "\ud800"], ["x", "y"], "row 2: column 'text' has half of a surrogate"),
        (["a", "b"], np.zeros((2, 3)), r"labels of shape \(2, 3\)"),
        ("a", ["x"], "not a single string"),
        (["a", "b"], None, "the texts have no labels"),
        ([], None, "no rows"),
        ([("a", "x"), ("b",)], None, "row 2: not a pair"),
        ([("a", "x"), 3], None, "row 2: not a pair"),
        ([{"text": "a", "label": "x"}, 3], None, "row 2: not a dictionary"),
        (3, None, "cannot read int"),
        ({"n": [1], "m": [2], "k": [3]}, None, "which column holds the texts"),
    ],
)
def test_what_is_missing_or_wrong_is_named_by_its_row(data, labels, message):
    with pytest.raises(InputError, match=message):
        as_dataset(data, labels)


def test_missing_values_of_frames(tmp_path):
    frame = _frame()
    frame.loc[3, "review"] = None
    with pytest.raises(InputError, match=r"no text \(column 'review'\) in row 2;"):
        as_dataset(frame)


def test_splits_of_whatever_has_them(tmp_path):
    parts = {"train": _hugging_face(), "validation": _hugging_face().select([0]), "test": _hugging_face().select([1])}
    found = load_splits(datasets.DatasetDict(parts))
    assert {name: len(rows) for name, rows in found.items()} == {"train": 3, "dev": 1, "test": 1}
    assert all(rows.names == ("neg", "pos") for rows in found.values())
    assert set(load_splits({"train": TEXTS, "label": LABELS}, schema=Schema(text="train"))) == {"train"}
