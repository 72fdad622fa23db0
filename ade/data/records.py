"""Any source -> rows as dictionaries: files, pipes, frames, datasets, lists. The one way in which data is read.

The names of the columns are known before the first row. Rows are read as they arrive and never all at once, so that a
pipe is answered line by line and a file may have any length. `datasets` reads some of the same formats, but guesses
types (a label 01 becomes 1, a text NA is missing), takes a stray quote for several rows of text, and is no part of the
install that predicts.
"""

import codecs
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from ade.data.columns import LABEL, TEXT, Schema, find_text_column
from ade.data.formats import PREFIX, DelimitedRows, distinct, json_values, split_labels
from ade.data.problems import LabelType, ValueProblem, plain
from ade.data.streams import LineStream, is_pipe, open_bytes, open_pipe, open_text, reading_errors
from ade.errors import InputError, first_line

Format = Literal["text", "csv", "tsv", "json", "parquet", "fasttext"]
FORMATS: tuple[Format, ...] = get_args(Format)
BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet",
    ".txt": "text",
}  # fmt: skip
CLASSES = "classes.txt"  # beside a file without a header: the names of its classes, in order
BATCH_ROWS = 8192  # of a Parquet file or a dataset, per step
SAMPLE_ROWS = 100  # by which columns are told whose names say nothing
GIVEN = "the data"  # what errors call data that has no name
Row = dict[str, Any]
Pair = tuple[Any, Any]  # a text and its label or labels, as they were given; None if missing


@dataclass(frozen=True)
class Records:
    """Rows of a source, which are read once."""

    source: str  # as errors call it
    header: tuple[str, ...]  # names of the columns; one may stand twice
    rows: Iterator[Row]
    text: str = TEXT  # the column of the texts, where `read_texts` found it
    select: Callable[[str, str], Iterator[Pair]] | None = None  # reads two columns alone
    classes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # column -> its values -> their names
    one_each: bool = False  # lists of one label stand for the label, as in fastText's lines
    stream: "LineStream | None" = None  # where it is a pipe
    first_rows: Callable[[int], list[Row]] = lambda _: []  # up to a number of rows, which stay to be read

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys of the rows; of JSON those of the first row."""
        return distinct(self.header)

    def sample(self) -> list[Row]:
        """The first rows, by which columns are told; of a pipe the first one alone."""
        return self.first_rows(1 if self.stream is not None else SAMPLE_ROWS)

    def pairs(self, text: str, label: str) -> Iterator[Pair]:
        """The values of a text column and a label column."""
        if self.select is not None:
            return self.select(text, label)
        return ((row.get(text), row.get(label)) for row in self.rows)

    def chunks(self, size: int) -> Iterator[tuple[int, list[Row]]]:
        """Lists of up to `size` rows, and the number of rows before each.

        Of a pipe, a list ends where the next row has not arrived yet.
        """
        first, chunk = 0, []
        for row in self.rows:
            chunk.append(row)
            if len(chunk) == size or (self.stream is not None and not self.stream.ready()):
                yield first, chunk
                first, chunk = first + len(chunk), []
        if chunk:
            yield first, chunk


@contextmanager
def records(
    source: Any, format: Format | None = None, schema: Schema | None = None, quoted: bool = True
) -> Iterator[Records]:
    """Context manager: the rows of a file, an open stream, or Python objects.

    Args:
        source: a path, gzipped where it ends in `.gz`; `-` for standard input; an open file of text; a DataFrame, a
            `datasets.Dataset`, a dictionary of columns; a list of dictionaries, of (text, label) pairs or of texts.
        format: by default from the end of the path's name; of a stream, lines of text.
        schema: names of the text and label columns, by which the header of a CSV file is told.
        quoted: read quotes as CSV does, otherwise they are literal characters.
    """
    if format is not None and format not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, not '{format}'")
    is_path = isinstance(source, (str, Path))
    if not is_path and not hasattr(source, "read"):
        yield _of_objects(source)
        return

    kind, name = format or "text", source if is_path else "the stream"
    opened: AbstractContextManager[TextIO | None] = nullcontext(None if is_path else source)
    if is_path and is_pipe(Path(source)):
        name, opened = "standard input" if str(source) == "-" else str(source), open_pipe(Path(source))
    elif is_path:
        name = path = Path(source)
        kind = format or ("fasttext" if starts_with_label(path) else format_of(path))
        opened = opened if kind == "parquet" else open_text(path, newline="" if kind in ("csv", "tsv") else "\n")
    with reading_errors(name, kind), opened as file:
        if file is not None:
            found = _of_text(file, str(name), kind, schema or Schema(), quoted)
            yield replace(found, stream=file if isinstance(file, LineStream) else None)
        else:
            with _parquet(Path(source)) as found:
                yield found


@contextmanager
def read_texts(source: Any, format: Format | None = None, text_column: str | None = None) -> Iterator[Records]:
    """Context manager: rows with a text each, as `records` reads them; an error names a row without one."""
    with records(source, format, Schema(text_column)) as found:
        if not found.header:
            yield replace(found, header=(text_column or TEXT,), text=text_column or TEXT)
            return
        text = find_text_column(found.source, found.header, text_column, found.sample)
        yield replace(found, text=text, rows=_with_text(found, text))


def texts_of(source: Any, text_column: str | None = None) -> Iterator[str]:
    """The texts of a source alone."""
    with read_texts(source, text_column=text_column) as found:
        for row in found.rows:
            yield row[found.text]


def _with_text(found: Records, column: str) -> Iterator[Row]:
    """The rows, the value of whose column must be a text."""
    for number, row in enumerate(found.rows, 1):
        try:
            row[column] = required(row.get(column), "text")[0]
        except ValueProblem as problem:
            raise row_error(found.source, number, column, problem) from None
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


def format_of(source: str | Path) -> Format:
    """The format of a file by the end of its name; lines of text where it tells nothing."""
    return BY_SUFFIX.get(suffix_of(Path(source)), "text")


def starts_with_label(path: Path) -> bool:
    """Whether a file of text starts with a label, as fastText writes them."""
    if format_of(path) != "text":
        return False
    try:
        with open_bytes(path) as file:
            start = next((line for line in file if line.strip()), b"")
            return start.removeprefix(codecs.BOM_UTF8).lstrip().startswith(PREFIX.encode())
    except (OSError, EOFError, zlib.error):
        return False


def _of_text(file: TextIO, source: str, kind: Format, schema: Schema, quoted: bool) -> Records:
    if kind == "parquet":
        raise InputError(f"{source}: Parquet is read from files alone")
    if kind == "json":
        return _of_dictionaries(json_values(file, source), source, "an object")
    if kind == "fasttext":
        labelled = (split_labels(line) for line in file if line.strip())
        return Records(source, (LABEL, TEXT), ({LABEL: each[0], TEXT: each[1]} for each in labelled), one_each=True)
    if kind == "text":
        return Records(source, (TEXT,), ({TEXT: line.rstrip("\r\n")} for line in file))
    rows = DelimitedRows(file, source, kind, schema, quoted)
    classes = _numbered_classes(Path(source).with_name(CLASSES)) if rows.headerless else {}
    return Records(source, rows.header, rows.records(), select=rows.pairs, classes=classes, first_rows=rows.first)


def _numbered_classes(path: Path) -> dict[str, dict[str, str]]:
    """The names of the classes that a file without a header numbers from 1, where a file beside it has them."""
    if not path.is_file():
        return {}
    with reading_errors(path, "text"):
        names = [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{path}: names a class twice ({', '.join(twice[:5])}); give each a name of its own")
    return {LABEL: {str(number): name for number, name in enumerate(names, 1)}}


def _of_dictionaries(values: Iterable[Any], source: str, what: str) -> Records:
    """Rows of JSON, or a list of Python; `what` they are called."""

    def checked() -> Iterator[Row]:
        for number, value in enumerate(values, 1):
            if not isinstance(value, Mapping):
                raise InputError(f"{source}, row {number}: not {what} of columns")
            yield dict(value)

    rows = checked()
    first = list(islice(rows, 1))
    return Records(
        source, tuple(str(name) for row in first for name in row), chain(first, rows), first_rows=lambda _: first
    )


@contextmanager
def _parquet(path: Path) -> Iterator[Records]:
    """Context manager: the rows of a Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow: pip install 'ade-embeddings[train]'") from None

    def batches(names: Sequence[str]) -> Iterator[list[list[Any]]]:
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            yield [batch[name].to_pylist() for name in names]

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield _of_batches(str(path), file.schema_arrow.names, batches)
    except pa.ArrowException as error:
        raise InputError(f"{path}: not readable as parquet ({first_line(error)})") from None


