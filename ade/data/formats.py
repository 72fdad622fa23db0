"""CSV, TSV, JSON and lines of fastText -> rows, read as they arrive. Finds the delimiter and the header of CSV."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from ade.data.columns import LABEL, TEXT
from ade.errors import InputError, first_line

DELIMITERS = {"tsv": "\t;,", "csv": ",;\t"}  # tried in this order
PREFIX = "__label__"  # of labels, as fastText writes them
LABELS = re.compile(rf"\s*(?:{PREFIX}\S+(?:\s+|$))*")
Row = dict[str, Any]
csv.field_size_limit((1 << 31) - 1)  # a text may be long


class QuotingError(InputError):
    """The rows cannot be read with this handling of quotes."""


def delimited_rows(lines: Iterable[str], source: str, kind: str, quoted: bool) -> tuple[tuple[str, ...], Iterator[Row]]:
    """The names of the columns of a CSV or TSV file, and its rows; not `quoted`, quotes are literal characters.

    A file without a header starts with a class number; the other fields of its rows are the parts of a text.
    """
    lines = iter(lines)
    skipped, first = next(((i, line) for i, line in enumerate(lines) if line.strip()), (0, ""))
    if not first:
        raise InputError(f"{source}: the file is empty")
    delimiter = _delimiter(first, kind)
    headerless = _is_headerless(_split(first, delimiter))

    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(chain([first], lines), delimiter=delimiter, quoting=quoting, strict=True)
    rows = _rows_of_one_width(reader, source, skipped, headerless)
    if not quoted:
        rows = _without_quotes(rows, source, delimiter)
    if headerless:
        return (LABEL, TEXT), ({LABEL: label, TEXT: _joined(parts)} for label, *parts in rows)
    header = _distinct(next(rows))
    return header, (dict(zip(header, fields, strict=True)) for fields in rows)


def _delimiter(line: str, kind: str) -> str:
    """The delimiter of a file by its first line: what finds the usual names or a class number, else most fields."""

    def fit(delimiter: str) -> tuple[int, bool, int]:
        fields = _split(line, delimiter)
        return len({TEXT, LABEL} & {*fields}), _is_headerless(fields), len(fields)

    return max(DELIMITERS[kind], key=fit)


def _split(line: str, delimiter: str) -> list[str]:
    return [field.strip() for field in next(csv.reader([line], delimiter=delimiter))]


def _is_headerless(fields: list[str]) -> bool:
    """Whether a first row starts with the number of a class."""
    return len(fields) > 1 and fields[0].isdecimal() and not {TEXT, LABEL} & {*fields}


def _rows_of_one_width(reader: Any, source: str, skipped: int, headerless: bool) -> Iterator[list[str]]:
    """The fields of each row, the header included; empty lines are left out. Errors count rows without the header."""
    number, width = int(headerless), 0
    while True:
        place = f"{source}, row {number} (line {skipped + reader.line_num + 1})"
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error:
            what = 'a field starts with a quote that does not end it; write "" for a quote inside quotes'
            raise QuotingError(f"{place}: {what}") from None
        if not fields:
            continue
        width = width or len(fields)
        if len(fields) != width:
            first = "the first row" if headerless else "the header"
            what = f"it has {len(fields)} field{'s' * (len(fields) > 1)}, {first} {width}"
            raise QuotingError(f"{place}: not readable as csv, {what}")
        yield fields
        number += 1


def _without_quotes(rows: Iterable[list[str]], source: str, delimiter: str) -> Iterator[list[str]]:
    """Rows read literally, none of which may show that the file uses quoting."""
    for fields in rows:
        for field in fields:
            quotes = len(field) > 1 and field.startswith('"') and field.endswith('"')
            if quotes and (delimiter != "\t" or '""' in field[1:-1]):  # in TSV, quotes around a field may be literal
                raise QuotingError(f"{source}: quotes around a field")
        yield fields


def _joined(parts: Iterable[str]) -> str:
    return " ".join(part.strip() for part in parts if part.strip())


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names of columns, with a number after one that stood before: id, id.1."""
    known: list[str] = []
    for name in map(str.strip, names):
        distinct, number = name, 0
        while distinct in known:
            number += 1
            distinct = f"{name}.{number}"
        known.append(distinct)
    return tuple(known)


def json_values(lines: Iterable[str], source: str) -> Iterator[Any]:
    """The values of JSON lines, as they arrive; or the items of one array, which is read at once."""
    filled = (line for line in lines if line.strip())
    first = next(filled, None)
    if first is None:
        raise InputError(f"{source}: the file is empty")
    if first.lstrip().startswith("["):
        yield from _parsed("".join(chain([first], filled)), source)
        return
    for number, line in enumerate(chain([first], filled), 1):
        yield _parsed(line, f"{source}, row {number}")


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not readable as json ({first_line(error)})") from None


def labelled_text(line: str) -> Row:
    """The row of a line of fastText: the labels that it starts with, and its text."""
    end = LABELS.match(line).end()  # type: ignore[union-attr]
    labels = [name.removeprefix(PREFIX) for name in line[:end].split()]
    return {LABEL: labels, TEXT: line[end:].strip()}
