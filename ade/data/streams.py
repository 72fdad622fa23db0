"""Files and pipes of UTF-8 text: opened, read line by line as they arrive, errors of reading named by the file."""

import codecs
import gzip
import io
import select
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, cast

from ade.errors import InputError, first_line

READ_BYTES = 1 << 16  # of a pipe, per step, if as many have arrived


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed if its name ends in `.gz`."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else open(path, "rb")


def is_pipe(path: Path) -> bool:
    """Whether a path is standard input, written `-`, a named pipe, or anything else that is read once."""
    return str(path) == "-" or (path.exists() and not path.is_file() and not path.is_dir())


@contextmanager
def open_lines(path: Path, kind: str = "text") -> Iterator[Iterator[str]]:
    """Context manager: the lines of a UTF-8 file or pipe, without the byte order mark; standard input stays open.

    Errors name the file and the `kind` of content that was expected.
    """
    with reading_errors(path, kind):
        if is_pipe(path):
            is_stdin = str(path) == "-"
            with open(0 if is_stdin else path, "rb", closefd=not is_stdin) as pipe:
                yield LineStream(pipe)
        else:
            with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="\n") as file:
                yield file


@contextmanager
def reading_errors(path: Path, kind: str) -> Iterator[None]:
    """Context manager: turn errors of reading a file into an `InputError` that names it."""
    name = "standard input" if str(path) == "-" else path
    try:
        yield
    except UnicodeDecodeError as error:
        line = f" in line {_line_that_is_not_utf8(path)}" if path.is_file() and kind != "parquet" else ""
        raise InputError(f"{name}: not UTF-8 text{line} ({error.reason})") from None
    except (EOFError, zlib.error, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the disk, not of the content
            raise
        raise InputError(f"{name}: not readable as {kind} ({first_line(error)})") from None


def _line_that_is_not_utf8(path: Path) -> int:
    """The number of the first line that is not valid UTF-8, counted from 1."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf8")
            except UnicodeDecodeError:
                return number
    return 0


class LineStream(Iterator[str]):
    """Lines of a UTF-8 stream of bytes, as they arrive; a byte order mark at the start is left out."""

    def __init__(self, source: BinaryIO) -> None:
        self.source = source
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")("strict")
        self.lines: deque[str] = deque()  # complete ones
        self.parts: list[str] = []  # of the line that is not complete yet
        self.ended = False

    def __next__(self) -> str:
        while not self.lines and not self.ended:
            self._read()
        if not self.lines:
            raise StopIteration
        return self.lines.popleft()

    def ready(self) -> bool:
        """Whether the next line can be had without waiting for it."""
        with suppress(OSError, ValueError):  # Windows asks sockets alone
            while not self.lines and not self.ended and select.select([self.source], [], [], 0)[0]:
                self._read()
        return bool(self.lines) or self.ended

    def _read(self) -> None:
        """Wait for bytes, and split them into lines."""
        data = self.source.read1(READ_BYTES)  # type: ignore[attr-defined]
        self.ended = not data
        text = self.decoder.decode(data, final=self.ended)
        self.parts.append(text)
        if "\n" in text or self.ended:
            *complete, rest = "".join(self.parts).split("\n")
            self.lines.extend(f"{line}\n" for line in complete)
            self.parts = [rest]
            if self.ended and rest:
                self.lines.append(rest)
