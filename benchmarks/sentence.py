"""Encoders of sentences: what their vectors are worth, and how fast they are made, ADE beside what one would use.

Tasks: rank correlation with people's judgements of similarity (STS-B), the label of the nearest training text
(Banking77, TREC), and the description that belongs to a title (AG News). `run_encoder` distils an ADE encoder,
`run_static` measures the others, `run_encoder_rates` measures texts a second of all in turn.
"""

import csv
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from ade.cli.sizes import folder_sizes
from ade.data.loading import load_dataset
from ade.devices import quickest_dtype, resolve_device
from ade.encoder import Encoder, unit
from ade.errors import InputError
from ade.progress import Report, quiet
from ade.settings import EncoderSettings
from ade.teachers import DEFAULT_TEACHER, load_teacher
from ade.training.distill_encoder import distill_encoder
from ade.training.sentence_teacher import SentenceTeacher
from benchmarks.accuracy import Places
from benchmarks.records import Run
from benchmarks.vectors import Encode, stsb, unit_means

SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"0-9])")
SHORTEST, LONGEST = 8, 1000  # characters of a text of the corpus
MAX_TOKENS, BATCH, GPU_BATCH = 256, 32, 256
MODEL2VEC = "model2vec of MiniLM-L6, 256"
REPEATS, TIMED_TEXTS, SLOW_TEXTS = 5, 8192, 512
RATE_TEXTS = 20_000  # of the encoders whose rates are measured


