"""Vectors of texts as a file, written part by part: `.npy`, JSON lines or Parquet; the last two keep all columns."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from ade.errors import InputError
from ade.files import new_file

VECTOR = "vector"  # name of the column that is added
SUFFIXES = (".npy", ".jsonl", ".parquet")
Row = dict[str, Any]


class VectorWriter(Protocol):
    """What writes vectors to an open file."""

    def write(self, rows: Sequence[Row], vectors: np.ndarray) -> None:
        """Write rows with their vectors (n, D)."""


@contextmanager
def vector_file(path: Path, dim: int) -> Iterator[VectorWriter]:
    """Context manager: a writer for a file whose name tells its format; the file appears when all is written."""
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise InputError(f"{path}: which format? end the name in {', '.join(SUFFIXES)}")
    with new_file(path) as draft:
        if kind == ".parquet":
            with _parquet(draft) as writer:
                yield writer
            return
        with open(draft, "wb") as file:
            writer = JsonLines(file) if kind == ".jsonl" else NumpyFile(file, dim)
            yield writer
            if isinstance(writer, NumpyFile):
                writer.finish()


class NumpyFile:
    """Appends vectors to an `.npy` file; numpy leaves room in its header for the number of rows."""

    def __init__(self, file: BinaryIO, dim: int) -> None:
        self.file, self.dim, self.count = file, dim, 0
        self._write_header()
        self.start = file.tell()

    def _write_header(self) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.count, self.dim)}
        np.lib.format.write_array_header_1_0(self.file, header)

    def write(self, rows: Sequence[Row], vectors: np.ndarray) -> None:
        """Write vectors (n, D)."""
        self.file.write(np.ascontiguousarray(vectors, "<f4").data)
        self.count += len(vectors)

    def finish(self) -> None:
        """Write the header again, now that the number of rows is known."""
        self.file.seek(0)
        self._write_header()
        assert self.file.tell() == self.start, "the header grew over the vectors"
        self.file.seek(0, 2)


class JsonLines:
    """Appends rows to a file, an object a line, with their vector as a list."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def write(self, rows: Sequence[Row], vectors: np.ndarray) -> None:
        """Write rows with their vectors (n, D)."""
        for row, vector in zip(rows, vectors, strict=True):
            numbers = [float(f"{number:.7g}") for number in vector]
            line = json.dumps({**row, VECTOR: numbers}, ensure_ascii=False, default=str)
            self.file.write(line.encode("utf8") + b"\n")
        self.file.flush()


@contextmanager
def _parquet(path: Path) -> Iterator[VectorWriter]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    class ParquetFile:
        writer: Any = None

        def write(self, rows: Sequence[Row], vectors: np.ndarray) -> None:
            columns = {name: [row.get(name) for row in rows] for name in rows[0]} if rows else {}
            flat = pa.array(np.ascontiguousarray(vectors, np.float32).ravel())
            table = pa.table({**columns, VECTOR: pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})
            if self.writer is None:
                self.writer = pq.ParquetWriter(path, table.schema)
            self.writer.write_table(table.cast(self.writer.schema))

    made = ParquetFile()
    try:
        yield made
    finally:
        if made.writer is not None:
            made.writer.close()
    if made.writer is None:
        raise InputError("there are no texts to write vectors of")
