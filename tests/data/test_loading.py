import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pyarrow.parquet as pq
import pytest

from ade.data import gathering, tables
from ade.data import loading as data
from ade.data.loading import has_split, load_dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError

ROWS = [("a b, c", "x"), ('say "hi"', "y"), ("two\nlines", "x"), ("", "y")]


def _write(path, kind):
    if kind in ("csv", "tsv"):
        separator = "," if kind == "csv" else "\t"
        quoted = ['"{}"{}{}'.format(text.replace('"', '""'), separator, label) for text, label in ROWS]
        path.write_text("\n".join([f"text{separator}label", *quoted]) + "\n")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in ROWS))
    else:
        pyarrow.parquet.write_table(pa.table({"text": [t for t, _ in ROWS], "label": [y for _, y in ROWS]}), path)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_kind_of_file_reads_the_same(kind, tmp_path):
    _write(tmp_path / f"train.{kind}", kind)
    for source in (tmp_path / f"train.{kind}", tmp_path):
        found = load_dataset(source)
        assert list(found.texts) == [text for text, _ in ROWS]
        assert found.names == ("x", "y")
        assert found.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_large_files_are_memory_mapped(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "IN_MEMORY", 0)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    _write(tmp_path / f"train.{kind}", kind)
    found = load_dataset(tmp_path / f"train.{kind}")
    assert list(found.texts) == [text for text, _ in ROWS]
    assert found.labels.tolist() == [0, 1, 0, 1]


def test_classic_layout(tmp_path):
    (tmp_path / "train.csv").write_text('"3","Title","Some ""text""\nhere"\n"1","","No title"\n')
    (tmp_path / "classes.txt").write_text("World\nSports\nBusiness\n")
    found = load_dataset(tmp_path)
    assert list(found.texts) == ['Title Some "text"\nhere', "No title"]
    assert [found.names[i] for i in found.labels] == ["Business", "World"]
    (tmp_path / "classes.txt").unlink()
    assert load_dataset(tmp_path).names == ("1", "2", "3")


def test_a_large_classic_file_is_memory_mapped_and_reads_the_same(tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text('"3","NA","Some ""text""\nhere"\n"1","","No title"\n')
    plain = load_dataset(tmp_path)
    monkeypatch.setattr(gathering, "IN_MEMORY", 0)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    mapped = load_dataset(tmp_path)
    assert list(mapped.texts) == list(plain.texts) == ['NA Some "text"\nhere', "No title"]
    assert mapped.labels.tolist() == plain.labels.tolist() == [2, 0]


def test_column_names_can_be_set(tmp_path):
    (tmp_path / "d.csv").write_text("id,body,kind\n1,hello,a\n2,world,b\n")
    found = load_dataset(tmp_path / "d.csv", text_column="body", label_column="kind")
    assert list(found.texts) == ["hello", "world"]


def test_numeric_labels_keep_their_order(tmp_path):
    (tmp_path / "d.csv").write_text("text,label\n" + "".join(f"t{i},{i}\n" for i in (10, 9, 2, 1)))
    assert load_dataset(tmp_path / "d.csv").names == ("1", "2", "9", "10")


def test_a_hub_data_set_keeps_its_label_names(tmp_path, monkeypatch):
    """The hub's own loader, pointed at a folder laid out like a repository there."""
    import datasets

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, 1]}, features=features)
    (tmp_path / "repo" / "data").mkdir(parents=True)
    rows.to_parquet(tmp_path / "repo" / "data" / "train-00000-of-00001.parquet")
    found = data._from_hub(str(tmp_path / "repo"), "train", data.Schema("text", "label"))
    assert list(found.texts) == ["a", "b", "c"]
    assert [found.names[i] for i in found.labels] == ["yes", "no", "yes"]
    with pytest.raises(InputError, match="no split 'dev'"):
        data._from_hub(str(tmp_path / "repo"), "dev", data.Schema("text", "label"))


