"""Large arrays, in memory or memory-mapped: arrays that are made part by part, and texts in one array of bytes."""

import contextlib
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike

from ade.files import cache_folder

IN_MEMORY = 1 << 28  # bytes; a larger array is written to a file
CHUNK = 8192  # texts decoded per step


class GrowingArray:
    """A one-dimensional array that is made part by part; a large one is a memory-mapped file without a name."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.waiting = bytearray()  # not yet in the file
        self.file: IO[bytes] | None = None

    def add(self, part: np.ndarray | bytes) -> None:
        """Append a part."""
        self.waiting += part if isinstance(part, bytes) else np.ascontiguousarray(part, self.dtype).data
        if len(self.waiting) > IN_MEMORY:
            self._write()

    def array(self) -> np.ndarray:
        """All parts as one array. Of a file, pages are read when they are used and dropped when memory is short."""
        if self.file is None:
            return np.frombuffer(self.waiting, self.dtype)
        self._write()
        self.file.flush()
        mapped = np.memmap(self.file, self.dtype, "r+")
        self.file.close()  # the mapping keeps its content
        return mapped

    def __del__(self) -> None:
        if self.file is not None:  # after an error
            self.file.close()

    def _write(self) -> None:
        if self.file is None:
            self.file = _unnamed_file()
        self.file.write(self.waiting)
        self.waiting.clear()


def _unnamed_file() -> IO[bytes]:
    """A file in the cache folder, since a folder for temporary files may be held in memory; gone with the process."""
    with contextlib.suppress(OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=cache_folder())
    return tempfile.TemporaryFile()


class Texts(Sequence[str]):
    """A sequence of strings in one array of UTF-8 bytes; rows are selected without copying their bytes."""

    def __init__(self, data: np.ndarray, offsets: np.ndarray, rows: np.ndarray | None = None) -> None:
        self.data = data  # uint8: all texts
        self.offsets = offsets  # (n + 1,) int64: text i is data[offsets[i]:offsets[i + 1]]
        self.rows = rows  # indices of the texts; None for all

    def __len__(self) -> int:
        return len(self.offsets) - 1 if self.rows is None else len(self.rows)

    def __getitem__(self, key: Any) -> Any:
        """The text of a number, or a list of those of a slice."""
        places = np.arange(*key.indices(len(self))) if isinstance(key, slice) else np.array([range(len(self))[key]])
        rows = places if self.rows is None else self.rows[places]
        starts, ends, view = self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), self.data.data
        texts = [str(view[start:end], "utf8") for start, end in zip(starts, ends, strict=True)]
        return texts if isinstance(key, slice) else texts[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            yield from self[start : start + CHUNK]

    def take(self, rows: np.ndarray) -> "Texts":
        """The texts at the given row indices, in this order."""
        return Texts(self.data, self.offsets, rows if self.rows is None else self.rows[rows])


class GrowingTexts:
    """Texts that are added one by one."""

    def __init__(self) -> None:
        self.data, self.offsets = GrowingArray(np.uint8), array("q", [0])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def add(self, text: bytes) -> None:
        """Append a text, encoded as UTF-8."""
        self.data.add(text)
        self.offsets.append(self.offsets[-1] + len(text))

    def texts(self) -> Texts:
        """All texts added."""
        return Texts(self.data.array(), np.frombuffer(self.offsets, np.int64))
