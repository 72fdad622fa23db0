"""JSON (an object a line, or an array of objects) and fastText's labelled lines -> rows."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from ade.data.rows import Row, has_columns, opened
from ade.errors import InputError

BLOCK = 1 << 20  # characters read at a time from an array
MARK = "__label__"
LABELS = re.compile(rf"\s*(?:{MARK}\S+(?:\s+|$))*")
BETWEEN_ITEMS = re.compile(r"[\s,]*")

# Numbers stay as they are written: 1.0, 007 in a string and 2020-01-01 are names. NaN is no value.
DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=lambda _: None)


def json_rows(path: Path, text: str, label: str) -> Iterator[Row]:
    """The texts and labels of objects; labels may be lists."""
    first: Any = None  # the first label there is: all are lists, or none is
    with opened(path) as file:
        records = _array(file, path) if _is_array(path) else _lines(file, path)
        for row, record in enumerate(records, 1):
            place = f"{path}, row {row}"
            if not isinstance(record, dict):
                raise InputError(f"{place}: not an object with the columns '{text}' and '{label}'")
            if row == 1:
                has_columns(path, list(record), text, label)

            found = record.get(label)
            first = found if first is None else first
            if found is not None and isinstance(found, list) != isinstance(first, list):
                raise InputError(f"{place}: column '{label}' holds lists in some rows and plain values in others")
            value = _plain(record.get(text), place, text)
            if isinstance(found, list):
                yield value, [_plain(each, place, label) for each in found]
            else:
                yield value, _plain(found, place, label)


def _plain(value: Any, place: str, column: str) -> str | None:
    """A value as it is written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return None
    if not isinstance(value, str):
        kind = "a list" if isinstance(value, list) else "an object"
        raise InputError(f"{place}: column '{column}' holds {kind}, expected plain values")
    if not value.isascii():
        try:
            value.encode("utf8")
        except UnicodeEncodeError:
            raise InputError(
                f"{place}: column '{column}' has half of a surrogate pair, which is no character"
            ) from None
    return value


def _is_array(path: Path) -> bool:
    with opened(path) as file:
        while block := file.read(4096):
            if block.strip():
                return block.lstrip().startswith("[")
    raise InputError(f"{path}: the file is empty")


def _lines(file: TextIO, path: Path) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield DECODER.decode(line.strip())
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, line {number}: not readable as json ({error})") from None


def _array(file: TextIO, path: Path) -> Iterator[Any]:
    """The items of an array, with no more of the file in memory than the longest needs."""
    buffer, row = file.read(BLOCK), 1
    while "[" not in buffer:
        buffer = file.read(BLOCK)
    place = buffer.index("[") + 1
    while True:
        place = BETWEEN_ITEMS.match(buffer, place).end()  # type: ignore[union-attr]
        if buffer.startswith("]", place):
            break
        try:
            item, place = DECODER.raw_decode(buffer, place)
        except RecursionError:
            raise InputError(f"{path}, row {row}: not readable as json (nested too deeply)") from None
        except json.JSONDecodeError as error:
            at_end = error.pos > len(buffer) - 16 or error.msg.startswith("Unterminated")
            more = file.read(max(BLOCK, len(buffer))) if at_end else ""
            if not more:
                raise InputError(f"{path}, row {row}: not readable as json ({error.msg})") from None
            buffer, place = buffer[place:] + more, 0
            continue
        yield item
        row += 1
    if buffer[place + 1 :].strip() or file.read(BLOCK).strip():
        raise InputError(f"{path}: not readable as json (something stands after the end of the array)")


def starts_with_label(path: Path) -> bool:
    """Whether the first line that is not empty starts with a label as fastText writes it."""
    try:
        with opened(path) as file:
            return next((line.lstrip().startswith(MARK) for line in file if line.strip()), False)
    except (OSError, EOFError, UnicodeDecodeError):
        return False


def fasttext_rows(path: Path) -> Iterator[Row]:
    """The texts of lines that start with any number of labels, `__label__` before each."""
    with opened(path) as file:
        for row, line in enumerate(filter(str.strip, file), 1):
            end = LABELS.match(line).end()  # type: ignore[union-attr]
            labels: list[str | None] = [name.removeprefix(MARK) for name in line[:end].split()]
            if row == 1 and not labels:
                raise InputError(f"{path}: does not start with {MARK}NAME, as lines of fastText do")
            yield line[end:].strip(), labels
