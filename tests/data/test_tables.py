import csv
import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ade.data import gathering, tables
from ade.data.conll import load_tagged
from ade.data.loading import has_split, load_dataset
from ade.errors import InputError

ROWS = [("a b, c", "x"), ('say "hi"', "y"), ("two\nlines", "x"), ("", "y"), ("t\tab; semi", "x")]


@pytest.fixture
def small_memory(tmp_path, monkeypatch):
    """Files of any size are memory-mapped, as those above `IN_MEMORY` are."""
    monkeypatch.setattr(gathering, "IN_MEMORY", 0)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def _content(kind: str) -> bytes:
    if kind in (",", ";", "\t"):
        lines = []

        class Sink:
            def write(self, line: str) -> None:
                lines.append(line)

        writer = csv.writer(Sink(), delimiter=kind, lineterminator="\n")
        writer.writerows([("text", "label"), *ROWS])
        return "".join(lines).encode()
    objects = [json.dumps({"text": text, "label": label}) for text, label in ROWS]
    return ("\n".join(objects) if kind == "lines" else "[" + ",\n ".join(objects) + "]\n").encode()


KINDS = [
    *(("a.csv", each) for each in (",", ";", "\t")),
    *(("a.tsv", each) for each in (",", ";", "\t")),
    *((name, each) for name in ("a.json", "a.jsonl", "a.ndjson") for each in ("lines", "array")),
]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_way_to_write_a_file_reads_the_same(name, kind, mapped, tmp_path, request):
    if mapped:
        request.getfixturevalue("small_memory")
    content = _content(kind)
    (tmp_path / name).write_bytes(content)
    (tmp_path / f"bom_{name}").write_bytes(b"\xef\xbb\xbf" + content)
    crlf = content if kind in ",;\t" else content.replace(b"\n", b"\r\n")  # of CSV it would change a text
    (tmp_path / f"crlf_{name}").write_bytes(crlf)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    for path in (name, f"bom_{name}", f"crlf_{name}", f"{name}.gz"):
        found = load_dataset(tmp_path / path)
        assert [(text, found.names[i]) for text, i in zip(found.texts, found.labels, strict=True)] == ROWS


def test_splits_of_a_folder_may_be_gzipped(tmp_path):
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(_content(",")))
    (tmp_path / "valid.jsonl.gz").write_bytes(gzip.compress(_content("lines")))
    (tmp_path / "test.txt").write_text("plain text\n")  # not ours
    assert len(load_dataset(tmp_path)) == len(load_dataset(tmp_path, "dev")) == len(ROWS)
    assert [has_split(tmp_path, split) for split in ("train", "dev", "test")] == [True, True, False]
    (tmp_path / "tags.conll.gz").write_bytes(gzip.compress(b"a B-X\nb O\n"))
    assert load_tagged(tmp_path / "tags.conll.gz").sentences == [("a", "b")]
    (tmp_path / "tags.conll.gz").write_bytes(gzip.compress(b"a B-X\nb O\n" * 50)[:-9])
    with pytest.raises(InputError, match="not readable as words with tags"):
        load_tagged(tmp_path / "tags.conll.gz")


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label,label\na,x,y\n", "2 columns are called 'label'"),
        ("a.csv", b"text,text,label\na,x,y\n", "2 columns are called 'text'"),
        ("a.csv", b"text,label\na,x\nb\xff,y\n", "not UTF-8 text in line 3"),
        ("a.csv", b"text,label\na,x\nb,y,z\n", r"row 2 \(line 3\).*3 fields, the header 2"),
        ("a.csv", b"text,label\na,x\nb\n", r"row 2 \(line 3\).*1 field, the header 2"),
        ("a.csv", b"1,a,b\n2,c\n", r"row 2 \(line 2\).*2 fields, the first row 3"),
        ("a.csv", b"\n\n", "empty"),
        ("a.csv.gz", b"text,label\n", "not readable as csv"),
        ("a.csv.gz", gzip.compress(b"text,label\na,x\n" * 50, mtime=0)[:-20], "not readable as csv"),
        ("a.jsonl", b'{"text": "a", "label": "x"}\n{"text"\n', "line 2: not readable as json"),
        ("a.jsonl", b'{"text": "a", "label": "x"}\n[1]\n', "row 2: not an object"),
        ("a.jsonl", b'{"text": "a", "label": "x"}\n{"text": "\\ud800", "label": "x"}\n', "row 2.*surrogate"),
        ("a.jsonl", b'{"text": "a", "label": "x"}\n{"text": ["a"], "label": "x"}\n', "row 2.*'text' holds a list"),
        ("a.jsonl", b'{"text": "a", "label": "x"}\n{"text": "a", "label": ["x"]}\n', "row 2.*lists in some rows"),
        ("a.jsonl", b'{"text": "a", "label": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not readable as json"),
        ("a.jsonl", b'{"text": "a", "label": "\xff"}\n', "not UTF-8 text in line 1"),
        ("a.json", b'[{"text": "a", "label": "x"}, {"text": "b" "label": "y"}]', "row 2: not readable as json"),
        ("a.json", b'[{"text": "a", "label": "x"}, {"text": "b', "row 2: not readable as json"),
        ("a.json", b'[{"text": "a", "label": "x"}', "row 2: not readable as json"),
        ("a.json", b'[{"text": "a", "label": "x"}] more', "after the end of the array"),
        ("a.json", b"[]", "no rows"),
        ("a.json", b" \n", "empty"),
        ("a.txt", b"__label__a x\n__label__b \xff\n", "not UTF-8"),
        ("a.parquet", b"PAR1 not really PAR1", "not readable as parquet"),
        ("a.parquet.gz", gzip.compress(b"x", mtime=0), "unknown kind of file"),
    ],
)
def test_malformed_files_are_one_line(name, content, message, mapped, tmp_path, request):
    if mapped:
        request.getfixturevalue("small_memory")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        load_dataset(tmp_path / name)
    assert str(raised.value).startswith(str(tmp_path / name))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400
    assert not list(tmp_path.glob("cache/**/*.*"))  # nothing half-written stays