class _Stages:
    """Passes progress on, and knows how long each stage took."""

    def __init__(self, report: Report) -> None:
        self.report, self.times = report, dict[str, list[float]]()

    def __call__(self, what: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        self.times.setdefault(what, []).append(time.perf_counter())
        self.report(what, done, total, metrics)

    def seconds(self) -> dict[str, float]:
        """From the first to the last report of each stage."""
        return {what: times[-1] - times[0] for what, times in self.times.items()}


def run_encoder(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Distil an encoder on general text and measure it.

    Of some texts, time is measured too, and nothing is taken from a cache; seeds on all texts share one.
    """
    settings, timed = run.settings, bool(run.settings["texts"])
    folder = places.teachers / settings["teacher"]
    texts = shuffled_texts(places, settings["texts"])
    chosen, stages = EncoderSettings(**settings["encoder"], device=places.device), _Stages(report)
    with tempfile.TemporaryDirectory() as work, patch.dict(os.environ, {"ADE_CACHE": work} if timed else {}):
        out, began = Path(work) / "encoder", time.perf_counter()
        encoder = distill_encoder(
            teacher_of(folder, places.device), [], chosen, table=folder, texts=texts, out=out, progress=stages
        )
        seconds = time.perf_counter() - began
        nbytes = folder_sizes(out)["bytes"]
    scores = {
        "tasks": tasks(encoder.encode, places),
        "short": tasks(lambda some: encoder.encode(some, 128), places, ("stsb",)),
        "validation": encoder.model.config.about["dev"],
    }
    times = {"seconds": seconds, "stages": stages.seconds()} if timed else {}
    return {**scores, "bytes": nbytes, **times}, {"data": {"texts": len(texts)}}


def shuffled_texts(places: Places, count: int) -> list[str]:
    """So many of the general texts, or all with 0, in an order that is always the same."""
    texts = list(general_texts(places))
    random.Random(0).shuffle(texts)
    return texts[: count or None]


def run_static(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure another encoder of sentences."""
    encode, nbytes = ENCODERS[run.settings["encoder"]](places)
    return {"tasks": tasks(encode, places), "bytes": nbytes}, {}


def general_texts(places: Places) -> Iterator[str]:
    """Training texts and their sentences: news, an encyclopedia, questions, reviews, glosses; none of a test set."""
    sources = [load_dataset(places.data / name, "train").texts for name in ("ag_news", "dbpedia_14")]
    small = [load_dataset(places.data / name, "train").texts for name in ("sst2", "trec", "banking77")]
    found: dict[str, None] = {}

    def add(text: str) -> None:
        text = " ".join(text.split())
        if SHORTEST <= len(text) <= LONGEST:
            found.setdefault(text)

    for text in (text for texts in sources for text in texts):
        for part in (*text.split(". ", 1)[:1], text, *SENTENCE.split(text)):
            add(part)
    for text in (text for texts in (*small, load_dataset("wordnet", "train").texts) for text in texts):
        add(text)
    for line in (places.data / "wikitext-2" / "valid.txt").read_text("utf8").splitlines():
        for part in SENTENCE.split(line):
            add(part)
    for line in (places.data / "wic" / "train.data.txt").read_text("utf8").splitlines():
        for part in line.split("\t")[3:]:
            add(part)
    yield from found


def teacher_of(folder: Path, device: str, prefix: str = "") -> SentenceTeacher:
    """A sentence encoder by transformers alone: the mean of its last hidden states."""
    dtype = quickest_dtype(resolve_device(device))
    dim, encode = _transformer(folder, device, dtype)
    identity = ", ".join(filter(None, (folder.name, "mean", str(dtype), prefix)))
    return SentenceTeacher(folder.name, identity, dim, lambda texts: encode([prefix + text for text in texts]))


def _transformer(folder: Path, device: str, dtype: torch.dtype = torch.float32) -> tuple[int, Encode]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such model; point --teachers-dir at the folder that holds it")
    with quiet():
        model = AutoModel.from_pretrained(folder, dtype=dtype, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model.to(resolve_device(device)).eval()
    return model.config.hidden_size, _encode(model, tokenizer)


def _encode(model: Any, tokenizer: Any) -> Encode:
    """The mean of a model's last hidden states, as a function of texts."""
    size = GPU_BATCH if next(model.parameters()).device.type == "cuda" else BATCH

    def encode(texts: Sequence[str]) -> np.ndarray:
        return unit_means(model, tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS)["input_ids"], size)

    return encode


# -- tasks -----------------------------------------------------------------------------------------------------


def tasks(encode: Encode, places: Places, wanted: Sequence[str] = ("stsb", "nearest", "titles")) -> dict[str, Any]:
    """What vectors are worth, by task."""
    found: dict[str, Any] = {}
    if "stsb" in wanted:
        found["stsb"] = {part: stsb(encode, places.data / "stsb", part=part) for part in ("dev", "test")}
    if "nearest" in wanted:
        found["nearest"] = {data: nearest_label(encode, places, data) for data in ("banking77", "trec")}
    if "titles" in wanted:
        found["titles"] = titles(encode, places)
    return found


def nearest_label(encode: Encode, places: Places, data: str) -> float:
    """The share of test texts whose nearest training text has their label, in percent."""
    rows, test = (load_dataset(places.data / data, part) for part in ("train", "test"))
    test = test.relabelled(rows.names)
    known, asked = (unit(encode(list(each.texts))) for each in (rows, test))
    found = rows.labels[(asked @ known.T).argmax(1)]
    return 100 * float((found == test.labels).mean())


def titles(encode: Encode, places: Places) -> dict[str, float]:
    """How often the description of a title of AG News is the nearest, and among the ten nearest, in percent."""
    with open(places.data / "ag_news" / "test.csv", encoding="utf8", newline="") as file:
        rows = [row[1:3] for row in csv.reader(file)]
    asked, known = (unit(encode([row[side] for row in rows])) for side in (0, 1))
    rank = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), 1024):
        scores = asked[start : start + 1024] @ known.T
        own = scores[np.arange(len(scores)), np.arange(start, start + len(scores))]
        rank[start : start + 1024] = (scores > own[:, None]).sum(1)
    return {"1": 100 * float((rank < 1).mean()), "10": 100 * float((rank < 10).mean())}


# -- what one would use instead --------------------------------------------------------------------------------


def _minilm(places: Places) -> tuple[Encode, int]:
    folder = places.teachers / "minilm-l6"
    return _transformer(folder, places.device)[1], folder_sizes(folder)["bytes"]


