"""CSV, TSV and JSON in all the ways in which they are written."""

import csv
import io

import pytest
from hypothesis import given, strategies as st

from ade.data.sources import load_dataset
from ade.errors import InputError

PLAIN = [(f"text number {i}", "xy"[i % 2]) for i in range(20)]


def _lines(rows, delimiter):
    return "\n".join(["text" + delimiter + "label", *(delimiter.join(row) for row in rows)]) + "\n"


def _read(path):
    found = load_dataset(path)
    return [(text, found.names[i]) for text, i in zip(found.texts, found.labels, strict=True)]


def _with(changes):
    return [(changes.get(i, text), label) for i, (text, label) in enumerate(PLAIN)]


@pytest.mark.parametrize(("name", "delimiter"), [("a.tsv", "\t"), ("a.csv", ","), ("a.csv", ";")])
@pytest.mark.parametrize(
    "changes",
    [
        {3: '"quite so'},  # opened, never closed
        {3: '"quite so', 9: 'he said "no" to it'},  # closed in the middle of another text
        {3: '"quite" so'},
        {3: '5" disks', 9: 'a "word" inside'},
    ],
)
def test_stray_quotes_swallow_no_rows(name, delimiter, changes, tmp_path):
    (tmp_path / name).write_text(_lines(_with(changes), delimiter))
    assert _read(tmp_path / name) == _with(changes)


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize(("changes", "row"), [({3: '"quite so'}, 4), ({7: '"a" b'}, 8)])
def test_stray_quotes_among_quoted_fields_are_refused_by_their_row(delimiter, changes, row, tmp_path):
    changes = {0: f'"well{delimiter} quoted"', **changes}
    (tmp_path / "a.csv").write_text(_lines(_with(changes), delimiter))
    with pytest.raises(InputError, match=rf"a\.csv, row {row} \(line {row + 1}\): a field starts with a quote"):
        load_dataset(tmp_path / "a.csv")


def test_texts_of_several_lines_are_no_swallowed_rows(tmp_path):
    rows = [("Dear all,\nsee below, x\nor not, y", "x"), ("a, b\nc", "y"), ("one\ntwo, x\nthree", "x")]
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    assert _read(tmp_path / "a.csv") == rows


FIELDS = st.text(st.sampled_from('ab",;\t\n\r '), max_size=12)


@given(
    rows=st.lists(st.tuples(FIELDS, st.sampled_from("xyz")), min_size=1, max_size=12),
    delimiter=st.sampled_from(",;\t"),
    first=st.booleans(),
)
def test_what_a_csv_writer_writes_is_read_back(rows, delimiter, first, tmp_path_factory):
    sink = io.StringIO()
    writer = csv.writer(sink, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    columns = [("label", "text"), *((y, t) for t, y in rows)] if first else [("text", "label"), *rows]
    writer.writerows(columns)
    path = tmp_path_factory.getbasetemp() / "written.csv"
    path.write_bytes(sink.getvalue().encode())
    assert _read(path) == rows


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [("text;label\na, b;x\n", ";"), ("text\tlabel\na, b;x\tx\n", "\t"), ("id;text;label\n1;a, b;x\n", ";")],
)
def test_the_delimiter_is_told_by_the_header(content, delimiter, tmp_path):
    for name in ("a.csv", "a.tsv"):
        (tmp_path / name).write_text(content)
        assert len(load_dataset(tmp_path / name)) == 1
        assert load_dataset(tmp_path / name).texts[0].startswith("a, b")


def test_a_headerless_file_may_have_other_delimiters(tmp_path):
    for delimiter in (",", ";", "\t"):
        (tmp_path / "a.csv").write_text(f"2{delimiter}title{delimiter}words\n1{delimiter}one{delimiter}two\n")
        assert list(load_dataset(tmp_path / "a.csv").texts) == ["title words", "one two"]


def test_a_field_may_be_long(tmp_path):
    (tmp_path / "a.csv").write_text(f"text,label\n{'word ' * 100_000},x\nb,y\n")
    assert len(load_dataset(tmp_path / "a.csv").texts[0]) == 500_000
