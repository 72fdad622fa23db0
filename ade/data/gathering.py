"""Rows -> a table of texts and labels in numpy arrays; large ones go to a cache folder and are memory-mapped.

A cache folder holds `texts.bin` (UTF-8 of all texts), `columns.safetensors` (offsets of the texts, label numbers) and
`table.json` (the distinct labels). It is renamed to its name when it is complete.
"""

import json
import os
import shutil
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ade.data.rows import Row
from ade.data.texts import Texts
from ade.data.values import ValueProblem, is_listed, plain
from ade.errors import InputError

IN_MEMORY = 1 << 28  # bytes of texts held in memory; those of larger tables are memory-mapped
TEXTS, COLUMNS, ABOUT = "texts.bin", "columns.safetensors", "table.json"


@dataclass(frozen=True)
class Table:
    """Texts and labels of n rows, with the rows where they are missing (numbered from 0).

    The labels of a row are `values[ids[...]]`, one for each row, or `lengths[i]` for row i where labels are lists. A
    list may hold a missing label: -1.
    """

    columns: tuple[str, str]
    texts: Texts
    ids: np.ndarray  # (m,) int64
    values: tuple[str, ...]  # the distinct labels
    label_type: str  # str, int, float or bool
    lengths: np.ndarray | None  # (n,) int64: labels of each row; None where labels are no lists
    without_text: np.ndarray  # int64: rows
    without_label: np.ndarray  # int64: rows

    def __len__(self) -> int:
        return len(self.texts)


class _Gatherer:
    """Collects rows; the bytes of texts go to a file where they are too many."""

    def __init__(self, source: Path | str, columns: tuple[str, str], cached: Path | None) -> None:
        self.source, self.columns, self.cached = source, columns, cached
        self.draft: Path | None = None  # the folder that is being written
        self.file: BinaryIO | None = None
        self.data, self.total, self.offsets = bytearray(), 0, array("q", [0])
        self.ids, self.lengths, self.listed = array("q"), array("q"), False
        self.numbers: dict[str, int] = {}  # label -> its number
        self.types: set[str] = set()
        self.without_text: list[int] = []
        self.without_label: list[int] = []

    def add(self, text: Any, label: Any) -> None:
        """Add a row."""
        row = len(self.lengths)
        found = self._plain(text, row, self.columns[0])
        if found is None:
            self.without_text.append(row)
        encoded = b"" if found is None else found[0].encode("utf8")
        self.data += encoded
        self.total += len(encoded)
        self.offsets.append(self.total)
        if len(self.data) > IN_MEMORY and self.cached is not None:
            self._to_disk(self.cached)

        listed = is_listed(label)
        if label is not None and listed != self.listed:
            if len(self.without_label) < row:  # an earlier row has a label
                what = "lists in some rows and plain values in others"
                raise InputError(f"{self.source}, row {row + 1}: column '{self.columns[1]}' holds {what}")
            self.listed = listed
        before = len(self.ids)
        for each in label if listed else (label,):
            self._add_label(each, row)
        if not listed and self.ids[-1] < 0:
            self.without_label.append(row)
        self.lengths.append(len(self.ids) - before)

    def _add_label(self, label: Any, row: int) -> None:
        found = self._plain(label, row, self.columns[1])
        if found is None:
            self.ids.append(-1)
            return
        self.ids.append(self.numbers.setdefault(found[0], len(self.numbers)))
        self.types.add(found[1])

    def _plain(self, value: Any, row: int, column: str) -> tuple[str, str] | None:
        if type(value) is str and value.isascii():  # most are
            return value, "str"
        try:
            return plain(value)
        except ValueProblem as problem:
            raise InputError(f"{self.source}, row {row + 1}: column '{column}' {problem}") from None

    def _to_disk(self, cached: Path) -> None:
        if self.file is None:
            self.draft = cached.with_name(f"{cached.name}.{os.getpid()}")
            self.draft.mkdir(parents=True, exist_ok=True)
            self.file = open(self.draft / TEXTS, "wb")  # noqa: SIM115 - closed by `close`
        self.file.write(self.data)
        self.data.clear()

    def table(self) -> Table:
        """The table of all rows."""
        if self.file is not None and self.draft is not None and self.cached is not None:
            self._to_disk(self.cached)
            self.file.close()
            _write_columns(self.draft, self._table(np.empty(0, np.uint8)))
            shutil.rmtree(self.cached, ignore_errors=True)  # a damaged one
            with suppress(OSError):  # another process was quicker
                self.draft.rename(self.cached)
            table = read_cached(self.cached)
            assert table is not None
            return table
        return self._table(np.frombuffer(self.data, np.uint8))

    def _table(self, data: np.ndarray) -> Table:
        def column(values: "array[int] | list[int]") -> np.ndarray:
            return np.array(values, dtype=np.int64)

        label_type = self.types.pop() if len(self.types) == 1 else "str"
        return Table(
            columns=self.columns,
            texts=Texts(data, column(self.offsets)),
            ids=column(self.ids),
            values=tuple(self.numbers),
            label_type=label_type,
            lengths=column(self.lengths) if self.listed else None,
            without_text=column(self.without_text),
            without_label=column(self.without_label),
        )

    def close(self) -> None:
        """Remove what was not finished."""
        if self.file is not None:
            self.file.close()
        if self.draft is not None:
            shutil.rmtree(self.draft, ignore_errors=True)


def gather(source: Path | str, rows: Iterable[Row], columns: tuple[str, str], cached: Path | None = None) -> Table:
    """Collect rows into a table; those of more than `IN_MEMORY` bytes go to the folder `cached`, where one is given.

    Errors name the source and the row.
    """
    gatherer = _Gatherer(source, columns, cached)
    try:
        for text, label in rows:
            gatherer.add(text, label)
        return gatherer.table()
    finally:
        gatherer.close()


def _write_columns(folder: Path, table: Table) -> None:
    arrays = {"offsets": table.texts.offsets, "ids": table.ids}
    arrays |= {"without_text": table.without_text, "without_label": table.without_label}
    if table.lengths is not None:
        arrays["lengths"] = table.lengths
    save_file(arrays, folder / COLUMNS)
    about = {"columns": table.columns, "values": table.values, "label_type": table.label_type}
    (folder / ABOUT).write_text(json.dumps(about), "utf8")


def read_cached(folder: Path) -> Table | None:
    """The table of a cache folder; None where there is none, or it is damaged."""
    try:
        about = json.loads((folder / ABOUT).read_text("utf8"))
        arrays = load_file(folder / COLUMNS)
        size = (folder / TEXTS).stat().st_size
        data = np.memmap(folder / TEXTS, np.uint8, "r") if size else np.empty(0, np.uint8)
        if size != arrays["offsets"][-1]:
            return None
        return Table(
            columns=tuple(about["columns"]),
            texts=Texts(data, arrays["offsets"]),
            ids=arrays["ids"],
            values=tuple(about["values"]),
            label_type=about["label_type"],
            lengths=arrays.get("lengths"),
            without_text=arrays["without_text"],
            without_label=arrays["without_label"],
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, SafetensorError):
        return None
