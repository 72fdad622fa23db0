"""Vectors of texts as a file, written part by part: `.npy`, or JSON lines, which keep all columns."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ade.errors import InputError
from ade.files import new_file

VECTOR = "vector"  # name of the column that is added
SUFFIXES = (".npy", ".jsonl")
Batch = tuple[Sequence[dict[str, Any]], np.ndarray]  # rows and their vectors (n, D)


def write_vectors(path: Path, batches: Iterable[Batch], dim: int) -> None:
    """Write a file of vectors, whose name tells its format; it appears when all is written."""
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise InputError(f"{path}: which format? end the name in {', '.join(SUFFIXES)}")
    with new_file(path) as draft, open(draft, "wb") as file:
        if kind == ".npy":
            _write_npy(file, batches, dim)
        else:
            write_json_lines(file, batches)


def write_json_lines(file: BinaryIO, batches: Iterable[Batch]) -> None:
    """Write an object a row, with its vector as a list; what is written can be read at once."""
    for rows, vectors in batches:
        for row, vector in zip(rows, vectors, strict=True):
            numbers = [float(f"{number:.7g}") for number in vector]
            file.write(json.dumps({**row, VECTOR: numbers}, ensure_ascii=False, default=str).encode("utf8") + b"\n")
        file.flush()


def _write_npy(file: BinaryIO, batches: Iterable[Batch], dim: int) -> None:
    """The header is written twice, since it says how many rows there are; numpy leaves room in it for any number."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (0, dim)}
    np.lib.format.write_array_header_1_0(file, header)
    count = 0
    for _, vectors in batches:
        file.write(np.ascontiguousarray(vectors, "<f4").data)
        count += len(vectors)
    file.seek(0)
    np.lib.format.write_array_header_1_0(file, {**header, "shape": (count, dim)})