def test_columns_of_parquet_are_looked_for(tmp_path):
    twice = pa.table([pa.array(["a"])] * 3, names=["text", "text", "label"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="2 columns are called 'text'"):
        load_dataset(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="no column 'body'"):
        load_dataset(tmp_path / "a.parquet", text_column="body")
    with pytest.raises(InputError, match="both the texts and the labels"):
        load_dataset(tmp_path / "a.parquet", text_column="label", label_column="label")


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("kind", ["with a header", "without", "jsonl", "gz", "fasttext", "parquet"])
def test_large_files_take_no_memory(kind, tmp_path):
    """Texts of 8 MB stay on the disk, whatever the layout."""
    texts = [" ".join(random.Random(i).choices(["goal", "bank", "orbit"], k=150)) for i in range(10_000)]
    if kind == "parquet":
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"text": texts, "label": ["1", "2"] * 5000}), path)
    else:
        form, name = {
            "with a header": ("{0},{1}\n", "a.csv"),
            "without": ('"{1}","{0}"\n', "a.csv"),
            "jsonl": ('{{"text": "{0}", "label": {1}}}\n', "a.jsonl"),
            "gz": ('"{1}","{0}"\n', "a.csv.gz"),
            "fasttext": ("__label__{1} {0}\n", "a.txt"),
        }[kind]
        head = "text,label\n" if kind == "with a header" else ""
        content = head + "".join(form.format(text, i % 2 + 1) for i, text in enumerate(texts))
        path = tmp_path / name
        path.write_bytes(gzip.compress(content.encode(), 1) if kind == "gz" else content.encode())
    found = load_dataset(path)
    assert isinstance(found.texts.data, np.memmap)
    assert list(found.texts) == texts
    assert found.labels.tolist() == [0, 1] * 5000
    assert len(list(tmp_path.glob("cache/ade/*"))) == 1


@pytest.mark.usefixtures("small_memory")
def test_what_is_cached_is_read_again_and_never_stale(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,x\nb,y\n")
    assert list(load_dataset(path).texts) == ["a", "b"]
    monkeypatch.setattr(tables, "gather", None)  # nothing is gathered a second time
    assert list(load_dataset(path).texts) == ["a", "b"]
    monkeypatch.undo()
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gathering, "IN_MEMORY", 0)
    path.write_text("text,label\nother,x\nb,y\n")
    assert list(load_dataset(path).texts) == ["other", "b"]
    assert list(load_dataset(path, text_column="label", label_column="text").texts) == ["x", "y"]
    for damaged in ("texts.bin", "columns.safetensors", "table.json"):
        for cached in tmp_path.glob(f"cache/ade/*/{damaged}"):
            cached.write_bytes(b"damaged")
        assert list(load_dataset(path).texts) == ["other", "b"]
