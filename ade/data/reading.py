"""Texts to predict, with the other columns of their rows: from a file or a stream, one row at a time.

Rows are read as they arrive and never all at once, so that a pipe is answered line by line and a file may have any
length.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, TextIO, cast, get_args

from ade.data.columns import find_text_column
from ade.data.delimited import DELIMITERS
from ade.data.records import decode_array, decode_lines, split_labels
from ade.data.rows import is_unicode, open_text
from ade.data.tables import open_parquet, parquet_batches, reading_errors, suffix_of
from ade.errors import InputError

Format = Literal["text", "csv", "tsv", "json", "parquet", "fasttext"]
FORMATS: tuple[Format, ...] = get_args(Format)
BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet",
}  # fmt: skip
TEXT = "text"  # the column of files that have no names of columns
PLAIN = json.JSONDecoder()  # numbers of other columns stay numbers


@dataclass(frozen=True)
class TextRows:
    """Rows with a text each: the names of the columns, which of them holds the texts, and the rows."""

    columns: tuple[str, ...]  # in the order of the file; of JSON those of the first row
    text: str
    rows: Iterator[dict[str, Any]]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.rows


def format_of(source: str | Path) -> Format:
    """The format of a file by the end of its name; lines of text where it tells nothing."""
    return BY_SUFFIX.get(suffix_of(Path(source)), "text")


@contextmanager
def read_texts(
    source: str | Path | TextIO, format: Format | None = None, text_column: str | None = None
) -> Iterator[TextRows]:
    """Context manager: the rows of a file or an open stream.

    Args:
        source: a path, gzipped where it ends in `.gz`, or a stream of text.
        format: by default from the end of the path's name; of a stream, lines of text.
        text_column: name of the text column; found where it is None.

    Raises:
        InputError: for a row without a text, named by its number, and for what cannot be read.
    """
    if format is not None and format not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, not '{format}'")
    if not isinstance(source, (str, Path)):
        with _stream_errors():
            yield _rows_of(source, "standard input", format or "text", text_column)
        return

    path, kind = Path(source), format or format_of(source)
    with reading_errors(path, kind):
        if kind == "parquet":
            yield _parquet(path, text_column)
        else:
            with open_text(path, newline="" if kind in ("csv", "tsv") else "\n") as file:
                yield _rows_of(file, str(path), kind, text_column)


@contextmanager
def _stream_errors() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: not UTF-8 text ({error.reason})") from None


def _rows_of(file: TextIO, name: str, kind: Format, text_column: str | None) -> TextRows:
    if kind == "parquet":
        raise InputError(f"{name}: Parquet is read from files alone")
    if kind in ("csv", "tsv"):
        return _delimited(file, name, kind, text_column)
    if kind == "json":
        return _json(file, name, text_column)
    lines = (line.rstrip("\r\n") for line in file)
    if kind == "text":
        return TextRows((TEXT,), TEXT, ({TEXT: line} for line in lines))
    split = (split_labels(line) for line in lines if line.strip())
    return TextRows(("label", TEXT), TEXT, ({"label": "|".join(labels), TEXT: text} for labels, text in split))


def _delimited(file: TextIO, name: str, kind: Format, text_column: str | None) -> TextRows:
    """Rows of a CSV or TSV file with a header; its delimiter is the one that makes most columns of the header."""
    lines = iter(file)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise InputError(f"{name}: the file is empty")
    delimiter = _delimiter_of(first, kind)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)

    def fields() -> Iterator[list[str]]:
        try:
            yield from (row for row in reader if row)
        except csv.Error as error:
            raise InputError(f"{name}, line {reader.line_num}: not readable as csv ({error})") from None

    rows = fields()
    columns = tuple(field.strip() for field in next(rows))
    text = find_text_column(name, columns, text_column)
    columns = _distinct(columns)

    def records() -> Iterator[dict[str, Any]]:
        for number, row in enumerate(rows, 1):
            if len(row) != len(columns):
                raise InputError(f"{name}, row {number}: {len(row)} fields, the header has {len(columns)}")
            yield dict(zip(columns, row, strict=True))

    return TextRows(columns, text, records())


def _delimiter_of(header: str, kind: Format) -> str:
    return max(DELIMITERS[f".{kind}"], key=lambda each: len(next(csv.reader([header], delimiter=each))))


def read_delimiter(path: str | Path, kind: Format) -> tuple[str, list[str]]:
    """The delimiter of a CSV or TSV file, and the names in its header."""
    with reading_errors(Path(path), kind), open_text(Path(path), newline="") as file:
        header = next((line for line in file if line.strip()), "")
        delimiter = _delimiter_of(header, kind)
        return delimiter, next(csv.reader([header], delimiter=delimiter), [])


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names of columns, with numbers after those that stood before: id, id.1."""
    found: dict[str, None] = {}
    for name in names:
        found[next(each for each in chain([name], (f"{name}.{i}" for i in count(1))) if each not in found)] = None
    return tuple(found)


def _json(file: TextIO, name: str, text_column: str | None) -> TextRows:
    """Rows of JSON lines, or of an array of objects."""
    lines = iter(file)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise InputError(f"{name}: the file is empty")
    if first.lstrip().startswith("["):
        records = decode_array(cast(TextIO, _Again(first, file)), name, PLAIN)
    else:
        records = decode_lines(chain([first], lines), name, PLAIN)
    return _of_records(records, name, text_column)


class _Again(io.TextIOBase):
    """A stream that begins with a line that was read from it already."""

    def __init__(self, first: str, rest: TextIO) -> None:
        self.first, self.rest = first, rest

    def read(self, size: int | None = -1) -> str:
        first, self.first = self.first, ""
        return first or self.rest.read(-1 if size is None else size)


def _parquet(path: Path, text_column: str | None) -> TextRows:
    with open_parquet(path) as file:
        columns = tuple(file.schema_arrow.names)
    text = find_text_column(path, columns, text_column)
    batches = (zip(*batch.values(), strict=True) for batch in parquet_batches(path, raw=False))
    records = (dict(zip(columns, row, strict=True)) for batch in batches for row in batch)
    return TextRows(columns, text, _checked(records, str(path), text))


def _of_records(records: Iterable[Any], name: str, text_column: str | None) -> TextRows:
    source = iter(records)
    first = next(source, None)
    if first is None:
        return TextRows((text_column or TEXT,), text_column or TEXT, iter(()))
    if not isinstance(first, dict):
        raise InputError(f"{name}, row 1: not an object with a text")
    text = find_text_column(name, list(first), text_column)
    return TextRows(tuple(first), text, _checked(chain([first], source), name, text))


def _checked(records: Iterable[Any], name: str, text: str) -> Iterator[dict[str, Any]]:
    """The records, whose texts must be strings."""
    for number, record in zip(count(1), records, strict=False):
        if not isinstance(record, dict):
            raise InputError(f"{name}, row {number}: not an object with a text")
        value = record.get(text)
        if not isinstance(value, str):
            what = "no text" if value is None else f"{type(value).__name__} instead of a text"
            raise InputError(f"{name}, row {number}: {what} (column '{text}')")
        if not is_unicode(value):
            raise InputError(
                f"{name}, row {number}: column '{text}' has half of a surrogate pair, which is no character"
            )
        yield record
