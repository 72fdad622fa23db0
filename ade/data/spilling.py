"""Arrays that are made part by part: small ones in memory, large ones in a file without a name, memory-mapped."""

import contextlib
import tempfile
from typing import IO

import numpy as np
from numpy.typing import DTypeLike

from ade.files import cache_folder

IN_MEMORY = 1 << 28  # bytes; larger arrays go to a file


class SpilledArray:
    """Collects parts of a one-dimensional array."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.parts: list[np.ndarray] = []
        self.waiting = 0  # bytes of the parts in memory
        self.file: IO[bytes] | None = None

    def add(self, part: np.ndarray) -> None:
        """Append a part."""
        self.parts.append(part.astype(self.dtype, copy=False))
        self.waiting += part.nbytes
        if self.waiting > IN_MEMORY:
            self._write()

    def array(self) -> np.ndarray:
        """All parts in one array; of a file, pages are read when they are used and dropped when memory is short."""
        if self.file is None:
            return np.concatenate([np.empty(0, self.dtype), *self.parts])
        self._write()
        self.file.flush()
        mapped = np.memmap(self.file, self.dtype, "r+")
        self.file.close()  # the mapping keeps its content
        return mapped

    def _write(self) -> None:
        if self.file is None:
            self.file = _unnamed_file()
        for part in self.parts:
            self.file.write(part.data)
        self.parts, self.waiting = [], 0


def _unnamed_file() -> IO[bytes]:
    """A file in the cache folder, since a folder for temporary files may be held in memory; gone with the process."""
    with contextlib.suppress(OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=cache_folder())
    return tempfile.TemporaryFile()
