"""Files -> Arrow tables of two columns, the texts and their labels.

Every kind of file is read as a stream of rows, so that memory stays flat: up to `IN_MEMORY` bytes of columns are held,
larger ones are written to the cache of Hugging Face data sets once and memory-mapped from there.
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
from ade.data.rows import Row, has_columns, line_that_is_not_utf8
from ade.errors import InputError, first_line

KINDS = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet",
    ".txt": "fastText",
}  # fmt: skip
TAGGED = (".conll", ".bio", ".iob", ".iob2")  # read by conll.py
SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
IN_MEMORY = 1 << 30  # bytes of texts and labels that are held in memory; more are memory-mapped
BATCH_ROWS, BATCH_CHARS = 8192, 1 << 24  # of a record batch, whichever comes first


@dataclass(frozen=True)
class Columns:
    """Where texts and labels stand, and what the labels are."""

    text: str
    label: str
    problem: str | None = None


def suffix_of(path: Path) -> str:
    """What a file's name says of its kind: `.csv` of `a.csv`, and of `a.csv.gz`."""
    inner = path.with_suffix("").suffix
    packed = path.suffix == ".gz" and inner in (*KINDS, *TAGGED) and inner != ".parquet"  # packed in itself
    return inner if packed else path.suffix


def split_files(folder: Path, split: str, suffixes: Iterable[str]) -> list[Path]:
    """The files of a folder that may hold a split, in the order of the suffixes, gzipped ones after plain ones."""
    stems = SPLITS.get(split, (split,))
    names = [stem + suffix + packed for packed in ("", ".gz") for stem in stems for suffix in suffixes]
    found = [folder / name for name in names if (folder / name).is_file()]
    return [path for path in found if suffix_of(path) != ".txt" or starts_with_label(path)]


def read_table(path: Path, columns: Columns, layout: Layout | None) -> pa.Table:
    """The columns of texts and labels of a file; of CSV every field as a string, since 01 is a name, not a number."""
    kind = KINDS[suffix_of(path)]
    with reading(path, kind):
        cached = _cache_file(path, columns)
        if cached.is_file():
            with suppress(pa.ArrowInvalid):  # a damaged one is written anew
                return _mapped(cached)
        if kind == "parquet":
            return _gathered(_parquet_batches(path, columns), cached)
        if kind == "json":
            return _gathered(_batches(json_rows(path, columns.text, columns.label), columns), cached)
        if kind == "fastText":
            return _gathered(_batches(fasttext_rows(path), columns), cached)
        assert layout is not None
        return _read_delimited(path, columns, layout, cached)


def read_layout(path: Path, columns: Columns, headerless: bool) -> Layout:
    """How a CSV file is laid out."""
    with reading(path, "csv"):
        return layout_of(path, suffix_of(path), columns.text, columns.label, headerless)


def _read_delimited(path: Path, columns: Columns, layout: Layout, cached: Path) -> pa.Table:
    """With quotes as CSV has them; where those do not add up and every line is a row without them, as they stand."""
    try:
        return _gathered(_batches(delimited_rows(path, layout, quoted=True), columns), cached)
    except QuotingError as error:
        try:
            return _gathered(_batches(delimited_rows(path, layout, quoted=False), columns), cached)
        except QuotingError:
            raise error from None


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Whatever is wrong with a file is one clear error."""
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
        if error.errno is not None:  # the disk's, not the content's
            raise
        raise InputError(f"{path}: not readable as {kind} ({first_line(error)})") from None


def _batches(rows: Iterator[Row], columns: Columns) -> Iterator[pa.RecordBatch]:
    """Rows of texts and labels as record batches."""
    names, listed = [columns.text, columns.label], False
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


def _parquet_batches(path: Path, columns: Columns) -> Iterator[pa.RecordBatch]:
    names = [columns.text, columns.label]
    with pyarrow.parquet.ParquetFile(path) as file:
        has_columns(path, file.schema_arrow.names, *names)
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            found = [batch.column(name) for name in names]
            plain = [each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in found]
            yield pa.RecordBatch.from_arrays(plain, names)


def _gathered(batches: Iterator[pa.RecordBatch], cached: Path) -> pa.Table:
    """Record batches as a table: in memory, or where they are too large in a file that is memory-mapped."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        if size > IN_MEMORY:
            return _written(chain(kept, batches), batch.schema, cached)
    return pa.Table.from_batches(kept) if kept else pa.table({})


def _written(batches: Iterable[pa.RecordBatch], schema: pa.Schema, cached: Path) -> pa.Table:
    cached.parent.mkdir(parents=True, exist_ok=True)
    draft = cached.with_suffix(f".{os.getpid()}")
    try:
        with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        draft.replace(cached)
    finally:
        draft.unlink(missing_ok=True)
    return _mapped(cached)


def _mapped(cached: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(cached))).read_all()


def _cache_file(path: Path, columns: Columns) -> Path:
    """Where the columns of a file are kept if they are large; another file once anything about them changes."""
    from huggingface_hub.constants import HF_HOME

    folder = os.environ.get("HF_DATASETS_CACHE") or os.path.join(HF_HOME, "datasets")
    about = path.stat()
    key = (1, str(path.resolve()), about.st_size, about.st_mtime_ns, columns)  # 1: the form of the cache
    return Path(folder).expanduser() / "ade" / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.arrow"
