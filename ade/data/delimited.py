"""CSV and its kin -> rows: the delimiter, a header or none, and quotes that do not add up."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ade.data.rows import Row, has_columns, opened
from ade.errors import InputError

DELIMITERS = {".tsv": "\t;,", ".csv": ",;\t"}  # tried in this order
KNOWN_LABELS = 100_000  # remembered to tell swallowed rows by
LINE_END = re.compile(r"\r\n|\r|\n")
csv.field_size_limit((1 << 31) - 1)  # a text may be long


class QuotingError(InputError):
    """Rows that are none with quotes read as CSV has them, or with quotes as they stand."""


@dataclass(frozen=True)
class Layout:
    """How a file is laid out: what stands between the fields of a row, how many there are, and where which is."""

    delimiter: str
    width: int
    text: int | None  # the column of texts; None without a header: all but the first, put together
    label: int

    @property
    def headerless(self) -> bool:
        """Whether the first line is a row, and every row starts with the number of its class."""
        return self.text is None


def layout_of(path: Path, suffix: str, text: str, label: str, headerless: bool) -> Layout:
    """The layout told by the first line: a header with the columns asked for, or a row that starts with a number."""
    lines = {delimiter: _first_row(path, delimiter) for delimiter in DELIMITERS[suffix]}
    for delimiter, names in lines.items():
        if text in names and label in names:
            has_columns(path, names, text, label)
            return Layout(delimiter, len(names), names.index(text), names.index(label))
    for delimiter, fields in lines.items():
        if headerless and len(fields) >= 2 and fields[0].isdecimal() and label not in fields:
            return Layout(delimiter, len(fields), None, 0)
    has_columns(path, max(lines.values(), key=len), text, label)  # says which is missing
    raise AssertionError("a header with both columns is found above")


def _first_row(path: Path, delimiter: str) -> list[str]:
    with opened(path, newline="") as file:
        rows = (row for row in csv.reader(file, delimiter=delimiter) if row)
        try:
            first = next(rows, None)
        except csv.Error as error:
            raise InputError(f"{path}: not readable as csv ({error})") from None
    if first is None:
        raise InputError(f"{path}: the file is empty")
    return [field.strip() for field in first]


def delimited_rows(path: Path, layout: Layout, quoted: bool) -> Iterator[Row]:
    """The rows of a file, with quotes around fields as CSV has them or with quotes as they stand."""
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
    """Rows with their number and first line, header and empty lines left out; as many fields in each."""
    with opened(path, newline="") as file:
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        reader = csv.reader(file, delimiter=layout.delimiter, quoting=quoting, strict=True)
        row, line = 0 if layout.headerless else -1, 1
        while True:
            place = f"{path}, row {row + 1} (line {line})"
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error:
                raise QuotingError(
                    f'{place}: a field starts with a quote that does not end it; write "" for a quote inside quotes'
                ) from None
            if fields:
                row += 1
                if len(fields) != layout.width:
                    raise QuotingError(f"{place}: not readable as csv, {_fields(fields, layout)}")
                if not quoted and any(_is_quoted(field, layout.delimiter) for field in fields):
                    raise QuotingError(f"{place}: quotes around a field")
                if row > 0:
                    yield row, line, fields
            line = reader.line_num + 1


def _fields(fields: Sequence[str], layout: Layout) -> str:
    first = "the first row" if layout.headerless else "the header"
    return f"it has {len(fields)} field{'s' if len(fields) > 1 else ''}, {first} {layout.width}"


def _is_quoted(field: str, delimiter: str) -> bool:
    """Whether a field as it stands shows that the file quotes; between tabs, quotes around all of it may be its own."""
    whole = len(field) > 1 and field.startswith('"') and field.endswith('"')
    return whole and (delimiter != "\t" or '""' in field[1:-1])


class _Swallowed:
    """Fields of several lines that are rows themselves: a stray quote opened them, another one closed them."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self.layout = path, layout
        self.labels: set[str] = set()
        self.suspects: list[tuple[int, int, set[str]]] = []  # row, line, what would be the labels of the lines

    def see(self, row: int, line: int, fields: list[str], label: str) -> None:
        """Note a row's label, and whether its lines look like rows."""
        if len(self.labels) < KNOWN_LABELS:
            self.labels.add(label)
        for column, field in enumerate(fields):
            if "\n" in field or "\r" in field:
                found = self._labels_inside(field, column)
                if found:
                    self.suspects.append((row, line, found))

    def _labels_inside(self, field: str, column: int) -> set[str]:
        """The labels of the lines of a field, were they rows of their own; none where they cannot be."""
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
        """Refuse rows inside of which all lines have labels that other rows have, too."""
        for row, line, found in self.suspects:
            if found <= self.labels:
                raise QuotingError(
                    f"{self.path}, row {row} (line {line}): a field starts with a quote and goes on over lines that "
                    'look like rows of their own; write "" for a quote inside quotes'
                )
