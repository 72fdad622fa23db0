"""Standard input and pipes as lines of text, with the question whether another line has arrived already."""

import codecs
import io
import select
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO, TypeVar

READ_BYTES = 1 << 16  # read at a time, if as many have arrived
Row = TypeVar("Row")


class LineStream(io.TextIOBase):
    """Lines of a UTF-8 stream of bytes, as they arrive; a byte order mark at the start is left out."""

    def __init__(self, source: BinaryIO) -> None:
        self.source = source
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")("strict")
        self.lines: list[str] = []  # complete ones, the next one last
        self.rest, self.ended = "", False

    def __next__(self) -> str:  # type: ignore[override]
        while not self.lines and not self.ended:
            self._read()
        if self.lines:
            return self.lines.pop()
        line, self.rest = self.rest, ""
        if not line:
            raise StopIteration
        return line

    def read(self, size: int | None = -1) -> str:
        """What has arrived, at least a character; an empty string at the end."""
        while not self.lines and not self.rest and not self.ended:
            self._read()
        text = "".join(reversed(self.lines)) + self.rest
        self.lines, self.rest = [], ""
        return text

    def ready(self) -> bool:
        """Whether the next line can be had without waiting for it."""
        while not self.lines and not self.ended and _readable(self.source):
            self._read()
        return bool(self.lines) or self.ended

    def _read(self) -> None:
        """Wait for bytes, and split them into lines."""
        data = self.source.read1(READ_BYTES)  # type: ignore[attr-defined]
        self.ended = not data
        *complete, self.rest = (self.rest + self.decoder.decode(data, final=self.ended)).split("\n")
        self.lines = [f"{line}\n" for line in reversed(complete)]


def _readable(source: BinaryIO) -> bool:
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):  # Windows asks sockets alone
        return False


def chunks(rows: Iterable[Row], size: int, stream: object = None) -> Iterator[list[Row]]:
    """Lists of up to `size` rows; of a `LineStream`, a list ends where the next row has not arrived yet."""
    source = iter(rows)
    if not isinstance(stream, LineStream):
        while chunk := list(islice(source, size)):
            yield chunk
        return

    chunk = []
    for row in source:
        chunk.append(row)
        if len(chunk) == size or not stream.ready():
            yield chunk
            chunk = []
    if chunk:
        yield chunk
