"""Files that verbs read texts from and write results to: streams where they are pipes, and complete or not at all."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO, cast

from ade.cli.options import say
from ade.data.reading import Format, TextRows, format_of, read_texts
from ade.data.records import starts_with_label
from ade.data.streams import LineStream
from ade.errors import InputError
from ade.files import new_file


@contextmanager
def open_texts(file: str, format: Format | None, text_column: str | None) -> Iterator[tuple[TextRows, object]]:
    """Context manager: the rows of a file, or of standard input or a named pipe and its stream."""
    path = Path(file)
    if file == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
        with open(0 if file == "-" else path, "rb", closefd=file != "-") as source:
            stream = LineStream(source)
            with read_texts(cast(TextIO, stream), format, text_column) as rows:
                yield rows, stream
        return

    if format is None and format_of(path) == "text" and starts_with_label(path):
        format = "fasttext"  # whose labels are no part of the texts
    with read_texts(path, format, text_column) as rows:
        if rows.text != "text":
            say(f"{file}: texts of the column '{rows.text}'")
        yield rows, None


def check_output(output: Path | None, overwrite: bool) -> None:
    """Refuse a file that cannot be written, or that is there already."""
    if output is None:
        return
    if output.is_dir() or not output.parent.is_dir():
        raise InputError(f"{output}: not a file in a folder that exists")
    if output.is_file() and not overwrite:
        raise InputError(f"{output}: already exists; choose another name or pass --overwrite")


@contextmanager
def open_output(output: Path | None, in_place: bool) -> Iterator[IO[str]]:
    """Context manager: standard output or a file, which appears when all is written; `in_place`, at once."""
    if output is None:
        yield sys.stdout
    elif in_place or (output.exists() and not output.is_file()):
        with open(output, "w", encoding="utf8", newline="") as file:
            yield file
    else:
        with new_file(output) as draft, open(draft, "w", encoding="utf8", newline="") as file:
            yield file


def stopping_early(write: Callable[[], None]) -> None:
    """Write to standard output; that its reader, as `head`, stops before the end is no error."""
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
