import gzip
import io
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ade.data.reading import format_of, read_texts
from ade.errors import InputError

ROWS = [{"id": "1", "review": 'good, "really"', "stars": "5"}, {"id": "2", "review": "bad\nindeed", "stars": "1"}]


def _all(source, **options):
    with read_texts(source, **options) as found:
        return found.columns, found.text, list(found)


def _csv(delimiter):
    quoted = [delimiter.join('"' + value.replace('"', '""') + '"' for value in row.values()) for row in ROWS]
    return delimiter.join(ROWS[0]) + "\n" + "\n".join(quoted) + "\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", _csv(",")),
        ("a.csv", _csv(";")),
        ("a.tsv", _csv("\t")),
        ("a.csv", "\ufeff" + _csv(",")),
        ("a.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS)),
        ("a.json", json.dumps(ROWS)),
        ("a.json", json.dumps(ROWS, indent=2)),
    ],
)
def test_rows_keep_their_other_columns(name, content, tmp_path):
    (tmp_path / name).write_text(content, newline="")
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    expected = (("id", "review", "stars"), "review", ROWS)
    assert _all(tmp_path / name) == _all(tmp_path / f"{name}.gz") == expected
    stream = io.StringIO(content.removeprefix("\ufeff"), newline="")
    assert _all(stream, format=format_of(name)) == expected


def test_parquet_and_types_of_json(tmp_path):
    pq.write_table(pa.table({"text": ["a", "b"], "n": [1, 2]}), tmp_path / "a.parquet")
    assert _all(tmp_path / "a.parquet")[2] == [{"text": "a", "n": 1}, {"text": "b", "n": 2}]
    rows = [{"text": "a", "n": 1.5, "list": [1, None], "flag": True}]
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[0]))
    assert _all(tmp_path / "a.jsonl")[2] == rows


def test_lines_of_text_and_of_fasttext(tmp_path):
    (tmp_path / "a.txt").write_text("one, text\n\n__label__x two\r\n")
    assert _all(tmp_path / "a.txt") == (("text",), "text", [{"text": t} for t in ("one, text", "", "__label__x two")])
    (tmp_path / "b.txt").write_text("__label__x two\n__label__x __label__y three\n")
    rows = [{"label": "x", "text": "two"}, {"label": "x|y", "text": "three"}]
    assert _all(tmp_path / "b.txt", format="fasttext") == (("label", "text"), "text", rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "empty"),
        ("a.csv", "n,m\n1,2\n", r"which column holds the texts\? .* n, m; name it with --text-column"),
        ("a.csv", "text,n\na,1\nb\n", "row 2: 1 fields, the header has 2"),
        ("a.csv", 'text,n\n"a"b,1\n', "line 2: not readable as csv"),
        ("a.csv", b"text\n\xff\n", "not UTF-8"),
        ("a.jsonl", '{"text": "a"}\n{"text": null}\n', "row 2: no text"),
        ("a.jsonl", '{"text": "a"}\n{"n": 1}\n', "row 2: no text"),
        ("a.jsonl", '{"text": "a"}\n{"text": 3}\n', "row 2: int instead of a text"),
        ("a.jsonl", '{"text": "a"}\n3\n', "row 2: not an object"),
        ("a.jsonl", '{"text": "\\ud800"}\n', "row 1: .*surrogate"),
        ("a.jsonl", '{"text": "a"}\n{"text"\n', "line 2: not readable as json"),
        ("a.parquet", "no", "not readable as parquet"),
        ("none.csv", None, "No such file"),
    ],
)
def test_what_cannot_be_read_is_named(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((InputError, FileNotFoundError), match=message):
        _all(tmp_path / name)


def test_formats_and_columns_that_do_not_exist(tmp_path):
    (tmp_path / "a.csv").write_text("text,n\na,1\n")
    with pytest.raises(InputError, match="no column 'body'"):
        _all(tmp_path / "a.csv", text_column="body")
    with pytest.raises(InputError, match="format must be one of text, csv"):
        _all(tmp_path / "a.csv", format="xml")
    assert _all(tmp_path / "a.csv", text_column="n")[1] == "n"


def test_a_pipe_is_read_row_by_row():
    """A row can be had before the next one is written."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf8", newline="") as incoming, open(writing, "w", encoding="utf8") as outgoing:
        outgoing.write("text,n\na,1\n")
        outgoing.flush()
        with read_texts(incoming, "csv") as found:
            assert next(found.rows) == {"text": "a", "n": "1"}
            outgoing.write("b,2\n")
            outgoing.flush()
            assert next(found.rows) == {"text": "b", "n": "2"}
