"""JSON (one object per line, or an array of objects) and fastText's labelled lines -> rows."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from ade.data.columns import find_columns
from ade.data.rows import Row, open_text
from ade.data.values import FloatLiteral, IntLiteral
from ade.errors import InputError

READ_CHARS = 1 << 20  # characters of a JSON array read at a time
PREFIX = "__label__"  # of labels, as fastText writes them
LABELS = re.compile(rf"\s*(?:{PREFIX}\S+(?:\s+|$))*")
BETWEEN_ITEMS = re.compile(r"[\s,]*")

# Numbers stay as they are written, since they may be label names: 1.0 is not 1. NaN counts as missing.
DECODER = json.JSONDecoder(parse_int=IntLiteral, parse_float=FloatLiteral, parse_constant=lambda _: None)


def json_rows(path: Path, text: str | None, label: str | None) -> tuple[tuple[str, str], Iterator[Row]]:
    """The names of the text and label columns, and the rows of JSON objects; labels may be lists."""
    records = _records(path)
    first = next(records, None)
    if first is None:
        return (text or "", label or ""), iter(())
    text, label = find_columns(path, list(first), text, label)
    return (text, label), ((record.get(text), record.get(label)) for record in chain([first], records))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with open_text(path) as file:
        records = decode_array(file, path) if _is_array(path) else decode_lines(file, path)
        for row, record in enumerate(records, 1):
            if not isinstance(record, dict):
                raise InputError(f"{path}, row {row}: not an object with a text and a label")
            yield record


def _is_array(path: Path) -> bool:
    with open_text(path) as file:
        while block := file.read(4096):
            if block.strip():
                return block.lstrip().startswith("[")
    raise InputError(f"{path}: the file is empty")


def decode_lines(lines: Iterable[str], source: Path | str, decoder: json.JSONDecoder = DECODER) -> Iterator[Any]:
    """The values of JSON lines; empty lines are left out."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield decoder.decode(line.strip())
            except (ValueError, RecursionError) as error:
                raise InputError(f"{source}, line {number}: not readable as json ({error})") from None


def decode_array(file: TextIO, source: Path | str, decoder: json.JSONDecoder = DECODER) -> Iterator[Any]:
    """The items of an array, reading no more of the file into memory than one item needs."""
    buffer, row = file.read(READ_CHARS), 1
    while "[" not in buffer:
        buffer = file.read(READ_CHARS)
    position = buffer.index("[") + 1
    while True:
        position = BETWEEN_ITEMS.match(buffer, position).end()  # type: ignore[union-attr]
        if buffer.startswith("]", position):
            break
        try:
            item, position = decoder.raw_decode(buffer, position)
        except RecursionError:
            raise InputError(f"{source}, row {row}: not readable as json (nested too deeply)") from None
        except json.JSONDecodeError as error:
            at_end = error.pos > len(buffer) - 16 or error.msg.startswith("Unterminated")
            more = file.read(max(READ_CHARS, len(buffer))) if at_end else ""
            if not more:
                raise InputError(f"{source}, row {row}: not readable as json ({error.msg})") from None
            buffer, position = buffer[position:] + more, 0
            continue
        yield item
        row += 1
    if buffer[position + 1 :].strip() or file.read(READ_CHARS).strip():
        raise InputError(f"{source}: not readable as json (something stands after the end of the array)")


def starts_with_label(path: Path) -> bool:
    """Whether the first non-empty line starts with a fastText label."""
    try:
        with open_text(path) as file:
            return next((line.lstrip().startswith(PREFIX) for line in file if line.strip()), False)
    except (OSError, EOFError, UnicodeDecodeError):
        return False


def fasttext_rows(path: Path) -> Iterator[Row]:
    """The texts and labels of lines that start with any number of labels, each with the prefix `__label__`."""
    with open_text(path) as file:
        for row, line in enumerate(filter(str.strip, file), 1):
            labels, text = split_labels(line)
            if row == 1 and not labels:
                raise InputError(f"{path}: does not start with {PREFIX}NAME, as lines of fastText do")
            yield text, labels


def split_labels(line: str) -> tuple[list[str], str]:
    """The labels that a line of fastText starts with, and its text."""
    end = LABELS.match(line).end()  # type: ignore[union-attr]
    return [name.removeprefix(PREFIX) for name in line[:end].split()], line[end:].strip()
