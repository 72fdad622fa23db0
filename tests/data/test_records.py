"""Any source gives rows as dictionaries, as they arrive."""

import gzip
import io
import json
import os

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ade.data.records import Records, given_texts, read_texts
from ade.data.streams import LineStream
from ade.errors import InputError

ROWS = [
    {"id": "1", "review": 'good, "really"', "stars": "5"},
    {"id": "2", "review": "bad\nindeed", "stars": "1"},
    {"id": "3", "review": "", "stars": "t\tab; semi"},
]


def everything(source, **options):
    with read_texts(source, **options) as found:
        return found.columns, found.text, list(found.rows)


def as_csv(delimiter):
    quoted = [delimiter.join('"' + value.replace('"', '""') + '"' for value in row.values()) for row in ROWS]
    return delimiter.join(ROWS[0]) + "\n" + "\n".join(quoted) + "\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, as_csv(delimiter)) for name in ("a.csv", "a.tsv") for delimiter in (",", ";", "\t")),
        ("a.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS)),
        ("a.ndjson", "".join(json.dumps(row) + "\r\n" for row in ROWS)),
        ("a.json", json.dumps(ROWS)),
        ("a.json", json.dumps(ROWS, indent=2)),
    ],
)
def test_rows_keep_their_other_columns(name, content, tmp_path):
    data = content.encode()
    (tmp_path / name).write_bytes(data)
    (tmp_path / f"bom_{name}").write_bytes(b"\xef\xbb\xbf" + data)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    for written in (name, f"bom_{name}", f"{name}.gz"):
        assert everything(tmp_path / written) == (("id", "review", "stars"), "review", ROWS)


