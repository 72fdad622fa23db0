"""Whatever holds labelled texts gives the same dataset."""

import gzip
import json

import datasets
import numpy as np
import pandas as pd
import pytest

from ade.data import sources
from ade.data.columns import Schema
from ade.data.dataset import Dataset, remarks
from ade.data.problems import REGRESSION, SINGLE
from ade.data.sources import as_dataset, load_dataset, load_splits, split_files
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
    with pytest.raises(InputError, match=r"row 1: .* holds no label"):
        as_dataset(hidden)


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        ([3, 10, 3], "int", ("3", "10")),
        ([True, False, True], "bool", ("false", "true")),
        ([1.0, 2.0, 1.0], "float", ("1.0", "2.0")),
        (["a,b", "c\nd", "a,b"], "str", ("a,b", "c\nd")),
        ([1, "x", 1], "str", ("1", "x")),
        (["01", "1", "1"], "str", ("01", "1")),
        (["2020-01-01", "12:30", "2020-01-01T00:00:00"], "str", ("12:30", "2020-01-01", "2020-01-01T00:00:00")),
        ([-1, 2**70, -1], "int", ("-1", str(2**70))),
    ],
)
def test_the_type_of_labels_is_kept(labels, kind, names, tmp_path):
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    sources = [as_dataset(TEXTS, labels), as_dataset(rows), as_dataset(tmp_path / "a.json")]
    if labels[1] not in ("x", 2**70):
        pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
        sources += [as_dataset(pd.DataFrame(rows)), as_dataset(tmp_path / "a.parquet")]
        sources += [as_dataset(np.array(TEXTS), np.array(labels))]
    for found in sources:
        assert (found.label_type, set(found.names)) == (kind, set(names))


@pytest.mark.parametrize("labels", [[0.5, 3, 1.25], ["0.5", "3", "1.25"], np.array([0.5, 3, 1.25])])
def test_decimals_are_a_regression_unless_they_are_said_to_be_classes(labels, tmp_path):
    found = as_dataset(TEXTS, labels)
    assert (found.problem, found.labels.tolist()) == (REGRESSION, [0.5, 3, 1.25])
    assert as_dataset(TEXTS, labels, Schema(problem=SINGLE)).problem == SINGLE
    assert as_dataset(TEXTS, ["0.5", "3", "v1"]).problem == as_dataset(TEXTS, ["0.5", "3", "nan"]).problem == SINGLE
    whole = {"text": TEXTS, "label": [1, 2, 3]}
    splits = load_splits({"train": {"text": TEXTS, "label": labels}, "test": whole}, validation=whole)
    assert {rows.problem for rows in splits.values()} == {REGRESSION}
    assert list(splits) == ["train", "test", "dev"]


@pytest.mark.parametrize(
    ("labels", "problem", "said"),
    [
        ([0.5, 1.5] * 50, None, ["decimals, so numbers are predicted; '--problem single-label'"]),
        ([0.5, 1.5] * 50, REGRESSION, []),
        ([1, 2, 3, 4, 5] * 20, None, ["the numbers 1 to 5 are classes; '--problem regression'"]),
        ([1, 2, 3, 4, 5] * 20, SINGLE, []),
        ([0, 1] * 50, None, []),
        (["a"] * 91 + ["b"] * 9, None, ["'b' has 9 rows, 'a' 91; '--set class_weights=balanced'"]),
        (["a"] * 90 + ["b"] * 10, None, []),
        ([["a"]] * 99 + [["b", "c"]], None, []),
    ],
)
def test_remarks_before_training(labels, problem, said):
    data = as_dataset([f"text {i}" for i in range(100)], labels, Schema(problem=problem))
    found = list(remarks(data, problem))
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))
    empty = as_dataset(["", " "] * 26 + ["text"] * 48, ["a", "b"] * 50)
    assert list(remarks(empty, None)) == ["52% of the texts are empty; is this the column of the texts?"]


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        (["a", "b", "c"], ["x", pd.NA, None], "row 2: column 'label' holds no label"),
        (["a", "b"], ["x"], "2 texts, but 1 labels"),
        (["a", "\ud800"], ["x", "y"], "row 2: column 'text' has half of a surrogate"),
        (["a", "b"], np.zeros((2, 3)), r"labels of shape \(2, 3\)"),
        ("a", ["x"], "not a single string"),
        (["a", "b"], None, "the texts have no labels"),
        ([], None, "no rows"),
        ([("a", "x"), ("b",)], None, "row 2: not a pair"),
        ([{"text": "a", "label": "x"}, 3], None, "row 2: not a dictionary"),
        (3, None, "cannot read int"),
        ({"n": [1], "m": [2], "k": [3]}, None, "which column holds the texts"),
    ],
)
def test_what_is_missing_or_wrong_is_named_by_its_row(data, labels, message):
    with pytest.raises(InputError, match=message):
        as_dataset(data, labels)


