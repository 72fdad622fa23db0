"""Encoders of sentences: what their vectors are worth, ADE beside what one would use.

English ones learn from MiniLM-L6, those of many languages from multilingual-e5-small, on the texts of
`benchmarks/encoder` and of `corpora.py`; none on a task's own texts.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import ade
from ade.files import model_folder
from ade.progress import Report, quiet
from benchmarks import library
from benchmarks.records import Places, Record, Run
from benchmarks.subjects.vectors import (
    PREFIX,
    STSB,
    TATOEBA,
    Encode,
    nearest_label,
    stsb,
    tatoeba,
)
from benchmarks.tables import Figure, Table, digits, listing, nbytes

MAX_TOKENS = 256  # whose rows are averaged
TEACHER, MANY_TEACHER = "minilm-l6", "multilingual-e5-small"
INCLUDED = "ADE, in the package"
DISTILLED = "model2vec of MiniLM-L6, 256"
STATIC = (INCLUDED, "MiniLM-L6", DISTILLED, "wordllama, 256", "mean of MiniLM-L6's table")
ENGLISH: dict[str, dict[str, Any]] = {
    "ADE, one layer, 2 MB": {"size": "2MB", "epochs": 4},
    "ADE, two layers, 8 MB": {"size": "8MB", "layers": 2, "epochs": 8},
}
MANY: dict[str, dict[str, Any]] = {
    "ADE, one layer, 16 MB": {"size": "16MB", "epochs": 4},
    "ADE, one layer, 24 MB": {"size": "24MB", "epochs": 4},
    "ADE, two layers, 16 MB": {"size": "16MB", "layers": 2, "epochs": 4},
}
Outcome = dict[str, Any]

POINT = digits(1)
SIZE = Figure("size", "bytes", nbytes, spread=False)


def sentence() -> Table:
    """English, in percent: STS-B (test), and labels of the nearest training texts."""
    rows = {name: [Run("static_encoder", {"encoder": name})] for name in STATIC}
    for name, chosen in ENGLISH.items():
        rows[name] = [Run("encoder", {"teacher": TEACHER, "corpus": "english", "seed": 0, **chosen})]
    figures = [
        Figure("STS-B", "stsb.test", POINT, better=1),
        Figure("Banking77, nearest", "nearest.banking77", POINT, better=1),
        Figure("TREC, nearest", "nearest.trec", POINT, better=1),
    ]
    return listing("encoder", rows, [*figures, SIZE])


def multilingual() -> Table:
    """Many languages, in percent: translations that are found (Tatoeba), and STS-B (test)."""

    def encoder(**chosen: Any) -> list[Run]:
        return [Run("encoder", {"teacher": MANY_TEACHER, "corpus": "multilingual", "seed": 0, **chosen})]

    def mean_over(task: str, languages: Sequence[str]) -> Callable[[Record], float]:
        return lambda figures: statistics.fmean(figures[task][language] for language in languages)

    rows = {name: encoder(**chosen) for name, chosen in MANY.items()}
    for name in (MANY_TEACHER, f"mean of {MANY_TEACHER}'s table"):
        rows[name] = [Run("static_encoder", {"encoder": name})]
    figures = [
        Figure("Tatoeba, mean", mean_over("tatoeba", TATOEBA), POINT, better=1),
        *(Figure(each, f"tatoeba.{each}", POINT) for each in TATOEBA),
        Figure("STS-B, mean", mean_over("stsb", STSB), POINT, better=1),
        *(Figure(each, f"stsb.{each}", POINT) for each in STSB),
    ]
    return listing("encoder", rows, [*figures, SIZE])


TABLES = (sentence, multilingual)


def run_encoder(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Distil an encoder on a corpus, which is a folder of files of lines, and measure it."""
    chosen = {name: value for name, value in settings.items() if name not in ("teacher", "corpus")}
    folder, corpus = places.model(settings["teacher"]), places.data(settings["corpus"])
    with tempfile.TemporaryDirectory() as work, library.cache_in(places.work / "cache"):
        out, began = Path(work) / "encoder", time.perf_counter()
        encoder = ade.distill_encoder(
            folder, sorted(corpus.glob("*.txt")), prefix=PREFIX.get(folder.name, ""), out=out, progress=report,
            device=places.device, **chosen,
        )  # fmt: skip
        seconds, size = time.perf_counter() - began, library.folder_bytes(out)
    tasks = tasks_of(settings["teacher"], encoder.encode, places)
    return {**tasks, "bytes": size, "seconds": seconds}


def tasks_of(name: str, encode: Encode, places: Places) -> Outcome:
    """What vectors are worth, by task: in many languages where the name has the teacher's of them, else in English."""
    if MANY_TEACHER in name:
        return {"tatoeba": tatoeba(encode, places), "stsb": {each: stsb(encode, places, each) for each in STSB}}
    return {
        "stsb": {part: stsb(encode, places, part=part) for part in ("dev", "test")},
        "nearest": {data: nearest_label(encode, places, data) for data in ("banking77", "trec")},
    }


def run_static(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Measure an encoder as it comes."""
    encode, size = other_encoder(settings["encoder"], places)
    return {**tasks_of(settings["encoder"], encode, places), "bytes": size}


def other_encoder(name: str, places: Places) -> tuple[Encode, int]:
    """An encoder by its name in the tables, and its bytes."""
    if name == INCLUDED:
        return ade.encode, library.folder_bytes(model_folder("english"))
    folder = places.model(MANY_TEACHER if MANY_TEACHER in name else TEACHER)
    if name in ("MiniLM-L6", MANY_TEACHER):
        teacher = ade.SentenceTeacher.load(folder, places.device, PREFIX.get(folder.name, ""))
        return teacher.encode, library.folder_bytes(folder)
    if name != DISTILLED:
        return mean_of("wordllama" if name.startswith("wordllama") else folder)

    distil = import_module("model2vec.distill").distill  # with its defaults
    with quiet(), tempfile.TemporaryDirectory() as work:
        model = distil(str(folder), pca_dims=256)
        model.save_pretrained(work)
        return lambda texts: model.encode(list(texts)), library.folder_bytes(Path(work))


def mean_of(source: str | Path) -> tuple[Encode, int]:
    """The mean of the rows of an embedding table, without special tokens."""
    teacher = ade.load_teacher(source)
    table = teacher.table.float().numpy()

    def encode(texts: Sequence[str]) -> np.ndarray:
        rows = [encoding.ids for encoding in teacher.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        return np.stack([table[ids[:MAX_TOKENS]].mean(0) if ids else np.zeros(table.shape[1]) for ids in rows])

    return encode, teacher.table.numel() * teacher.table.element_size() + len(teacher.tokenizer.to_str().encode())


KINDS = {"encoder": run_encoder, "static_encoder": run_static}
