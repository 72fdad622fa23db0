"""Texts: many strings in one array of UTF-8 bytes, in memory or memory-mapped."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

CHUNK = 8192  # texts decoded at a time


class Texts(Sequence[str]):
    """A sequence of strings in one array of bytes, which may be memory-mapped; rows are selected without copying."""

    def __init__(self, data: np.ndarray, offsets: np.ndarray, rows: np.ndarray | None = None) -> None:
        self.data = data  # uint8: UTF-8 of all texts
        self.offsets = offsets  # (n + 1,) int64: text i is data[offsets[i]:offsets[i + 1]]
        self.rows = rows  # indices of the texts; None for all

    def __len__(self) -> int:
        return len(self.offsets) - 1 if self.rows is None else len(self.rows)

    @overload
    def __getitem__(self, key: int) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> list[str]: ...
    def __getitem__(self, key: int | slice) -> str | list[str]:
        if isinstance(key, slice):
            return self._decode(np.arange(*key.indices(len(self))))
        return self._decode(np.array([range(len(self))[key]]))[0]

    def _decode(self, places: np.ndarray) -> list[str]:
        rows = places if self.rows is None else self.rows[places]
        starts, ends, view = self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), self.data.data
        return [str(view[start:end], "utf8") for start, end in zip(starts, ends, strict=True)]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            yield from self[start : start + CHUNK]

    def take(self, rows: np.ndarray) -> "Texts":
        """The texts at the given row indices, in this order."""
        return Texts(self.data, self.offsets, rows if self.rows is None else self.rows[rows])
