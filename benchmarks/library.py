"""What several subjects share: rows, models trained on them, made-up models and texts, bytes."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from filelock import FileLock
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

import ade
from ade.configuration import CLASSIFIER, Config, default_heads
from ade.data.sources import EMBEDDED, split_files
from ade.folder import new_model
from ade.packing.tokenizer_file import tokenizer_path
from ade.progress import Report, silent
from benchmarks.records import Places

DISTILLATION = ("anchors", "pairs", "threshold", "solver", "signed", "rounds")  # settings of a run that are distil's
NOT_TRAINED = (*DISTILLATION, "data", "teacher", "per_class", "vectors")  # the others are `ade.train`'s


def load_split(places: Places, name: str, split: str) -> ade.Dataset:
    """A split of a data set, by its folder or embedded."""
    if name == EMBEDDED and not (places.data_dir / name).exists():
        return ade.load_dataset(EMBEDDED, split)
    return ade.load_dataset(places.data(name), split)


def load_rows(places: Places, settings: Mapping[str, Any]) -> tuple[ade.Dataset, ade.Dataset | None, ade.Dataset]:
    """Training rows, validation rows where the data has some, and test rows.

    `per_class` takes so many of each class of the training rows, drawn by the seed.
    """
    name = settings["data"]
    rows, test = load_split(places, name, "train"), load_split(places, name, "test")
    folder = places.data_dir / name
    has_dev = folder.is_dir() and "dev" in split_files(folder)
    dev = load_split(places, name, "dev").relabelled(rows.names) if has_dev else None
    if settings.get("per_class"):
        of_class = [np.flatnonzero(rows.labels == label) for label in range(len(rows.names))]
        generator = np.random.default_rng(settings["seed"])
        rows = rows.take(np.sort(np.concatenate([generator.permutation(i)[: settings["per_class"]] for i in of_class])))
    return rows, dev, test.relabelled(rows.names)


def codebook_of(places: Places, settings: Mapping[str, Any], report: Report = silent) -> Path:
    """The folder of the codebook of these settings: distilled once and kept in the work folder."""
    chosen = {name: settings[name] for name in DISTILLATION if name in settings}
    name = "-".join([settings["teacher"], *(f"{key}={value}" for key, value in chosen.items())])
    folder = places.work / "codebooks" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = places.model(settings["teacher"])
    with FileLock(f"{folder}.lock"):  # of several runs at once one makes it
        if not folder.exists():
            teacher = ade.load_teacher(source)
            chosen.setdefault("anchors", min(ade.DistillationSettings.anchors, len(teacher.table)))
            made = ade.DistillationSettings(**chosen, device=places.device)
            ade.distill(teacher, made, report=report).save(folder)
    return folder


def fit(
    places: Places, settings: Mapping[str, Any], rows: ade.Dataset, dev: ade.Dataset | None, out: Path | None = None,
    report: Report = silent,
) -> Any:  # fmt: skip
    """Train a model of a run's settings; those that say nothing else are ade's defaults."""
    chosen: dict[str, Any] = {name: value for name, value in settings.items() if name not in NOT_TRAINED}
    if "teacher" in settings:  # without one, ade starts from its own encoder
        chosen["start"] = codebook_of(places, settings, report)
    elif not settings.get("vectors", True):
        chosen["start"] = encoder_of_nothing()
    with cache_in(places.work / "cache"):
        return ade.train(rows, **chosen, device=places.device, validation=dev, out=out, progress=report)


def encoder_of_nothing() -> ade.Saved:
    """The encoder of the package with zeros for its vectors: what is trained on it is the lexicon alone."""
    encoder = ade.Saved.read("english")
    zeros = {name: np.zeros_like(encoder.layers[name]) for name in ("head.weight", "head.bias")}
    return replace(encoder, layers={**encoder.layers, **zeros})


def cache_in(folder: Path) -> Any:
    """Let ade keep what it keeps in a folder of the benchmarks' own, within a `with`."""
    return patch.dict(os.environ, ADE_CACHE=str(folder))


def save_untrained(codebook: ade.Saved, names: Iterable[str], folder: Path, attend: str) -> None:
    """Write a model that has learned nothing: its speed and size are those of a trained one."""
    assert isinstance(codebook.table, ade.Codebook)
    start = replace(codebook, table=codebook.table.normalised())
    heads = default_heads(start.table.dim)
    new_model(start, Config(kind=CLASSIFIER, labels=tuple(names), attend=attend, heads=heads)).save(folder)


def word_tokenizer(count: int) -> Tokenizer:
    """A tokenizer of the words w0, w1, ..."""
    return Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w0"))


def write_toy(folder: Path, vocabulary: int, dim: int, rows: int, words: int) -> list[str]:
    """Write a teacher of random rows and labelled texts to learn from, `rows.csv`; returns the texts.

    Words are drawn by Zipf's law from the part of the vocabulary that the label names; texts have up to `words`.
    Nothing is taken from packages or the network, so that this runs anywhere.
    """
    generator, tokenizer = np.random.default_rng(0), word_tokenizer(vocabulary)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (folder / "teacher").mkdir()
    tokenizer.save(str(folder / "teacher" / "tokenizer.json"))
    table = generator.normal(size=(vocabulary, dim)).astype(np.float32)
    save_file({"weight": table}, folder / "teacher" / "embeddings.safetensors")

    labels = generator.integers(0, 4, rows)
    drawn = np.minimum(generator.zipf(1.3, (rows, words)), vocabulary // 4) * 4 - 1 - labels[:, None]
    texts = [" ".join(f"w{i}" for i in row[: 5 + n % (words - 5)]) for n, row in enumerate(drawn)]
    lines = [f"{text},class {label}" for text, label in zip(texts, labels, strict=True)]
    (folder / "rows.csv").write_text("\n".join(["text,label", *lines, ""]), "utf8")
    return texts


def folder_bytes(folder: Path) -> int:
    """Bytes that prediction reads of a folder by ade, transformers or model2vec: weights, config.json, tokenizer."""
    files = [*folder.glob("*.safetensors"), folder / "config.json", tokenizer_path(folder)]
    return sum(path.stat().st_size for path in files)


def linear_bytes(numbers: int, vocabulary: Iterable[str]) -> int:
    """Bytes of a linear model over n-grams: `numbers` float32 values, and the n-grams with one byte between them."""
    return 4 * numbers + sum(len(entry.encode("utf8")) + 1 for entry in vocabulary)