def test_types_of_parquet_and_json_stay_but_those_of_texts(tmp_path):
    pq.write_table(pa.table({"text": ["a", "b"], "n": [1, 2]}), tmp_path / "a.parquet")
    assert everything(tmp_path / "a.parquet")[2] == [{"text": "a", "n": 1}, {"text": "b", "n": 2}]
    rows = [{"text": 3, "n": 1.5, "list": [1, None], "flag": True}, {"text": True, "n": 2}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert everything(tmp_path / "a.jsonl")[2] == [rows[0] | {"text": "3"}, rows[1] | {"text": "true"}]


def test_lines_of_text_and_of_fasttext(tmp_path):
    (tmp_path / "a.txt").write_text("one, text\n\n__label__x two\r\n")
    rows = [{"text": text} for text in ("one, text", "", "__label__x two")]
    assert everything(tmp_path / "a.txt") == (("text",), "text", rows)
    (tmp_path / "b.txt").write_text("__label__x two\n__label__x __label__y three\n")
    rows = [{"label": ["x"], "text": "two"}, {"label": ["x", "y"], "text": "three"}]
    expected = (("label", "text"), "text", rows)
    assert everything(tmp_path / "b.txt") == everything(tmp_path / "b.txt", format="fasttext") == expected


def test_python_objects_give_dictionaries():
    rows = [{"review": "good", "n": 1}, {"review": "bad", "n": 2}]
    columns = {"review": ["good", "bad"], "n": [1, 2]}
    for source in (
        rows,
        columns,
        pa.table(columns),
        pa.table(columns).to_pandas(),
        datasets.Dataset.from_dict(columns),
    ):
        assert everything(source) == (("review", "n"), "review", rows)
    assert everything(["good", "bad"]) == (("text",), "text", [{"text": "good"}, {"text": "bad"}])
    with pytest.raises(InputError, match="different numbers of rows: 'a' 1, 'text' 2"):
        everything({"a": [1], "text": ["b", "c"]})


COLUMNS = {"id": [1, 2], "review": ["good", "bad"]}


@pytest.mark.parametrize(
    "given",
    [
        COLUMNS,
        pd.DataFrame(COLUMNS, index=[1.5, 0.5]),
        pd.DataFrame(COLUMNS, index=[1.5, 0.5])["review"],
        pd.DataFrame({7: COLUMNS["review"]}),
        pa.table(COLUMNS),
        pa.table(COLUMNS)["review"],
        pa.array(COLUMNS["review"]),
        pa.RecordBatch.from_pydict(COLUMNS),
        datasets.Dataset.from_dict(COLUMNS),
        datasets.Dataset.from_dict(COLUMNS)["review"],
        datasets.Dataset.from_dict(COLUMNS).to_iterable_dataset(),
        COLUMNS["review"],
        np.array(COLUMNS["review"]),
        iter(COLUMNS["review"]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_columns_and_tables_give_their_texts_and_never_their_names(given):
    assert list(given_texts(given)) == ["good", "bad"]


def test_a_table_whose_texts_cannot_be_told_is_refused():
    for given in (pd.DataFrame({"n": [1], "m": [2]}), pa.table({"n": [1], "m": [2]}), {"n": [1], "m": [2]}):
        with pytest.raises(InputError, match=r"which column holds the texts\? .* n, m; call it 'text'"):
            given_texts(given)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "n,m\n1,2\n", r"which column holds the texts\? .* n, m; .* name it with --text-column"),
        ("a.jsonl", '{"text": "a"}\n{"n": 1}\n', "row 2: column 'text' holds no text"),
        ("a.jsonl", '{"text": "a"}\n{"text": [3]}\n', "row 2: column 'text' holds a list"),
        ("a.jsonl", '{"text": "\\ud800"}\n', "row 1: .*surrogate"),
        ("none.csv", None, "No such file"),
        ("a.csv", "text,n\na,1\n", "no column 'body'"),
    ],
)
def test_what_cannot_be_read_is_named(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises((InputError, FileNotFoundError), match=message):
        everything(tmp_path / name, text_column="body" if "body" in message else None)


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_pipe_is_read_row_by_row(kind, tmp_path):
    """A row can be had before the next one is written; of JSON lines, too, no more is waited for than a line."""
    first, second = ("", '{"text": "a"}\n') if kind == "json" else ("text\n", "a\n")
    os.mkfifo(tmp_path / "pipe")
    writing = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(writing, (first + second).encode())
    with read_texts(tmp_path / "pipe", kind) as found:
        assert next(found.rows) == {"text": "a"}
        assert not found.stream.ready()
        os.write(writing, second.encode())
        assert next(found.rows) == {"text": "a"}
    os.close(writing)


def test_a_pipe_that_is_not_utf8_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writing = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(writing, b"a\n\xff\n")
    with pytest.raises(InputError, match="pipe: not UTF-8 text"), read_texts(tmp_path / "pipe") as found:
        list(found.rows)
    os.close(writing)


@pytest.mark.parametrize("data", [b"", b"a", b"a\n", b"a\nb", b"\n\na\r\n", "\ufeffä\n€\u2028x\n".encode()])
def test_lines_of_a_stream_are_those_of_a_file(data, tmp_path):
    (tmp_path / "a").write_bytes(data)
    with open(tmp_path / "a", encoding="utf-8-sig", newline="\n") as file:
        assert list(LineStream(io.BytesIO(data))) == list(file)


def test_bytes_of_a_character_may_arrive_one_by_one():
    read, write = os.pipe()
    with open(read, "rb") as source:
        stream = LineStream(source)
        assert not stream.ready()
        for byte in "ä".encode():
            os.write(write, bytes([byte]))
            assert not stream.ready()
        os.write(write, b"\nrest")
        assert stream.ready()
        assert next(stream) == "ä\n"
        assert not stream.ready()
        os.close(write)
        assert stream.ready()  # the end has arrived
        assert list(stream) == ["rest"]
    with pytest.raises(UnicodeDecodeError):
        list(LineStream(io.BytesIO(b"a\n\xff\n")))


def test_a_chunk_ends_where_nothing_more_has_arrived():
    read, write = os.pipe()
    with open(read, "rb") as source:
        stream = LineStream(source)
        found = Records("a", ("text",), stream, stream=stream).chunks(3)
        os.write(write, b"1\n2\n3\n4\n5")
        assert next(found) == ["1\n", "2\n", "3\n"]
        assert next(found) == ["4\n"]
        os.close(write)
        assert list(found) == [["5"]]
    assert list(Records("a", ("text",), iter(range(5))).chunks(2)) == [[0, 1], [2, 3], [4]]