def test_splits_of_a_folder(tmp_path):
    _write(tmp_path / "train.csv", "csv")
    _write(tmp_path / "validation.csv", "csv")
    assert has_split(tmp_path, "dev")
    assert not has_split(tmp_path, "test")
    assert len(load_dataset(tmp_path, "dev")) == 4
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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "empty"),
        ("a.csv", "text,label\n", "no rows"),
        ("a.csv", "n,m,label\nhi,1,x\n", "which column holds the texts.*--text-column"),
        ("a.csv", "text,label\na,b,c,d\n", r"row 1 \(line 2\).*4 fields, the header 2"),
        ("a.jsonl", '{"text": "a"', "not readable as json"),
        ("a.jsonl", '{"text": "a", "label": null}\n', "no label"),
        ("a.xml", "<a/>", "unknown kind of file"),
        ("a.parquet", "not parquet at all", "not readable as parquet"),
    ],
)
def test_bad_files_are_one_clear_error(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        load_dataset(tmp_path / name)


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_dataset(tmp_path / "nothing.csv")
    (tmp_path / "b.csv").write_bytes(b"text,label\n\xff\xfe\x00,x\n")
    with pytest.raises(InputError, match=r"b\.csv"):
        load_dataset(tmp_path / "b.csv")


def test_unknown_labels_are_named(topics):
    with pytest.raises(InputError, match="not trained on: sport"):
        topics.relabelled(["money", "space"])
    turned = topics.relabelled(["sport", "space", "money"])
    assert [turned.names[i] for i in turned.labels] == [topics.names[i] for i in topics.labels]


def test_several_labels_come_as_lists_or_with_bars_between(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"text": "x", "label": ["b", "a"]}\n{"text": "y", "label": []}\n{"text": "z", "label": ["c"]}\n'
    )
    (tmp_path / "a.csv").write_text("text,label\nx,b|a\ny,\nz, c \n")
    for found in (load_dataset(tmp_path / "a.jsonl"), load_dataset(tmp_path / "a.csv", problem=MULTI)):
        assert found.problem == MULTI
        assert found.names == ("a", "b", "c")
        assert found.labels.tolist() == [[True, True, False], [False] * 3, [False, False, True]]
        turned = found.relabelled(("c", "b", "a", "d"))
        assert turned.labels.tolist() == [[False, True, True, False], [False] * 4, [True, False, False, False]]
        with pytest.raises(InputError, match="not trained on: c"):
            found.relabelled(("a", "b"))
    with pytest.raises(InputError, match="empty label in row 2"):  # nobody said that it may have none
        load_dataset(tmp_path / "a.csv")
    (tmp_path / "none.csv").write_text("text,label\nx,\ny,|\n")
    with pytest.raises(InputError, match="no row has a label"):
        load_dataset(tmp_path / "none.csv", problem=MULTI)


def test_numbers_are_read_where_they_are_asked_for(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,1.5\ny,-2\nz,1e3\n")
    found = load_dataset(tmp_path / "a.csv", problem=REGRESSION)
    assert (found.problem, found.labels.tolist()) == (REGRESSION, [1.5, -2, 1000])
    rest, held = found.split(0.3, 0)
    assert sorted([*rest.labels, *held.labels]) == [-2, 1.5, 1000]
    assert len(held) == 1
    for wrong in ("high", "nan", "inf"):
        (tmp_path / "bad.csv").write_text(f"text,label\nx,1\ny,{wrong}\n")
        with pytest.raises(InputError, match="numbers"):
            load_dataset(tmp_path / "bad.csv", problem=REGRESSION)


def test_a_hub_data_set_with_several_labels_keeps_their_names(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    named = datasets.List(datasets.ClassLabel(names=["no", "yes", "perhaps"]))
    features = datasets.Features({"text": datasets.Value("string"), "label": named})
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [[1, 0], []]}, features=features)
    (tmp_path / "repo").mkdir()
    rows.to_parquet(tmp_path / "repo" / "train.parquet")
    found = data._from_hub(str(tmp_path / "repo"), "train", data.Schema("text", "label"))
    assert found.names == ("no", "yes", "perhaps")
    assert found.labels.tolist() == [[True, True, False], [False] * 3]


