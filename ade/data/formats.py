"""CSV, TSV, JSON and lines of fastText -> rows, read as they arrive.

Finds the delimiter and the header of CSV, and tells broken quoting from quotes that are part of a text.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Any, TextIO

from ade.data.columns import LABEL, TEXT, Schema
from ade.errors import InputError, first_line

DELIMITERS = {"tsv": "\t;,", "csv": ",;\t"}  # tried in this order
KNOWN_LABELS = 100_000  # labels remembered to detect swallowed rows
LINE_END = re.compile(r"\r\n|\r|\n")
PREFIX = "__label__"  # of labels, as fastText writes them
LABELS = re.compile(rf"\s*(?:{PREFIX}\S+(?:\s+|$))*")
BETWEEN_VALUES = re.compile(r"[\s,]*")
READ_CHARS = 1 << 20  # of a long line of JSON, per step
csv.field_size_limit((1 << 31) - 1)  # a text may be long


class QuotingError(InputError):
    """The rows cannot be read with this handling of quotes."""


class DelimitedRows:
    """The rows of a CSV or TSV file, which are read once.

    A file without a header starts with a class number; the other fields of its rows are the parts of a text.
    """

    def __init__(self, lines: Iterable[str], source: str, kind: str, schema: Schema, quoted: bool = True) -> None:
        """`quoted` reads quotes as CSV does, otherwise they are literal characters."""
        self.source, self.quoted, lines = source, quoted, iter(lines)
        self.skipped, first = next(((i, line) for i, line in enumerate(lines) if line.strip()), (0, ""))
        if not first:
            raise InputError(f"{source}: the file is empty")
        usual = {schema.text or TEXT, schema.label or LABEL}
        self.delimiter, fields = first_row(first, kind, usual)
        self.headerless = len(fields) > 1 and fields[0].isdecimal() and not usual & {*fields}

        quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        self._reader = csv.reader(chain([first], lines), delimiter=self.delimiter, quoting=quoting, strict=True)
        self._rows = self._read()
        start = next(self._rows)
        self.header = (LABEL, TEXT) if self.headerless else tuple(name.strip() for name in start[2])
        self._names = distinct(self.header)
        if self.headerless:
            self._rows = chain([start], self._rows)

    def first(self, count: int) -> list[dict[str, Any]]:
        """Up to `count` rows as dictionaries, which stay to be read."""
        rows = list(islice(self._rows, count))
        self._rows = chain(rows, self._rows)
        return [self._named(fields) for _, _, fields in rows]

    def records(self) -> Iterator[dict[str, Any]]:
        """The rows as dictionaries."""
        for _, _, fields in self._rows:
            yield self._named(fields)

    def _named(self, fields: list[str]) -> dict[str, Any]:
        return dict(zip(self._names, self._columns(fields), strict=True))

    def pairs(self, text: str, label: str) -> Iterator[tuple[str, str]]:
        """The texts and labels alone. Rows that a stray quote has swallowed are told by their labels, and an error.

        They are in a field of several lines, which a stray quote opened and another one closed: its lines look like
        rows whose labels other rows have.
        """
        text_column, label_column = self.header.index(text), self.header.index(label)
        known: set[str] = set()
        suspects: list[tuple[int, int, set[str]]] = []  # row, line, labels of the lines if they were rows
        for row, line, fields in self._rows:
            if self.quoted and len(known) < KNOWN_LABELS:
                known.add(fields[label_column])
            for column, field in enumerate(fields):
                if self.quoted and ("\n" in field or "\r" in field):
                    labels = self._labels_inside(field, column, len(fields), label_column)
                    suspects += [(row, line, labels)] if labels else []
            columns = self._columns(fields)
            yield columns[text_column], columns[label_column]

        for row, line, labels in suspects:
            if labels <= known:
                raise QuotingError(
                    f"{self._place(row, line)}: a field starts with a quote and goes on over lines that look like "
                    'rows of their own; write "" for a quote inside quotes'
                )

    def _columns(self, fields: list[str]) -> list[str]:
        """The values of a row's columns; without a header all fields after the first are the text."""
        if not self.headerless:
            return fields
        return [fields[0], " ".join(part for field in fields[1:] if (part := field.strip()))]

    def _read(self) -> Iterator[tuple[int, int, list[str]]]:
        """Row, line and fields of each row, the header included, all of one width; empty lines are left out."""
        row, width = int(self.headerless), 0
        while True:
            line = self.skipped + self._reader.line_num + 1
            try:
                fields = next(self._reader)
            except StopIteration:
                return
            except csv.Error:
                what = 'a field starts with a quote that does not end it; write "" for a quote inside quotes'
                raise QuotingError(f"{self._place(row, line)}: {what}") from None
            if not fields:
                continue

            width = width or len(fields)
            if len(fields) != width:
                first = "the first row" if self.headerless else "the header"
                what = f"it has {len(fields)} field{'s' * (len(fields) > 1)}, {first} {width}"
                raise QuotingError(f"{self._place(row, line)}: not readable as csv, {what}")
            if not self.quoted and any(_is_quoted(field, self.delimiter) for field in fields):
                raise QuotingError(f"{self._place(row, line)}: quotes around a field")
            yield row, line, fields
            row += 1

    def _place(self, row: int, line: int) -> str:
        return f"{self.source}, row {row} (line {line})"

    def _labels_inside(self, field: str, column: int, width: int, label: int) -> set[str]:
        """The labels that the lines of a field would have as rows; empty if they cannot be rows."""
        first, *middle, last = [line.split(self.delimiter) for line in LINE_END.split(field)]
        if {column + len(first), *map(len, middle), len(last) + width - column - 1} != {width}:
            return set()
        labels = {fields[label] for fields in middle}
        if label > column:
            labels.add(first[label - column])
        elif label < column:
            labels.add(last[label])
        return labels


