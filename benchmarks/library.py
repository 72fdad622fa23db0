"""All that the benchmarks ask of ade beneath its public names: what is renamed there changes here."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from filelock import FileLock
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

import ade
from ade.data.sources import EMBEDDED, split_files
from ade.data.tokens import Ragged
from ade.devices import resolve_device
from ade.evaluation import compare
from ade.files import model_folder
from ade.packing.tokenizer_file import tokenizer_path
from ade.progress import Report, quiet, silent
from ade.trained_model import unit
from ade.training.start import config_for, untrained
from benchmarks.records import Places

__all__ = [
    "EMBEDDED", "Ragged", "Report", "compare", "model_folder", "quiet", "resolve_device", "silent", "unit",
]  # fmt: skip
DISTILLATION = ("anchors", "pairs", "threshold", "solver", "signed", "rounds")  # settings of a run that are distil's
NOT_TRAINED = (*DISTILLATION, "data", "teacher", "per_class", "vectors")  # the others are `ade.train`'s
Sizes = dict[str, int]  # model_bytes, tokenizer_bytes (what turns text into ids), and their sum, bytes


# -- rows ----------------------------------------------------------------------------------------------------------


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


# -- training ------------------------------------------------------------------------------------------------------


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


# -- models that have learned nothing --------------------------------------------------------------------------------


def save_untrained(codebook: ade.Saved | Path, names: Iterable[str], folder: Path, **shape: Any) -> None:
    """Write a model that has learned nothing: its speed and size are those of a trained one."""
    start = codebook if isinstance(codebook, ade.Saved) else ade.Saved.read(codebook)
    _untrained(start, tuple(names), **shape).save(folder)


def _untrained(start: ade.Saved, names: tuple[str, ...], **shape: Any) -> ade.Saved:
    nothing = ade.Dataset([], np.zeros(0, np.int64), names)
    return untrained(start, config_for(start, nothing, ade.Architecture(**shape), ade.STRONG), seed=0)


def random_codebook(vocabulary: int, anchors: int, pairs: int, dim: int) -> ade.Saved:
    """A codebook of this shape with nothing learned in it: enough for time and memory."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.rand(vocabulary, anchors, generator=generator).topk(pairs, 1).indices.flatten()
    weights = torch.randn(vocabulary * pairs, generator=generator)
    table = torch.nn.functional.normalize(torch.randn(anchors, dim, generator=generator), dim=1)
    counts = np.full(vocabulary, pairs)
    codebook = ade.Codebook(table.numpy(), indices.numpy(), weights.numpy(), counts)
    return ade.Teacher("random", torch.empty(0, dim), word_tokenizer(vocabulary)).as_saved(codebook)


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
    lines = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    (folder / "rows.csv").write_text("\n".join(["text,label", *lines, ""]), "utf8")
    return texts


def forward_model(folder: Path) -> Any:
    """A model as transformers loads it, for its own forward pass."""
    return ade.AdeForSequenceClassification.from_pretrained(folder, trust_remote_code=False).eval()


# -- bytes ---------------------------------------------------------------------------------------------------------


def folder_sizes(folder: Path) -> Sizes:
    """Bytes that prediction reads of a folder by ade, transformers or model2vec: weights, config.json, tokenizer."""
    files = [*folder.glob("*.safetensors"), folder / "config.json"]
    return sizes(sum(path.stat().st_size for path in files), tokenizer_path(folder).stat().st_size)


def linear_sizes(numbers: int, vocabulary: Iterable[str]) -> Sizes:
    """Bytes of a linear model over n-grams: `numbers` float32 values, and the n-grams with one byte between them."""
    return sizes(4 * numbers, sum(len(entry.encode("utf8")) + 1 for entry in vocabulary))


def sizes(model: int, tokenizer: int = 0) -> Sizes:
    """Both sizes and their sum."""
    return {"bytes": model + tokenizer, "model_bytes": model, "tokenizer_bytes": tokenizer}


def row_statistics(tokenizer: Any, weight: Any, nbytes: int, report: Report) -> tuple[np.ndarray, list[int]]:
    """How often each row of a table is expected, and the special tokens' rows that `ade compress` keeps whole."""
    from ade.compression.compress import special_token_rows
    from ade.compression.frequencies import row_frequencies

    frequency = row_frequencies(tokenizer.backend_tokenizer, len(weight), report=report).numpy()
    return frequency, special_token_rows(tokenizer, weight, nbytes)


def load_pretrained(folder: Path) -> tuple[Any, Any]:
    """A model of any architecture, compressed or not, in float32, with its tokenizer."""
    from ade.compression.checkpoint import load_model

    model, tokenizer = load_model(folder)
    return torch.nn.Module.float(model), tokenizer  # half precision is slow on a CPU


def export_compressed(folder: Path, out: Path) -> Path:
    """The file of a compressed encoder as ONNX, its linear layers in 4 bits."""
    from ade.integrations.onnx import Q4, export

    export(folder, out)
    return out / Q4