def _of_batches(
    source: str,
    header: Sequence[str],
    batches: Callable[[Sequence[str]], Iterator[Sequence[Iterable[Any]]]],
    classes: Mapping[str, Mapping[str, str]] | None = None,
) -> Records:
    """Rows of what is stored by columns; `batches` gives the values of columns by name, some rows per step."""

    def values(*names: str) -> Iterator[Any]:
        for columns in batches(names):
            yield from zip(*columns, strict=True)

    names = tuple(dict.fromkeys(header))

    def rows() -> Iterator[Row]:
        return (dict(zip(names, row, strict=True)) for row in values(*names))

    def first(count: int) -> list[Row]:
        return list(islice(rows(), count))

    return Records(source, tuple(header), rows(), select=values, classes=classes or {}, first_rows=first)


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

    def columns(chosen: Sequence[str]) -> Iterator[list[Sequence[Any]]]:
        values = {name: _listed(data[keys[name]]) for name in chosen}
        for name, column in values.items():
            if isinstance(column, (str, bytes)) or not hasattr(column, "__len__") or hasattr(column, "columns"):
                raise InputError(f"{GIVEN}: column '{name}' holds {type(column).__name__}, expected a list of values")
        if len({len(column) for column in values.values()}) > 1:
            given = ", ".join(f"'{name}' {len(column):,}" for name, column in values.items())
            raise InputError(f"{GIVEN}: columns of different numbers of rows: {given}")
        yield list(values.values())

    return _of_batches(GIVEN, [str(name) for name in names], columns)


def _of_hugging_face(data: Any) -> Records:
    """The rows of a `datasets.Dataset`; the numbers of a `ClassLabel` column have names."""
    features = {name: getattr(each, "feature", each) for name, each in data.features.items()}  # of lists: their items
    classes = {
        name: {str(number): each for number, each in enumerate(feature.names)}
        for name, feature in features.items()
        if hasattr(feature, "names")
    }

    def batches(names: Sequence[str]) -> Iterator[list[list[Any]]]:
        for batch in data.select_columns(list(names)).iter(BATCH_ROWS):
            yield [batch[name] for name in names]

    return _of_batches(GIVEN, data.column_names, batches, classes)
