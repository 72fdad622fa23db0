"""Files -> Arrow tables with two columns, texts and labels.

Files are read as a stream of rows. Up to `IN_MEMORY` bytes are held in memory; larger tables are written once to the
cache folder of Hugging Face datasets and memory-mapped from there.
"""

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from ade.data.delimited import Layout, QuotingError, delimited_rows, layout_of
from ade.data.records import fasttext_rows, json_rows, starts_with_label
from ade.data.rows import Row, check_columns, line_that_is_not_utf8
from ade.errors import InputError, first_line

KINDS = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet",
    ".txt": "fastText",
}  # fmt: skip
TAGGED = (".conll", ".bio", ".iob", ".iob2")  # read by conll.py
SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
IN_MEMORY = 1 << 30  # bytes of texts and labels held in memory; larger tables are memory-mapped
BATCH_ROWS, BATCH_CHARS = 8192, 1 << 24  # per record batch, whichever comes first


@dataclass(frozen=True)
class Schema:
    """The names of the text and label columns, and the kind of problem; None to infer it from the labels."""

    text: str
    label: str
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


def read_table(path: Path, schema: Schema, layout: Layout | None) -> pa.Table:
    """The text and label columns of a file. Fields of CSV files are strings: a label 01 is not the number 1."""
    kind = KINDS[suffix_of(path)]
    with reading_errors(path, kind):
        cached = _cache_file(path, schema)
        if cached.is_file():
            with suppress(pa.ArrowInvalid):  # a damaged cache file is written again
                return _memory_map(cached)
        if kind == "parquet":
            return _to_table(_parquet_batches(path, schema), cached)
        if kind == "json":
            return _to_table(_batches(json_rows(path, schema.text, schema.label), schema), cached)
        if kind == "fastText":
            return _to_table(_batches(fasttext_rows(path), schema), cached)
        assert layout is not None
        return _read_delimited(path, schema, layout, cached)


def read_layout(path: Path, schema: Schema, headerless: bool) -> Layout:
    """The layout of a CSV or TSV file."""
    with reading_errors(path, "csv"):
        return layout_of(path, suffix_of(path), schema.text, schema.label, headerless)


def _read_delimited(path: Path, schema: Schema, layout: Layout, cached: Path) -> pa.Table:
    """Read quotes as CSV does; if that fails but every line is a row with literal quotes, read them literally."""
    try:
        return _to_table(_batches(delimited_rows(path, layout, quoted=True), schema), cached)
    except QuotingError as error:
        try:
            return _to_table(_batches(delimited_rows(path, layout, quoted=False), schema), cached)
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
    except (pa.ArrowException, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not readable as {kind} ({first_line(error)})") from None
    except OSError as error:
        if error.errno is not None:  # of the disk, not of the content
            raise
        raise InputError(f"{path}: not readable as {kind} ({first_line(error)})") from None


def _batches(rows: Iterator[Row], schema: Schema) -> Iterator[pa.RecordBatch]:
    """Rows as record batches."""
    names, listed = [schema.text, schema.label], False
    texts: list[str | None] = []
    labels: list[str | list[str | None] | None] = []
    chars = 0
    for text, label in rows:
        texts.append(text)
        labels.append(label)
        chars += len(text or "")
        listed = listed or isinstance(label, list)
        if len(texts) == BATCH_ROWS or chars > BATCH_CHARS:
            yield _batch(texts, labels, names, listed)
            texts, labels, chars = [], [], 0
    if texts:
        yield _batch(texts, labels, names, listed)


def _batch(
    texts: list[str | None], labels: list[str | list[str | None] | None], names: list[str], listed: bool
) -> pa.RecordBatch:
    strings = pa.large_string()
    kind = pa.large_list(strings) if listed else strings
    return pa.RecordBatch.from_arrays([pa.array(texts, strings), pa.array(labels, kind)], names)


def _parquet_batches(path: Path, schema: Schema) -> Iterator[pa.RecordBatch]:
    names = [schema.text, schema.label]
    with pyarrow.parquet.ParquetFile(path) as file:
        check_columns(path, file.schema_arrow.names, *names)
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            found = [batch.column(name) for name in names]
            plain = [each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in found]
            yield pa.RecordBatch.from_arrays(plain, names)


def _to_table(batches: Iterator[pa.RecordBatch], cached: Path) -> pa.Table:
    """Record batches as a table: in memory or, if they are too large, memory-mapped from the file `cached`."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        if size > IN_MEMORY:
            return _write_and_map(chain(kept, batches), batch.schema, cached)
    return pa.Table.from_batches(kept) if kept else pa.table({})


def _write_and_map(batches: Iterable[pa.RecordBatch], schema: pa.Schema, cached: Path) -> pa.Table:
    cached.parent.mkdir(parents=True, exist_ok=True)
    draft = cached.with_suffix(f".{os.getpid()}")
    try:
        with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        draft.replace(cached)
    finally:
        draft.unlink(missing_ok=True)
    return _memory_map(cached)


def _memory_map(cached: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(cached))).read_all()


def _cache_file(path: Path, schema: Schema) -> Path:
    """The cache file of a file's columns; its name depends on path, size, modification time and schema."""
    from huggingface_hub.constants import HF_HOME

    folder = os.environ.get("HF_DATASETS_CACHE") or os.path.join(HF_HOME, "datasets")
    about = path.stat()
    key = (1, str(path.resolve()), about.st_size, about.st_mtime_ns, schema)  # 1: version of the cache's format
    return Path(folder).expanduser() / "ade" / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.arrow"