def test_splits_of_whatever_has_them(tmp_path):
    parts = {"train": _hugging_face(), "validation": _hugging_face().select([0]), "test": _hugging_face().select([1])}
    found = load_splits(datasets.DatasetDict(parts))
    assert {name: len(rows) for name, rows in found.items()} == {"train": 3, "dev": 1, "test": 1}
    assert all(rows.names == ("neg", "pos") for rows in found.values())
    assert set(load_splits({"train": TEXTS, "label": LABELS}, schema=Schema(text="train"))) == {"train"}


@pytest.mark.parametrize("several", [False, True])
def test_a_hub_data_set_keeps_its_label_names(several, tmp_path, monkeypatch):
    """The hub's own loader, pointed at a folder laid out like a repository there."""
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    named = datasets.ClassLabel(names=["no", "yes", "perhaps"])
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.List(named) if several else named}
    )
    labels = [[1, 0], []] if several else [1, 0]
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": labels}, features=features)
    (tmp_path / "repo" / "data").mkdir(parents=True)
    rows.to_parquet(tmp_path / "repo" / "data" / "train-00000-of-00001.parquet")
    found = as_dataset(sources._from_hub(str(tmp_path / "repo")))
    assert list(found.texts) == ["a", "b"]
    assert found.names == ("no", "yes")
    assert found.labels.tolist() == ([[True, True], [False] * 2] if several else [1, 0])


def test_splits_of_a_folder(tmp_path):
    content = b"text,label\na,x\nb,y\n"
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(content))
    (tmp_path / "valid.csv").write_bytes(content)
    (tmp_path / "test.txt").write_text("plain text\n")  # not ours
    assert split_files(tmp_path) == {"train": tmp_path / "train.csv.gz", "dev": tmp_path / "valid.csv"}
    assert len(load_dataset(tmp_path)) == len(load_dataset(tmp_path, "dev")) == 2
    with pytest.raises(InputError, match="has no test file"):
        load_dataset(tmp_path, "test")


def test_the_embedded_glosses():
    train, test = load_dataset("wordnet"), load_dataset("wordnet", "test")
    assert len(train) + len(test) == 82_064
    assert len(train.names) == 25
    assert "Tops" not in train.names
    assert len(test) == 8206
    assert np.bincount(train.labels).min() > 10
    again = load_dataset("wordnet", "test")
    assert again.texts == test.texts  # the split is the same every time


def test_tagged_files_may_be_gzipped(tmp_path):
    (tmp_path / "tags.conll.gz").write_bytes(gzip.compress(b"a B-X\nb O\n"))
    assert load_dataset(tmp_path / "tags.conll.gz").sentences == [("a", "b")]
    (tmp_path / "tags.conll.gz").write_bytes(gzip.compress(b"a B-X\nb O\n" * 50)[:-9])
    with pytest.raises(InputError, match="not readable as words with tags"):
        load_dataset(tmp_path / "tags.conll.gz")
