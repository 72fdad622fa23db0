import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pyarrow.parquet as pq
import pytest

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
    monkeypatch.setattr(data, "IN_MEMORY", 0)
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
    monkeypatch.setattr(data, "IN_MEMORY", 0)
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
    found = data._from_hub(str(tmp_path / "repo"), "train", data.Columns("text", "label"))
    assert list(found.texts) == ["a", "b", "c"]
    assert [found.names[i] for i in found.labels] == ["yes", "no", "yes"]
    with pytest.raises(InputError, match="no split 'dev'"):
        data._from_hub(str(tmp_path / "repo"), "dev", data.Columns("text", "label"))


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
        ("a.csv", "words,label\nhi,x\n", "no column 'text'"),
        ("a.csv", "text,label\na,b,c,d\n", "not readable as csv"),
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
    assert load_dataset(tmp_path / "a.csv").problem == SINGLE  # nobody said otherwise
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
    found = data._from_hub(str(tmp_path / "repo"), "train", data.Columns("text", "label"))
    assert found.names == ("no", "yes", "perhaps")
    assert found.labels.tolist() == [[True, True, False], [False] * 3]


def test_odd_labels_are_one_error_or_none(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": ["a", null]}\n{"text": "y", "label": ["b"]}\n')
    assert load_dataset(tmp_path / "a.jsonl").names == ("a", "b")
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
