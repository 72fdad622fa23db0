"""Any source -> rows as dictionaries: files, pipes, frames, datasets, lists. The one way in which data is read.

The names of the columns are known before the first row. Rows are read as they arrive and never all at once, so that a
pipe is answered line by line and a file may have any length. `datasets` reads some of the same formats, but guesses
types (a label 01 becomes 1, a text NA is missing), and is no part of the install that predicts.
"""

import codecs
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from ade.data.columns import LABEL, TEXT, find_text_column
from ade.data.formats import PREFIX, Row, delimited_rows, json_values, labelled_text
from ade.data.problems import LabelType, ValueProblem, plain
from ade.data.streams import LineStream, is_pipe, open_bytes, open_lines, reading_errors
from ade.errors import InputError, first_line

Format = Literal["text", "csv", "tsv", "json", "parquet", "fasttext"]
BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet",
    ".txt": "text",
}  # fmt: skip
BATCH_ROWS = 8192  # of a Parquet file or a dataset, per step
SAMPLE_ROWS = 50  # that tell texts from labels, where the names of columns do not
GIVEN = "the data"  # what errors call data that has no name


@dataclass(frozen=True)
class Records:
    """Rows of a source, which are read once."""

    source: str  # as errors call it
    columns: tuple[str, ...]  # the keys of the rows; of JSON those of the first row
    rows: Iterator[Row]
    text: str = TEXT  # the column of the texts, where `read_texts` found it
    select: Callable[[Sequence[str]], Iterator[Row]] | None = None  # reads some columns alone, from the start
    stream: LineStream | None = None  # where it is a pipe

    def sampled(self) -> tuple["Records", Callable[[], list[Row]]]:
        """These rows, and what reads the first ones beforehand where they are asked for; no row is lost by that."""
        first: list[Row] = []

        def sample() -> list[Row]:
            first.extend(islice(self.rows, SAMPLE_ROWS))
            return first

        def rows() -> Iterator[Row]:
            yield from first
            yield from self.rows

        return replace(self, rows=rows()), sample

    def chunks(self, size: int) -> Iterator[list[Row]]:
        """Lists of up to `size` rows; of a pipe, a list ends where the next row has not arrived yet."""
        chunk = []
        for row in self.rows:
            chunk.append(row)
            if len(chunk) == size or (self.stream is not None and not self.stream.ready()):
                yield chunk
                chunk = []
        if chunk:
            yield chunk


@contextmanager
def records(source: Any, format: Format | None = None, quoted: bool = True) -> Iterator[Records]:
    """Context manager: the rows of a file or of Python objects.

    Args:
        source: a path, gzipped where it ends in `.gz`; `-` for standard input; a DataFrame, a `datasets.Dataset`, a
            dictionary of columns; a list of dictionaries, of (text, label) pairs or of texts.
        format: by default from the end of the path's name; of a pipe, lines of text.
        quoted: read quotes as CSV does, otherwise they are literal characters.
    """
    if not isinstance(source, (str, Path)):
        yield _of_objects(source)
        return
    path = Path(source)
    kind = format or format_of(path)
    if kind == "parquet":
        with _parquet(path) as rows:
            yield rows
        return
    with open_lines(path, kind) as lines:
        rows = _of_lines(lines, "standard input" if str(path) == "-" else str(path), kind, quoted)
        yield replace(rows, stream=lines if isinstance(lines, LineStream) else None)


@contextmanager
def read_texts(source: Any, format: Format | None = None, text_column: str | None = None) -> Iterator[Records]:
    """Context manager: rows with a text each, as `records` reads them; an error names a row without one."""
    with records(source, format) as read:
        if not read.columns:  # an empty array of JSON
            yield replace(read, columns=(TEXT,))
            return
        read, sample = read.sampled()
        text = find_text_column(read.source, read.columns, text_column, sample)
        yield replace(read, text=text, rows=_with_text(read, text))


def texts_of(source: Any, text_column: str | None = None) -> Iterator[str]:
    """The texts of a source alone."""
    with read_texts(source, text_column=text_column) as read:
        for row in read.rows:
            yield row[read.text]


def _with_text(read: Records, column: str) -> Iterator[Row]:
    """The rows, the value of whose column must be a text."""
    for number, row in enumerate(read.rows, 1):
        try:
            row[column] = required(row.get(column), "text")[0]
        except ValueProblem as problem:
            raise row_error(read.source, number, column, problem) from None
        yield row


def required(value: Any, what: str) -> tuple[str, LabelType]:
    """A value as a string, and its type; a `ValueProblem` where there is none."""
    if type(value) is str and value.isascii():  # most are
        return value, "str"
    found = plain(value)
    if found is None:
        raise ValueProblem(f"holds no {what}")
    return found


def row_error(source: str, row: int, column: str, problem: object) -> InputError:
    """The error for a value of a row, counted from 1."""
    return InputError(f"{source}, row {row}: column '{column}' {problem}")


def suffix_of(path: Path) -> str:
    """The suffix that names the format of a file: `.csv` for `a.csv` and for `a.csv.gz`."""
    inner = path.with_suffix("").suffix
    return inner if path.suffix == ".gz" and inner and inner != ".parquet" else path.suffix


def format_of(path: Path) -> Format:
    """The format of a file by the end of its name; otherwise lines of text, which may start with a label."""
    kind = BY_SUFFIX.get(suffix_of(path), "text")
    return "fasttext" if kind == "text" and path.is_file() and _starts_with_label(path) else kind


