"""Files and pipes of UTF-8 text: opened, read line by line as they arrive, errors of reading named by the file."""

import codecs
import gzip
import io
import select
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, TextIO, cast

from ade.errors import InputError, first_line

READ_BYTES = 1 << 16  # of a pipe, per step, if as many have arrived


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed if its name ends in `.gz`."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else open(path, "rb")


def open_text(path: Path, newline: str = "\n") -> TextIO:
    """Open a UTF-8 text file for reading, decompressed if its name ends in `.gz`, without the byte order mark."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline=newline)


def is_pipe(path: Path) -> bool:
    """Whether a path is standard input, written `-`, a named pipe, or anything else that is read once."""
    return str(path) == "-" or (path.exists() and not path.is_file() and not path.is_dir())


@contextmanager
def open_pipe(path: Path) -> Iterator[TextIO]:
    """Context manager: the lines of a pipe as they arrive; standard input stays open."""
    is_stdin = str(path) == "-"
    with open(0 if is_stdin else path, "rb", closefd=not is_stdin) as opened:
        yield cast(TextIO, LineStream(opened))


@contextmanager
def reading_errors(source: Path | str, kind: str) -> Iterator[None]:
    """Context manager: turn errors of reading a file into an `InputError` that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        line = _line_that_is_not_utf8(source) if isinstance(source, Path) and kind != "parquet" else None
        raise InputError(f"{source}: not UTF-8 text{f' in line {line}' if line else ''} ({error.reason})") from None
    except (EOFError, zlib.error, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the disk, not of the content
            raise
        raise InputError(f"{source}: not readable as {kind} ({first_line(error)})") from None


def _line_that_is_not_utf8(path: Path) -> int | None:
    """The number of the first line that is not valid UTF-8, counted from 1."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf8")
            except UnicodeDecodeError:
                return number
    return None


class LineStream(io.TextIOBase):
    """Lines of a UTF-8 stream of bytes, as they arrive; a byte order mark at the start is left out."""

    def __init__(self, source: BinaryIO) -> None:
        self.source = source
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")("strict")
        self.lines: list[str] = []  # complete ones, the next one last
        self.rest, self.ended = "", False

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        """The next line, of a long one the next part of at least `size` characters; an empty string at the end."""
        while not self.lines and not self.ended and (size < 0 or len(self.rest) < size):
            self._read()
        if self.lines:
            return self.lines.pop()
        line, self.rest = self.rest, ""
        return line

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
        *complete, self.rest = (self.rest + self.decoder.decode(data, final=self.ended)).split("\n")
        self.lines = [f"{line}\n" for line in reversed(complete)]