def test_odd_labels_are_one_error_or_none(tmp_path):
    (tmp_path / "b.csv").write_text("text,label\nx,\u00b2\ny,--1\nz,10\nw,9\n")
    assert set(load_dataset(tmp_path / "b.csv").names) == {"\u00b2", "--1", "10", "9"}
    table = pa.table({"text": ["x"], "label": pa.array([{"a": 1}])})
    pq.write_table(table, tmp_path / "c.parquet")
    for problem in (None, SINGLE, MULTI, REGRESSION):
        with pytest.raises(InputError, match="expected plain values"):
            load_dataset(tmp_path / "c.parquet", problem=problem)
    pq.write_table(
        pa.table({"text": ["x", "y"], "label": pa.array([["a", "b"], ["b", "c"]], pa.list_(pa.string(), 2))}),
        tmp_path / "d.parquet",
    )
    assert load_dataset(tmp_path / "d.parquet").names == ("a", "b", "c")
    pq.write_table(pa.table({"text": ["x"], "label": pa.array([0], pa.timestamp("s"))}), tmp_path / "e.parquet")
    with pytest.raises(InputError, match="does not hold numbers"):
        load_dataset(tmp_path / "e.parquet", problem=REGRESSION)
    with pytest.raises(InputError, match="no such file"):
        load_dataset("data/trian.conll")


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("problem", [None, SINGLE, MULTI, REGRESSION])
def test_missing_texts_and_labels_are_refused_by_their_rows(mapped, problem, tmp_path, monkeypatch):
    if mapped:
        monkeypatch.setattr(gathering, "IN_MEMORY", 0)
        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    texts, labels = ["a", "b", None, "d", None], ["1", None, "2", None, "1"]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts, "label": ["1"] * 5}), path)
    with pytest.raises(InputError, match=r"no text \(column 'text'\) in row 3, 5;"):
        load_dataset(path, problem=problem)
    pq.write_table(pa.table({"text": ["a"] * 5, "label": labels}), path)
    with pytest.raises(InputError, match=r"no label \(column 'label'\) in row 2, 4;"):
        load_dataset(path, problem=problem)
    pq.write_table(pa.table({"text": ["a"] * 9, "label": [1.0] + [float("nan")] * 8}), path)
    with pytest.raises(InputError, match=r"no label .* in row 2, 3, 4, 5, 6, \.\.\. \(8 in all\);"):
        load_dataset(path, problem=problem)
    rows = [{"text": "a", "label": "1"}, {"label": "1"}, {"text": "c", "label": "1"}, {"text": None, "label": "1"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"no text .* in row 2, 4;"):
        load_dataset(tmp_path / "a.jsonl", problem=problem)
    rows = [{"text": "a", "label": "1"}, {"text": "b"}, {"text": "c", "label": float("nan")}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    with pytest.raises(InputError, match=r"no label .* in row 2, 3;"):
        load_dataset(tmp_path / "a.json", problem=problem)


def test_empty_labels_are_refused_and_empty_texts_are_not(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,x\n,y\nc,\nd,  \n")
    with pytest.raises(InputError, match="an empty label in row 3, 4;"):
        load_dataset(tmp_path / "a.csv")
    with pytest.raises(InputError, match="no number in row 3, 4;"):
        load_dataset(tmp_path / "a.csv", problem=REGRESSION)
    (tmp_path / "a.csv").write_text("text,label\na,x\n,y\n")
    assert list(load_dataset(tmp_path / "a.csv").texts) == ["a", ""]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([["a"], ["a", None], []], "null among the labels in row 2;"),
        ([["a"], ["b"], ["a", " "]], "an empty name among the labels in row 3;"),
        ([["a"], None, ["b"]], "no label .* in row 2;"),
        ([[1.0], [2.0, float("nan")], []], "null among the labels in row 2;"),
    ],
)
def test_lists_with_missing_labels_are_refused(labels, message, tmp_path):
    pq.write_table(pa.table({"text": ["x", "y", "z"], "label": labels}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        load_dataset(tmp_path / "a.parquet")


def test_lists_in_several_batches_are_marked_at_their_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BATCH_ROWS", 7)
    labels = [[str(i % 3), str(i % 5)][: i % 4] for i in range(100)]
    rows = [json.dumps({"text": str(i), "label": label}) for i, label in enumerate(labels)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    found = load_dataset(tmp_path / "a.jsonl")
    assert [{found.names[i] for i in np.flatnonzero(row)} for row in found.labels] == [set(label) for label in labels]


def test_classes_txt_is_checked(tmp_path):
    (tmp_path / "train.csv").write_text("1,a\n3,b\n")
    for content, message in (
        (b"x\ny\nx\n", "classes.txt: names a class twice .x."),
        (b"x\ny\n", "a class number beyond those known .* 1 to 2 by classes.txt.* in row 2;"),
        (b"x\n\xff\n", "classes.txt: not UTF-8"),
    ):
        (tmp_path / "classes.txt").write_bytes(content)
        with pytest.raises(InputError, match=message):
            load_dataset(tmp_path)
    (tmp_path / "classes.txt").unlink()
    for first, message in (("0,a", "beyond those known .* in row 1"), ("1,a\nx,b", "no class number .* row 2")):
        (tmp_path / "train.csv").write_text(f"{first}\n1,b\n")
        with pytest.raises(InputError, match=message):
            load_dataset(tmp_path)
    (tmp_path / "train.csv").write_text("1,a\n999999999,b\n")
    with pytest.raises(InputError, match="beyond those known"):  # not a billion names
        load_dataset(tmp_path)


def test_bytes_that_are_no_text_are_named_by_their_row(tmp_path):
    broken = pa.array([b"ok", b"fine", b"\xff\xfe", b"ok"])
    strings = pa.Array.from_buffers(pa.string(), 4, broken.buffers())
    for text, label in ((strings, ["x"] * 4), (["a"] * 4, strings), (broken, ["x"] * 4)):
        pq.write_table(pa.table({"text": text, "label": label}), tmp_path / "a.parquet")
        with pytest.raises(InputError, match=r"row 3: column '(text|label)' is not UTF-8"):
            load_dataset(tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": [b"a", b"b"], "label": ["x", "y"]}), tmp_path / "a.parquet")
    assert list(load_dataset(tmp_path / "a.parquet").texts) == ["a", "b"]


def test_categories_of_pandas_are_classes(tmp_path, monkeypatch):
    label = pa.array(["x", "y", "x"]).dictionary_encode()
    pq.write_table(pa.table({"text": ["a", "b", "c"], "label": label}), tmp_path / "a.parquet")
    assert load_dataset(tmp_path / "a.parquet").names == ("x", "y")
    monkeypatch.setattr(gathering, "IN_MEMORY", 0)
    monkeypatch.setattr(tables, "BATCH_ROWS", 1)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    assert load_dataset(tmp_path / "a.parquet").labels.tolist() == [0, 1, 0]


def test_lines_of_fasttext(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("__label__b one  text\n\n__label__a another __label__ one\n__label__b\n")
    for source in (path, tmp_path):
        found = load_dataset(source)
        assert list(found.texts) == ["one  text", "another __label__ one", ""]
        assert [found.names[i] for i in found.labels] == ["b", "a", "b"]
    assert load_dataset(path, problem=MULTI).labels.tolist() == [[False, True], [True, False], [False, True]]
    path.write_text("__label__1.5 x\n__label__2 y\n")
    assert load_dataset(path, problem=REGRESSION).labels.tolist() == [1.5, 2]
    path.write_text("__label__a __label__b x\n__label__b y\nz\n")
    assert load_dataset(path).labels.tolist() == [[True, True], [False, True], [False, False]]
    with pytest.raises(InputError, match="no label in row 3"):
        load_dataset(path, problem=SINGLE)
    path.write_text("__label__a __label__b x\n__label__b y\n")
    with pytest.raises(InputError, match=r"several labels .* row 1"):
        load_dataset(path, problem=SINGLE)
    path.write_text("plain text\n")
    with pytest.raises(InputError, match="__label__NAME"):
        load_dataset(path)
    assert not has_split(tmp_path, "train")  # a text file may be anything
