"""CSV and TSV files -> rows: finds the delimiter and the header, and tells broken quoting from literal quotes."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ade.data.columns import LABEL, find_columns, has_columns
from ade.data.rows import Row, open_text
from ade.errors import InputError

DELIMITERS = {".tsv": "\t;,", ".csv": ",;\t"}  # tried in this order
KNOWN_LABELS = 100_000  # labels remembered to detect swallowed rows
LINE_END = re.compile(r"\r\n|\r|\n")
csv.field_size_limit((1 << 31) - 1)  # a text may be long


class QuotingError(InputError):
    """The file cannot be read with this handling of quotes."""


@dataclass(frozen=True)
class Layout:
    """The delimiter of a file, its number of columns, and the columns of texts and labels."""

    delimiter: str
    width: int
    text: int | None  # text column; None without a header: all columns but the first, joined
    label: int
    columns: tuple[str, str]  # their names; empty without a header

    @property
    def headerless(self) -> bool:
        """Whether the file has no header and every row starts with a class number."""
        return self.text is None


def layout_of(path: Path, suffix: str, text: str | None, label: str | None, headerless: bool) -> Layout:
    """The layout by the first line: a header with both columns or, if `headerless`, a row that starts with a number."""
    lines = {delimiter: _first_row(path, delimiter) for delimiter in DELIMITERS[suffix]}
    for delimiter, fields in lines.items():
        if headerless and len(fields) >= 2 and fields[0].isdecimal() and (label or LABEL) not in fields:
            return Layout(delimiter, len(fields), None, 0, ("", ""))
    for delimiter, names in lines.items():
        if has_columns(names, text, label):
            found = find_columns(path, names, text, label)
            return Layout(delimiter, len(names), names.index(found[0]), names.index(found[1]), found)
    find_columns(path, max(lines.values(), key=len), text, label)  # raises the error
    raise AssertionError("a header with both columns is found above")


def _first_row(path: Path, delimiter: str) -> list[str]:
    with open_text(path, newline="") as file:
        rows = (row for row in csv.reader(file, delimiter=delimiter) if row)
        try:
            first = next(rows, None)
        except csv.Error as error:
            raise InputError(f"{path}: not readable as csv ({error})") from None
    if first is None:
        raise InputError(f"{path}: the file is empty")
    return [field.strip() for field in first]


def delimited_rows(path: Path, layout: Layout, quoted: bool) -> Iterator[Row]:
    """The rows of a file; `quoted` reads quotes as CSV does, otherwise they are literal characters."""
    swallowed = _Swallowed(path, layout)
    for row, line, fields in _checked_rows(path, layout, quoted):
        label = fields[layout.label]
        if quoted:
            swallowed.see(row, line, fields, label)
        if layout.text is None:
            text = " ".join(field for field in map(str.strip, fields[1:]) if field)
        else:
            text = fields[layout.text]
        yield text, label
    swallowed.check()


def _checked_rows(path: Path, layout: Layout, quoted: bool) -> Iterator[tuple[int, int, list[str]]]:
    """(row number, line number, fields) of each row without header and empty lines; all must have the same width."""
    with open_text(path, newline="") as file:
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        reader = csv.reader(file, delimiter=layout.delimiter, quoting=quoting, strict=True)
        row, line = 0 if layout.headerless else -1, 1
        while True:
            location = f"{path}, row {row + 1} (line {line})"
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error:
                raise QuotingError(
                    f'{location}: a field starts with a quote that does not end it; write "" for a quote inside quotes'
                ) from None
            if fields:
                row += 1
                if len(fields) != layout.width:
                    raise QuotingError(f"{location}: not readable as csv, {_width_error(fields, layout)}")
                if not quoted and any(_is_quoted(field, layout.delimiter) for field in fields):
                    raise QuotingError(f"{location}: quotes around a field")
                if row > 0:
                    yield row, line, fields
            line = reader.line_num + 1


def _width_error(fields: Sequence[str], layout: Layout) -> str:
    first = "the first row" if layout.headerless else "the header"
    return f"it has {len(fields)} field{'s' if len(fields) > 1 else ''}, {first} {layout.width}"


def _is_quoted(field: str, delimiter: str) -> bool:
    """Whether a field read literally shows that the file uses quoting; in TSV, quotes around a field may be literal."""
    whole = len(field) > 1 and field.startswith('"') and field.endswith('"')
    return whole and (delimiter != "\t" or '""' in field[1:-1])


class _Swallowed:
    """Detects multi-line fields whose lines are rows: a stray quote opened the field, another one closed it."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self.layout = path, layout
        self.labels: set[str] = set()
        self.suspects: list[tuple[int, int, set[str]]] = []  # row, line, labels of the lines if they were rows

    def see(self, row: int, line: int, fields: list[str], label: str) -> None:
        """Remember a row's label, and the row if lines inside one of its fields look like rows."""
        if len(self.labels) < KNOWN_LABELS:
            self.labels.add(label)
        for column, field in enumerate(fields):
            if "\n" in field or "\r" in field:
                found = self._labels_inside(field, column)
                if found:
                    self.suspects.append((row, line, found))

    def _labels_inside(self, field: str, column: int) -> set[str]:
        """The labels that the lines of a field would have as rows; empty if they cannot be rows."""
        layout = self.layout
        first, *middle, last = [line.split(layout.delimiter) for line in LINE_END.split(field)]
        widths = [len(first) + column, *map(len, middle), len(last) + layout.width - column - 1]
        if any(width != layout.width for width in widths):
            return set()
        found = {fields[layout.label] for fields in middle}
        if layout.label > column:
            found.add(first[layout.label - column])
        elif layout.label < column:
            found.add(last[layout.label])
        return found

    def check(self) -> None:
        """Raise an error for suspect rows whose inner labels all occur as labels of other rows."""
        for row, line, found in self.suspects:
            if found <= self.labels:
                raise QuotingError(
                    f"{self.path}, row {row} (line {line}): a field starts with a quote and goes on over lines that "
                    'look like rows of their own; write "" for a quote inside quotes'
                )
