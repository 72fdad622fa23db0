"""Shared by the readers of text files: opening plain and gzipped files, checks of the encoding."""

import gzip
import io
from pathlib import Path
from typing import Any, TextIO, cast

Row = tuple[Any, Any]  # a text and its label or labels, as they were given; None if missing


def open_text(path: Path, newline: str = "\n") -> TextIO:
    """Open a UTF-8 text file for reading, decompressed if its name ends in `.gz`, without the byte order mark."""
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=newline))
    return open(path, encoding="utf-8-sig", newline=newline)


def line_that_is_not_utf8(path: Path) -> int | None:
    """The number of the first line that is not valid UTF-8, counted from 1."""
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        for number, line in enumerate(cast(io.BufferedIOBase, file), 1):
            try:
                line.decode("utf8")
            except UnicodeDecodeError:
                return number
    return None


def is_unicode(text: str) -> bool:
    """Whether a string can be encoded: JSON escapes and other sources may hold half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode("utf8")
    except UnicodeEncodeError:
        return False
    return True