def _starts_with_label(path: Path) -> bool:
    """Whether a file of text starts with a label, as fastText writes them."""
    start = b""
    with suppress(OSError, EOFError, zlib.error), open_bytes(path) as file:  # reading it again names the file
        start = next((line for line in file if line.strip()), b"")
    return start.removeprefix(codecs.BOM_UTF8).lstrip().startswith(PREFIX.encode())


def _of_lines(lines: Iterable[str], source: str, kind: Format, quoted: bool) -> Records:
    if kind == "json":
        return _of_dictionaries(json_values(lines, source), source, "an object")
    if kind == "fasttext":
        return Records(source, (LABEL, TEXT), (labelled_text(line) for line in lines if line.strip()))
    if kind == "text":
        return Records(source, (TEXT,), ({TEXT: line.rstrip("\r\n")} for line in lines))
    return Records(source, *delimited_rows(lines, source, kind, quoted))


def _of_dictionaries(values: Iterable[Any], source: str, what: str) -> Records:
    """Rows of JSON, or a list of Python; `what` they are called."""

    def checked() -> Iterator[Row]:
        for number, value in enumerate(values, 1):
            if not isinstance(value, Mapping):
                raise InputError(f"{source}, row {number}: not {what} of columns")
            yield dict(value)

    rows = checked()
    first = next(rows, None)
    if first is None:
        return Records(source, (), rows)
    return Records(source, tuple(str(name) for name in first), chain([first], rows))


@contextmanager
def _parquet(path: Path) -> Iterator[Records]:
    """Context manager: the rows of a Parquet file."""
    if is_pipe(path):
        raise InputError(f"{path}: Parquet is read from files alone")
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow: pip install 'ade-embeddings[train]'") from None

    def select(names: Sequence[str]) -> Iterator[Row]:
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            yield from batch.to_pylist()

    try:
        with reading_errors(path, "parquet"), pyarrow.parquet.ParquetFile(path) as file:
            names = tuple(file.schema_arrow.names)
            yield Records(str(path), names, select(names), select=select)
    except pa.ArrowException as error:
        raise InputError(f"{path}: not readable as parquet ({first_line(error)})") from None


def _rows_of(columns: Mapping[str, Iterable[Any]]) -> Iterator[Row]:
    """The rows of columns by name."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def given_texts(given: Any) -> Any:
    """The texts of a column, or of the text column of a table; whatever holds no columns as it is.

    A table (of pandas, Arrow or `datasets`, a dictionary of columns) would else be taken for the names of its columns.
    """
    is_table = isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names")
    return list(texts_of(given)) if is_table else _listed(given)


def _listed(column: Any) -> Any:
    """The values of a column of Arrow or pandas as a list, anything else as it is."""
    to_list = getattr(column, "to_pylist", getattr(column, "to_list", None))
    return column if to_list is None else to_list()


def _of_objects(data: Any) -> Records:
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _of_hugging_face(data)
    names = data if isinstance(data, Mapping) else getattr(data, "column_names", getattr(data, "columns", None))
    if names is not None:
        return _of_columns(data, names)
    if not isinstance(data, Iterable) or isinstance(data, bytes):
        raise InputError(f"cannot read {type(data).__name__} as data; give a file, a list, a DataFrame or a dataset")

    rows = iter(data)
    first = next(rows, None)
    everything = rows if first is None else chain([first], rows)
    if first is None or isinstance(first, Mapping):
        return _of_dictionaries(everything, GIVEN, "a dictionary")
    if isinstance(first, str):
        return Records(GIVEN, (TEXT,), ({TEXT: text} for text in everything))
    return Records(GIVEN, (TEXT, LABEL), _of_pairs(everything))


def _of_pairs(rows: Iterable[Any]) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != 2:
            raise InputError(f"{GIVEN}, row {number}: not a pair of a text and a label")
        yield {TEXT: row[0], LABEL: row[1]}


def _of_columns(data: Any, names: Iterable[Any]) -> Records:
    """The rows of a DataFrame or of a dictionary of columns."""
    keys = {str(name): name for name in names}

    def select(chosen: Sequence[str]) -> Iterator[Row]:
        values = {name: _listed(data[keys[name]]) for name in chosen}
        for name, column in values.items():
            if isinstance(column, (str, bytes)) or not hasattr(column, "__len__") or hasattr(column, "columns"):
                raise InputError(f"{GIVEN}: column '{name}' holds {type(column).__name__}, expected a list of values")
        if len({len(column) for column in values.values()}) > 1:
            given = ", ".join(f"'{name}' {len(column):,}" for name, column in values.items())
            raise InputError(f"{GIVEN}: columns of different numbers of rows: {given}")
        yield from _rows_of(values)

    return Records(GIVEN, tuple(keys), select(tuple(keys)), select=select)


def _of_hugging_face(data: Any) -> Records:
    """The rows of a `datasets.Dataset`, with the names of classes in place of their numbers."""
    named = {}
    for column, feature in data.features.items():
        of_items = getattr(feature, "feature", feature)  # of a list
        if hasattr(of_items, "names"):
            named[column] = of_items.names

    def name_of(names: Sequence[str], number: Any) -> Any:
        if isinstance(number, list):
            return [name_of(names, each) for each in number]
        return names[number] if number is not None and number >= 0 else None  # -1: the label is not published

    def select(chosen: Sequence[str]) -> Iterator[Row]:
        for batch in data.select_columns(list(chosen)).iter(BATCH_ROWS):
            for column in named.keys() & {*chosen}:
                batch[column] = [name_of(named[column], number) for number in batch[column]]
            yield from _rows_of(batch)

    columns = tuple(data.column_names)
    return Records(GIVEN, columns, select(columns), select=select)
