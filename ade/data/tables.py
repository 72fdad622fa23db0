"""Files -> tables with two columns, texts and labels.

Files are read as a stream of rows. Up to `IN_MEMORY` bytes of text are held in memory; larger tables are written once
to the cache folder of Hugging Face datasets and memory-mapped from there.
"""

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ade.data.columns import find_columns
from ade.data.delimited import Layout, QuotingError, delimited_rows, layout_of
from ade.data.gathering import Table, gather, read_cached
from ade.data.records import fasttext_rows, json_rows, starts_with_label
from ade.data.rows import Row, line_that_is_not_utf8
from ade.errors import InputError, first_line

KINDS = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet",
    ".txt": "fastText",
}  # fmt: skip
TAGGED = (".conll", ".bio", ".iob", ".iob2")  # read by conll.py
SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
BATCH_ROWS = 8192  # of a Parquet file, read at a time


@dataclass(frozen=True)
class Schema:
    """The names of the text and label columns and the kind of problem; None to find them."""

    text: str | None = None
    label: str | None = None
    problem: str | None = None


def suffix_of(path: Path) -> str:
    """The suffix that names the format of a file: `.csv` for `a.csv` and for `a.csv.gz`."""
    inner = path.with_suffix("").suffix
    gzipped = path.suffix == ".gz" and inner in (*KINDS, *TAGGED) and inner != ".parquet"  # compressed by itself
    return inner if gzipped else path.suffix


def split_files(folder: Path, split: str, suffixes: Iterable[str]) -> list[Path]:
    """The files of a folder that may hold a split, in the order of the suffixes, gzipped files last."""
    stems = SPLITS.get(split, (split,))
    names = [stem + suffix + gz for gz in ("", ".gz") for stem in stems for suffix in suffixes]
    found = [folder / name for name in names if (folder / name).is_file()]
    return [path for path in found if suffix_of(path) != ".txt" or starts_with_label(path)]


def read_table(path: Path, schema: Schema, layout: Layout | None) -> Table:
    """The text and label columns of a file. Fields of CSV files are strings: a label 01 is not the number 1."""
    kind = KINDS[suffix_of(path)]
    with reading_errors(path, kind):
        cached = _cache_folder(path, schema)
        table = read_cached(cached)
        if table is not None:
            return table
        if kind == "csv":
            assert layout is not None
            return _read_delimited(path, layout, cached)
        if kind == "json":
            columns, rows = json_rows(path, schema.text, schema.label)
        elif kind == "parquet":
            columns, rows = _parquet_rows(path, schema)
        else:
            columns, rows = ("text", "label"), fasttext_rows(path)
        return gather(path, rows, columns, cached)


def read_layout(path: Path, schema: Schema, headerless: bool) -> Layout:
    """The layout of a CSV or TSV file."""
    with reading_errors(path, "csv"):
        return layout_of(path, suffix_of(path), schema.text, schema.label, headerless)


def _read_delimited(path: Path, layout: Layout, cached: Path) -> Table:
    """Read quotes as CSV does; if that fails but every line is a row with literal quotes, read them literally."""
    try:
        return gather(path, delimited_rows(path, layout, quoted=True), layout.columns, cached)
    except QuotingError as error:
        try:
            return gather(path, delimited_rows(path, layout, quoted=False), layout.columns, cached)
        except QuotingError:
            raise error from None


@contextmanager
def reading_errors(path: Path, kind: str) -> Iterator[None]:
    """Context manager: turn errors of reading a file into an `InputError` that names it."""
    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        line = line_that_is_not_utf8(path)
        raise InputError(f"{path}: not UTF-8 text{f' in line {line}' if line else ''} ({error.reason})") from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path}: not readable as {kind} ({first_line(error)})") from None
    except OSError as error:
        if error.errno is not None:  # of the disk, not of the content
            raise
        raise InputError(f"{path}: not readable as {kind} ({first_line(error)})") from None


def _parquet_rows(path: Path, schema: Schema) -> tuple[tuple[str, str], Iterator[Row]]:
    with open_parquet(path) as file:
        columns = find_columns(path, file.schema_arrow.names, schema.text, schema.label)

    def rows() -> Iterator[Row]:
        for batch in parquet_batches(path, columns):
            yield from zip(*(batch[name] for name in columns), strict=True)

    return columns, rows()


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Context manager: a Parquet file, opened by pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow: pip install 'ade-embeddings[train]'") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except pa.ArrowException as error:
        raise InputError(f"{path}: not readable as parquet ({first_line(error)})") from None


def parquet_batches(
    path: Path, columns: Sequence[str] | None = None, raw: bool = True
) -> Iterator[dict[str, list[Any]]]:
    """The columns of a Parquet file as lists of values, `BATCH_ROWS` rows at a time; with `raw`, texts as bytes."""
    import pyarrow as pa

    def values(column: pa.Array) -> list[Any]:
        plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        if raw and (pa.types.is_string(plain.type) or pa.types.is_large_string(plain.type)):
            plain = plain.cast(pa.large_binary())  # declared as text, which nobody has checked
        return plain.to_pylist()

    with open_parquet(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            names = batch.schema.names
            yield {name: values(column) for name, column in zip(names, batch.columns, strict=True)}


def _cache_folder(path: Path, schema: Schema) -> Path:
    """The cache folder of a file's columns; its name depends on path, size, modification time and schema."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    hugging_face = os.environ.get("HF_HOME") or Path(home) / "huggingface"
    folder = os.environ.get("HF_DATASETS_CACHE") or Path(hugging_face) / "datasets"
    about = path.stat()
    key = (2, str(path.resolve()), about.st_size, about.st_mtime_ns, schema)  # 2: version of the cache's format
    return Path(folder).expanduser() / "ade" / hashlib.sha256(repr(key).encode()).hexdigest()[:32]
