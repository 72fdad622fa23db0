"""Datasets: how they are split and relabelled, and how rows of any file become one."""

import gzip
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from ade.data import records, texts as texts_module
from ade.data.columns import Schema
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.sources import as_dataset, load_dataset, split_files
from ade.data.tags import TaggedDataset
from ade.errors import InputError
from ade.training.schedule import DEV_ROWS, validation_split

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=30)


def of_sizes(sizes: list[int]) -> Dataset:
    """A class of each size, its rows scattered."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Dataset([str(i) for i in range(len(labels))], labels, tuple(f"c{i}" for i in range(len(sizes))))


@given(sizes=SIZES, share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_a_split_holds_back_the_share_it_says_and_leaves_every_class_a_row(sizes, share, seed):
    data = of_sizes(sizes)
    rest, held = data.split(share, seed)
    assert sorted([*rest.texts, *held.texts]) == sorted(data.texts)
    can_go = len(data) - len(sizes)  # all but one row of every class
    assert len(held) == min(max(1, round(share * len(data))), can_go)
    assert np.bincount(rest.labels, minlength=len(sizes)).min() >= 1


@given(size=st.integers(20, 200), classes=st.integers(2, 12), share=st.floats(0.05, 0.5), seed=st.integers(0, 99))
def test_a_split_is_stratified(size, classes, share, seed):
    _, held = of_sizes([size] * classes).split(share, seed)
    counts = np.bincount(held.labels, minlength=classes)
    assert np.abs(counts - share * size).max() <= 1.5


@pytest.mark.parametrize("tagged", [False, True])
def test_rows_are_split_at_random_from_all_over_the_data(tagged):
    if tagged:
        data = TaggedDataset([(str(i),) for i in range(200)], [np.zeros(1, np.int64)] * 200, ("O",))
    else:
        data = Dataset([str(i) for i in range(200)], np.arange(200.0), ("value",))

    def places(part) -> list[int]:
        return [int(words[0]) for words in part.sentences] if tagged else [int(text) for text in part.texts]

    rest, held = map(places, data.split(0.2, seed=0))
    assert len(held) == 40
    assert sorted(held + rest) == list(range(200))
    assert all(sum(start <= place < start + 50 for place in held) >= 3 for start in (0, 50, 100, 150))
    assert len(set(np.diff(held))) > 2  # nor one of every five
    assert places(data.split(0.2, seed=0)[1]) == held
    assert places(data.split(0.2, seed=1)[1]) != held


def test_of_small_data_a_row_is_held_back_and_of_large_data_a_maximum():
    for sizes, expected in (([2, 1], 1), ([2] * 20, 2), ([30_000, 30_000], DEV_ROWS)):
        rest, dev = validation_split(of_sizes(sizes), 0)
        assert (len(dev), len(rest)) == (expected, sum(sizes) - expected)
    with pytest.raises(InputError, match="no class has two rows"):
        validation_split(of_sizes([1, 1, 1]), 0)


def test_unknown_labels_are_named(topics):
    with pytest.raises(InputError, match="not trained on: sport"):
        topics.relabelled(["money", "space"])
    turned = topics.relabelled(["sport", "space", "money"])
    assert [turned.names[i] for i in turned.labels] == [topics.names[i] for i in topics.labels]


def labels_of(data: Dataset) -> list[str]:
    return [data.names[i] for i in data.labels]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\na,x\nb\xff,y\n", "not UTF-8 text in line 3"),
        ("a.csv", b"text,label\na,x\nb,y,z\n", r"row 2 \(line 3\).*3 fields, the header 2"),
        ("a.csv", b"text,label\n\na,x\nb\n", r"row 2 \(line 4\).*1 field, the header 2"),
        ("a.csv", b"1,a,b\n2,c\n", r"row 2 \(line 2\).*2 fields, the first row 3"),
        ("a.csv", b"", "empty"),
        ("a.csv", b"text,label\n", "no rows"),
        ("a.csv", b"n,m,label\nhi,1,x\n", "which column holds the texts.*--text-column"),
        ("a.xml", b"<a/>", "unknown kind of file"),
        ("a.csv.gz", b"text,label\n", "not readable as csv"),
        ("a.csv.gz", gzip.compress(b"text,label\na,x\n" * 50, mtime=0)[:-20], "not readable as csv"),
        ("a.jsonl", b'{"text": "a", "label": "x"}\n{"text"\n{"text": "a", "label": "x"}\n', "row 2: not readable as"),
        ("a.jsonl", b'{"text": "a", "label": "x"}\n[1]\n', "row 2: not an object"),
        ("a.jsonl", b'{"text": "a", "label": "x"}\n{"text": ["a"], "label": "x"}\n', "row 2.*'text' holds a list"),
        ("a.jsonl", b'{"text": "a", "label": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not readable as json"),
        ("a.jsonl", b'{"text": "a", "label": "\xff"}\n', "not UTF-8 text in line 1"),
        ("a.json", b'[{"text": "a", "label": "x"}, {"text": "b" "label": "y"}]', "not readable as json"),
        ("a.json", b'[{"text": "a", "label": "x"}, {"text": "b', "not readable as json"),
        ("a.json", b'[{"text": "a", "label": "x"}] more', "not readable as json .Extra data"),
        ("a.json", b"[]", "no rows"),
        ("a.json", b" \n", "empty"),
        ("a.txt", b"__label__a x\n__label__b \xff\n", "not UTF-8"),
        ("a.txt", b"plain text\n", "__label__NAME"),
        ("a.parquet", b"PAR1 not really PAR1", "not readable as parquet"),
        ("a.parquet.gz", gzip.compress(b"x", mtime=0), "unknown kind of file"),
    ],
)
def test_malformed_files_are_one_line(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        load_dataset(tmp_path / name)
    assert str(raised.value).startswith(str(tmp_path / name))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("texts", "labels", "problem", "message"),
    [
        (["a", None], ["x", "y"], None, "row 2: column 'text' holds no text"),
        (["a", "b", "c"], ["x", "y", None], None, "row 3: column 'label' holds no label"),
        (["a", "b", "c"], [1.0, 2.0, float("nan")], REGRESSION, "row 3: column 'label' holds no label"),
        (["a", "b"], ["x", " "], None, "row 2: column 'label' holds an empty label"),
        (["a", "b"], ["x", " "], SINGLE, "row 2: column 'label' holds an empty label"),
        (["a", "b"], ["1", " "], REGRESSION, "row 2: column 'label' holds no number"),
        (["a", "b"], ["1", "high"], REGRESSION, "row 2: column 'label' does not hold numbers, but 'high'"),
        (["a", "b"], ["1", "nan"], REGRESSION, "row 2: .* not finite: nan"),
        (["a", "b"], ["1", "1e39"], REGRESSION, "row 2: .* not finite: 1e39"),
        (["a", "b"], ["", "|"], MULTI, r"no row has a label \(column 'label'\)"),
        (["a", "b"], [["a"], ["a", None]], None, "row 2: column 'label' holds no label"),
        (["a", "b"], [["a"], ["a", " "]], None, "row 2: column 'label' holds an empty label"),
        (["a", "b"], [["a"], None], MULTI, "row 2: column 'label' holds no label"),
        (["a", "b"], [["a"], []], SINGLE, "row 2: column 'label' holds no label"),
        (["a"], [{"a": 1}], None, "row 1: column 'label' holds an object, expected plain values"),
        (["a"], [{"a": 1}], REGRESSION, "row 1: column 'label' holds an object, expected plain values"),
        ([b"ok", b"\xff\xfe"], ["x", "y"], None, "row 2: column 'text' is not UTF-8 text"),
    ],
)
def test_what_is_missing_or_wrong_is_named_by_its_row(texts, labels, problem, message):
    with pytest.raises(InputError, match=message):
        as_dataset(texts, labels, Schema(problem=problem))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl.gz", "a.parquet"])
def test_the_texts_of_large_files_stay_on_the_disk(name, tmp_path, monkeypatch):
    monkeypatch.setattr(texts_module, "IN_MEMORY", 0)
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    texts = [" ".join(random.Random(i).choices(["goal", "bank", "orbit"], k=150)) for i in range(1000)]
    frame = pd.DataFrame({"text": texts, "label": ["1", "2"] * 500})
    if name == "a.csv":
        frame.to_csv(tmp_path / name, index=False)
    elif name == "a.parquet":
        frame.to_parquet(tmp_path / name)
    else:
        frame.to_json(tmp_path / name, orient="records", lines=True)
    found = load_dataset(tmp_path / name)
    assert isinstance(found.texts.data, np.memmap)
    assert list(found.texts) == texts
    assert found.labels.tolist() == [0, 1] * 500
    assert list((tmp_path / "cache").iterdir()) == []  # the file has no name: a killed process leaves nothing


def test_a_file_without_a_header(tmp_path):
    (tmp_path / "train.csv").write_text('"3","Title","Some ""text""\nhere"\n"1","","No title"\n')
    found = load_dataset(tmp_path)
    assert list(found.texts) == ['Title Some "text"\nhere', "No title"]
    assert labels_of(found) == ["3", "1"]


def test_a_file_without_a_header_and_the_names_of_its_classes(tmp_path):
    (tmp_path / "train.csv").write_text('"3","Title","Some ""text""\nhere"\n"1","","No title"\n')
    (tmp_path / "classes.txt").write_text("World\nSports\nBusiness\n")
    found = load_dataset(tmp_path)
    assert list(found.texts) == ['Title Some "text"\nhere', "No title"]
    assert found.names == ("World", "Sports", "Business")
    assert labels_of(found) == ["Business", "World"]
    for content, message in (
        (b"x\ny\nx\n", "no name of its own for each of the classes 1, 3"),
        (b"x\ny\n", "no name of its own for each of the classes 1, 3"),
        (b"x\n\xff\n", "classes.txt: not UTF-8"),
    ):
        (tmp_path / "classes.txt").write_bytes(content)
        with pytest.raises(InputError, match=message):
            load_dataset(tmp_path)
    (tmp_path / "classes.txt").unlink()
    assert load_dataset(tmp_path).names == ("1", "3")


def test_names_are_in_order_and_keep_their_spelling(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"t{i},{i}\n" for i in (10, 9, 2, 1)))
    assert load_dataset(tmp_path / "a.csv").names == ("1", "2", "9", "10")
    (tmp_path / "a.csv").write_text("text,label\nx,\u00b2\n,--1\nz,10\nw,9\n")
    found = load_dataset(tmp_path / "a.csv")
    assert labels_of(found) == ["\u00b2", "--1", "10", "9"]
    assert found.texts[1] == ""  # an empty text is one


def test_several_labels_come_as_lists_or_with_bars_between(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"text": "x", "label": ["b", "a"]}\n{"text": "y", "label": []}\n{"text": "z", "label": ["c"]}\n'
    )
    (tmp_path / "a.csv").write_text("text,label\nx,b|a\ny,\nz, c |\n")
    for found in (load_dataset(tmp_path / "a.jsonl"), load_dataset(tmp_path / "a.csv", problem=MULTI)):
        assert found.problem == MULTI
        assert found.names == ("a", "b", "c")
        assert found.labels.tolist() == [[True, True, False], [False] * 3, [False, False, True]]
        turned = found.relabelled(("c", "b", "a", "d"))
        assert turned.labels.tolist() == [[False, True, True, False], [False] * 4, [True, False, False, False]]
        with pytest.raises(InputError, match="not trained on: c"):
            found.relabelled(("a", "b"))


def test_lists_and_categories_of_parquet_come_batch_by_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "BATCH_ROWS", 7)
    labels = [[str(i % 3), str(i % 5)][: i % 4] for i in range(100)]
    categories = pa.array([str(i % 3) for i in range(100)]).dictionary_encode()
    for column in (pa.array(labels), categories):
        pq.write_table(pa.table({"text": [str(i) for i in range(100)], "label": column}), tmp_path / "a.parquet")
        found = load_dataset(tmp_path / "a.parquet")
        if column is categories:
            assert labels_of(found) == [str(i % 3) for i in range(100)]
        else:
            marked = [{found.names[i] for i in np.flatnonzero(row)} for row in found.labels]
            assert marked == [set(label) for label in labels]


def test_lines_of_fasttext(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("__label__b one  text\n\n__label__a another __label__ one\n__label__b\n")
    for source in (path, tmp_path):
        found = load_dataset(source)
        assert list(found.texts) == ["one  text", "another __label__ one", ""]
        assert labels_of(found) == ["b", "a", "b"]
    assert load_dataset(path, problem=MULTI).labels.tolist() == [[False, True], [True, False], [False, True]]
    path.write_text("__label__1.5 x\n__label__2 y\n")
    assert load_dataset(path, problem=REGRESSION).labels.tolist() == [1.5, 2]
    path.write_text("__label__a __label__b x\n__label__b y\nz\n")
    assert load_dataset(path).labels.tolist() == [[True, True], [False, True], [False, False]]
    with pytest.raises(InputError, match=r"row 1: .* several labels \(which --problem multi-label takes\)"):
        load_dataset(path, problem=SINGLE)
    path.write_text("__label__b y\nz\n")
    for problem in (None, SINGLE):
        with pytest.raises(InputError, match="row 2: column 'label' holds no label"):
            load_dataset(path, problem=problem)
    path.write_text("plain text\n")
    assert not split_files(tmp_path)  # a text file may be anything


def test_bytes_of_parquet_that_are_no_text_are_refused(tmp_path):
    strings = pa.Array.from_buffers(pa.string(), 3, pa.array([b"ok", b"\xff\xfe", b"ok"]).buffers())
    for text, label in ((strings, ["x"] * 3), (["a"] * 3, strings)):
        pq.write_table(pa.table({"text": text, "label": label}), tmp_path / "a.parquet")
        with pytest.raises(InputError, match="not UTF-8 text"):
            load_dataset(tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": [b"a", b"b"], "label": ["x", "y"]}), tmp_path / "a.parquet")
    assert list(load_dataset(tmp_path / "a.parquet").texts) == ["a", "b"]