def first_row(line: str, kind: str, usual: Iterable[str] = (TEXT, LABEL)) -> tuple[str, list[str]]:
    """The delimiter of a CSV or TSV file by its first line, and the fields of this line.

    The one that finds most of the usual names, or a number before all others, else most fields.
    """
    rows = {each: [field.strip() for field in next(csv.reader([line], delimiter=each))] for each in DELIMITERS[kind]}

    def fit(delimiter: str) -> tuple[int, bool, int]:
        fields = rows[delimiter]
        return len({*usual} & {*fields}), len(fields) > 1 and fields[0].isdecimal(), len(fields)

    delimiter = max(DELIMITERS[kind], key=fit)
    return delimiter, rows[delimiter]


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """The names of columns, with a number after one that stood before: id, id.1."""
    known: dict[str, None] = {}
    for name in names:
        numbered = chain([name], (f"{name}.{i}" for i in count(1)))
        known[next(each for each in numbered if each not in known)] = None
    return tuple(known)


def _is_quoted(field: str, delimiter: str) -> bool:
    """Whether a field read literally shows that the file uses quoting; in TSV, quotes around a field may be literal."""
    quotes = len(field) > 1 and field.startswith('"') and field.endswith('"')
    return quotes and (delimiter != "\t" or '""' in field[1:-1])


def json_values(file: TextIO, source: str) -> Iterator[Any]:
    """The values of JSON lines, or the items of one array; no more of the file is in memory than one of them needs."""
    decode, buffer, position, row, in_array = json.JSONDecoder().raw_decode, "", 0, 1, False
    while True:
        position = BETWEEN_VALUES.match(buffer, position).end()  # type: ignore[union-attr]
        if row == 1 and not in_array and buffer.startswith("[", position):
            in_array, position = True, position + 1
            continue
        if in_array and buffer.startswith("]", position):
            break
        try:
            value, position = decode(buffer, position)
        except (ValueError, RecursionError) as error:
            rest = buffer[position:]
            more = _more(file, len(rest)) if _is_cut(error, len(buffer)) else ""
            if more:
                buffer, position = rest + more, 0
                continue
            if not rest and not in_array and row > 1:
                return
            if not rest and not in_array:
                raise InputError(f"{source}: the file is empty") from None
            raise InputError(f"{source}, row {row}: not readable as json ({first_line(error)})") from None
        yield value
        row += 1
    rest = buffer[position + 1 :]
    while not rest.strip() and (rest := file.readline(READ_CHARS)):
        pass
    if rest.strip():
        raise InputError(f"{source}: not readable as json (something stands after the end of the array)")


def _is_cut(error: Exception, length: int) -> bool:
    """Whether a value cannot be read because the text, of this length, ends inside of it."""
    at_end = isinstance(error, json.JSONDecodeError) and error.pos > length - 16
    return at_end or getattr(error, "msg", "").startswith("Unterminated")


def _more(file: TextIO, least: int) -> str:
    """The next line, of a long one a part; more lines until there are `least` characters."""
    text = line = file.readline(READ_CHARS)
    while line and len(text) < least:
        line = file.readline(max(READ_CHARS, least))
        text += line
    return text


def split_labels(line: str) -> tuple[list[str], str]:
    """The labels that a line of fastText starts with, and its text."""
    end = LABELS.match(line).end()  # type: ignore[union-attr]
    return [name.removeprefix(PREFIX) for name in line[:end].split()], line[end:].strip()