def _model2vec(places: Places) -> tuple[Encode, int]:
    """model2vec's own distillation of the same teacher, with its defaults."""
    distil = import_module("model2vec.distill").distill_from_model
    folder = places.teachers / "minilm-l6"
    with quiet(), tempfile.TemporaryDirectory() as work:
        teacher = AutoModel.from_pretrained(folder, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = distil(teacher, tokenizer, pca_dims=256)
        model.save_pretrained(work)
        nbytes = folder_sizes(Path(work))["bytes"]
    return lambda texts: model.encode(list(texts)), nbytes


def mean_of(source: str | Path) -> tuple[Encode, int]:
    """The mean of the rows of an embedding table, without special tokens."""
    teacher = load_teacher(source)
    table = teacher.table.float().numpy()

    def encode(texts: Sequence[str]) -> np.ndarray:
        rows = [encoding.ids for encoding in teacher.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        return np.stack([table[ids[:MAX_TOKENS]].mean(0) if ids else np.zeros(table.shape[1]) for ids in rows])

    return encode, teacher.table.numel() * teacher.table.element_size() + len(teacher.tokenizer.to_str().encode())


def _wordllama(places: Places) -> tuple[Encode, int]:
    return mean_of(DEFAULT_TEACHER)


def _table(places: Places) -> tuple[Encode, int]:
    return mean_of(places.teachers / "minilm-l6")


ENCODERS: dict[str, Callable[[Places], tuple[Encode, int]]] = {
    "MiniLM-L6": _minilm,
    MODEL2VEC: _model2vec,
    "wordllama, 256": _wordllama,
    "mean of MiniLM-L6's table": _table,
}


# -- rates -----------------------------------------------------------------------------------------------------


def run_encoder_rates(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Texts a second, raw text to vector, and the milliseconds of one text: medians of all in turn."""
    with open(places.data / "stsb" / "stsb-en-test.csv", encoding="utf8", newline="") as file:
        pairs = list(csv.reader(file))
    texts = [pair[side] for side in (0, 1) for pair in pairs]
    many = (texts * -(-TIMED_TEXTS // len(texts)))[:TIMED_TEXTS]
    systems: dict[str, tuple[Encode, Sequence[str]]] = {}
    for name, chosen in run.settings["encoders"].items():
        systems[name] = (_quickly_made(places, chosen, report).encode, many)
    systems[MODEL2VEC] = (_model2vec(places)[0], many)
    systems["MiniLM-L6"] = (_minilm(places)[0], texts[:SLOW_TEXTS])
    systems["MiniLM-L6, int8"] = (_int8(places), texts[:SLOW_TEXTS])

    taken: dict[str, list[float]] = {name: [] for name in systems}
    single: dict[str, list[float]] = {name: [] for name in systems}
    for repeat in range(REPEATS + 1):  # the first is a warm-up
        for name, (encode, some) in systems.items():
            began = time.perf_counter()
            encode(some)
            spent = (time.perf_counter() - began) / len(some)
            ones = []
            for text in texts[:64]:
                began = time.perf_counter()
                encode([text])
                ones.append(time.perf_counter() - began)
            if repeat:
                taken[name].append(spent)
                single[name].append(statistics.median(ones))
        report("rates", repeat + 1, REPEATS + 1, {})
    figures = {
        name: {
            "texts_per_second": 1 / statistics.median(taken[name]),
            "ms": 1000 * statistics.median(single[name]),
            "texts": len(systems[name][1]),
        }
        for name in systems
    }
    return figures, {}


def _quickly_made(places: Places, chosen: Mapping[str, Any], report: Report) -> Encoder:
    """An encoder of these settings, hardly trained: rates do not depend on what it has learned."""
    folder = places.teachers / "minilm-l6"

    def arbitrary(texts: Sequence[str]) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(len(texts), 384))

    teacher, texts = SentenceTeacher("arbitrary", "arbitrary", 384, arbitrary), shuffled_texts(places, RATE_TEXTS)
    settings = EncoderSettings(**{**chosen, "steps": 2, "device": "cpu"})
    with tempfile.TemporaryDirectory() as work:
        distill_encoder(teacher, [], settings, table=folder, texts=texts, out=Path(work) / "encoder", progress=report)
        return Encoder.load(Path(work) / "encoder")


def _int8(places: Places) -> Encode:
    """MiniLM with its linear layers in 8 bits, by PyTorch's dynamic quantisation."""
    folder = places.teachers / "minilm-l6"
    with quiet():
        loaded = AutoModel.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model: Any = torch.ao.quantization.quantize_dynamic(loaded, {torch.nn.Linear}, dtype=torch.qint8)
    return _encode(model, tokenizer)
