"""Encoders of sentences: what their vectors are worth and how fast they are made, ADE beside what one would use.

English ones learn from MiniLM-L6 on training rows and general text, those of many languages from multilingual-e5-small
on the texts of `corpora.py`; none on a task's own texts.
"""

import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import ade
from benchmarks import library
from benchmarks.corpora import DRAWN, TRANSLATIONS
from benchmarks.library import Report
from benchmarks.records import Places, Record, Run
from benchmarks.subjects.vectors import (
    STSB,
    TATOEBA,
    Encode,
    nearest_label,
    stsb,
    stsb_pairs,
    tatoeba,
    titles,
    whole_encoder,
)
from benchmarks.tables import Figure, Table, digits, listing, nbytes

SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"0-9])")
MIN_CHARS, MAX_CHARS = 8, 1000  # of a text that is learned from
MAX_TOKENS = 256  # whose rows are averaged
TEACHER, MANY_TEACHER = "minilm-l6", "multilingual-e5-small"
SOME = 100_000  # texts, of all that there are
STATIC = ("MiniLM-L6", "model2vec of MiniLM-L6, 256", "wordllama, 256", "mean of MiniLM-L6's table")
OURS: dict[str, dict[str, Any]] = {
    "ADE, one layer, 8 MB": {"size": "8MB", "epochs": 8},
    "ADE, one layer, 2 MB": {"size": "2MB", "epochs": 8},
    "ADE, two layers, 8 MB": {"size": "8MB", "layers": 2, "epochs": 16},
}
MANY: dict[str, dict[str, Any]] = {
    "ADE, one layer, 16 MB": {"size": "16MB", "epochs": 4},
    "ADE, one layer, 24 MB": {"size": "24MB", "epochs": 4},
    "ADE, two layers, 16 MB": {"size": "16MB", "layers": 2, "epochs": 4},
}
PAIRS = {"translations": True, "batch_size": 1024, "learning_rate": 0.006}
REPEATS, TIMED_TEXTS, SLOW_TEXTS, RATE_TEXTS = 5, 8192, 512, 20_000
Outcome = dict[str, Any]

POINT = digits(1)
SIZE = Figure("size", "bytes", nbytes, spread=False)

# -- tables --------------------------------------------------------------------------------------------------------


def sentence() -> Table:
    """English, in percent: STS-B (test), labels of the nearest training texts, texts found by their titles; mean ±
    standard deviation over seeds.
    """

    def encoder(seed: int, **chosen: Any) -> Run:
        return Run("sentence_encoder", {"teacher": TEACHER, "seed": seed, **chosen})

    rows = {}
    for name, chosen in OURS.items():
        count = 2 if "layers" in chosen else 3
        rows[f"{name}, all texts"] = [encoder(seed, texts=0, **chosen) for seed in range(count)]
        if "layers" not in chosen:
            rows[f"{name}, {SOME:,} texts"] = [encoder(0, texts=SOME, **{**chosen, "epochs": 4})]
    rows |= {name: [Run("static_encoder", {"encoder": name})] for name in STATIC}
    figures = [
        Figure("STS-B", "stsb.test", POINT, better=1),
        Figure("Banking77, nearest", "nearest.banking77", POINT, better=1),
        Figure("TREC, nearest", "nearest.trec", POINT, better=1),
        Figure("title finds text, at 1", "titles.1", POINT, better=1),
        Figure("at 10", "titles.10", POINT, better=1),
    ]
    return listing("encoder", rows, [*figures, SIZE])


def sentence_rates() -> Table:
    """Raw text to vector on a CPU, all encoders in turn in one process."""
    figures = [Figure("texts/s", "texts_per_second", digits(0)), Figure("one text", "ms", digits(2, " ms"))]
    return listing("encoder", {"": [Run("encoder_rates")]}, figures, parts=lambda record: record["figures"])


def multilingual() -> Table:
    """Many languages, in percent: translations that are found (Tatoeba), and STS-B (test)."""

    def encoder(**chosen: Any) -> list[Run]:
        return [Run("multilingual_encoder", {"teacher": MANY_TEACHER, "texts": 0, "seed": 0, **chosen})]

    def mean_over(task: str, languages: Sequence[str]) -> Callable[[Record], float]:
        return lambda figures: statistics.fmean(figures[task][language] for language in languages)

    rows = {name: encoder(**chosen) for name, chosen in MANY.items()}
    rows |= {f"{name}, with translation pairs": encoder(**chosen, **PAIRS) for name, chosen in MANY.items()}
    for name in (MANY_TEACHER, f"mean of {MANY_TEACHER}'s table"):
        rows[name] = [Run("static_encoder", {"encoder": name})]
    figures = [
        Figure("Tatoeba, mean", mean_over("tatoeba", TATOEBA), POINT, better=1),
        *(Figure(each, f"tatoeba.{each}", POINT) for each in TATOEBA),
        Figure("STS-B, mean", mean_over("stsb", STSB), POINT, better=1),
        *(Figure(each, f"stsb.{each}", POINT) for each in STSB),
    ]
    return listing("encoder", rows, [*figures, SIZE])


TABLES = (sentence, sentence_rates, multilingual)

# -- runs ----------------------------------------------------------------------------------------------------------


def run_english(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Distil an encoder on general text and measure it."""
    texts = shuffled_texts(places, settings["texts"])
    encoder, outcome = distilled(settings, places, texts, report)
    return {**english_tasks(encoder.encode, places), **outcome, "texts": len(texts)}


def run_many(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Distil an encoder on text of many languages, and on translation pairs where its settings say so; measure it."""
    texts = texts_of_languages(places, settings["texts"])
    pairs = [translation_pairs(places)] if settings.get("translations") else []
    encoder, outcome = distilled(settings, places, texts, report, pairs)
    return {**many_tasks(encoder.encode, places), **outcome, "texts": len(texts)}


def distilled(
    settings: Mapping[str, Any], places: Places, texts: Iterable[str], report: Report, pairs: Sequence[Path] = ()
) -> tuple[Any, Outcome]:
    """An encoder of a run's settings; its bytes and the seconds it took."""
    apart = ("teacher", "texts", "translations")
    chosen = {name: value for name, value in settings.items() if name not in apart}
    folder = places.model(settings["teacher"])
    teacher = whole_encoder(folder, places.device)
    with tempfile.TemporaryDirectory() as work, library.cache_in(places.work / "cache"):
        out, began = Path(work) / "encoder", time.perf_counter()
        encoder = ade.distill_encoder(teacher, [], table=folder, texts=texts, translations=pairs, out=out,
                                      progress=report, device=places.device, **chosen)  # fmt: skip
        seconds = time.perf_counter() - began
        return encoder, {"bytes": library.folder_sizes(out)["bytes"], "seconds": seconds}


def english_tasks(encode: Encode, places: Places) -> Outcome:
    """What vectors of English texts are worth, by task."""
    return {
        "stsb": {part: stsb(encode, places, part=part) for part in ("dev", "test")},
        "nearest": {data: nearest_label(encode, places, data) for data in ("banking77", "trec")},
        "titles": titles(encode, places),
    }


def many_tasks(encode: Encode, places: Places) -> Outcome:
    """What vectors of texts in many languages are worth."""
    return {"tatoeba": tatoeba(encode, places), "stsb": {each: stsb(encode, places, each) for each in STSB}}


def run_static(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Measure another encoder."""
    name = settings["encoder"]
    encode, size = other_encoder(name, places)
    tasks = many_tasks if MANY_TEACHER in name else english_tasks
    return {**tasks(encode, places), **({} if MANY_TEACHER in name else {"bytes": size})}


def other_encoder(name: str, places: Places) -> tuple[Encode, int]:
    """An encoder that one would use instead, as it comes, and its bytes."""
    folder = places.model(MANY_TEACHER if MANY_TEACHER in name else TEACHER)
    if name in ("MiniLM-L6", MANY_TEACHER):
        return whole_encoder(folder, places.device).encode, library.folder_sizes(folder)["bytes"]
    if not name.startswith("model2vec"):
        return mean_of("wordllama" if name.startswith("wordllama") else folder)

    distil = import_module("model2vec.distill").distill  # with its defaults
    with library.quiet(), tempfile.TemporaryDirectory() as work:
        model = distil(str(folder), pca_dims=256)
        model.save_pretrained(work)
        return lambda texts: model.encode(list(texts)), library.folder_sizes(Path(work))["bytes"]


def mean_of(source: str | Path) -> tuple[Encode, int]:
    """The mean of the rows of an embedding table, without special tokens."""
    teacher = ade.load_teacher(source)
    table = teacher.table.float().numpy()

    def encode(texts: Sequence[str]) -> np.ndarray:
        rows = [encoding.ids for encoding in teacher.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        return np.stack([table[ids[:MAX_TOKENS]].mean(0) if ids else np.zeros(table.shape[1]) for ids in rows])

    return encode, teacher.table.numel() * teacher.table.element_size() + len(teacher.tokenizer.to_str().encode())


def run_rates(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Texts a second, raw text to vector, and the milliseconds of one text: medians, all encoders in turn."""
    texts = [pair[side] for side in (0, 1) for pair in stsb_pairs(places)]
    many = (texts * -(-TIMED_TEXTS // len(texts)))[:TIMED_TEXTS]
    systems = {name: (hardly_trained(places, chosen, report), many) for name, chosen in OURS.items()}
    systems[STATIC[1]] = (other_encoder(STATIC[1], places)[0], many)
    systems["MiniLM-L6"] = (other_encoder("MiniLM-L6", places)[0], texts[:SLOW_TEXTS])
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    for _ in range(REPEATS + 1):
        for name, (encode, some) in systems.items():
            seconds = timed(encode, some) / len(some)
            taken[name].append((seconds, statistics.median(timed(encode, [text]) for text in texts[:64])))
    figures = {}
    for name, pairs in taken.items():
        many_seconds, one_seconds = (statistics.median(each) for each in zip(*pairs[1:], strict=True))  # one warms up
        figures[name] = {"texts_per_second": 1 / many_seconds, "ms": 1000 * one_seconds}
    return figures


def timed(encode: Encode, texts: Sequence[str]) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    encode(texts)
    return time.perf_counter() - began


def hardly_trained(places: Places, chosen: Mapping[str, Any], report: Report) -> Encode:
    """An encoder of these settings as a user loads it: rates do not depend on what it has learned."""
    generator = np.random.default_rng(0)
    teacher = ade.SentenceTeacher("random", "random", 384, lambda texts: generator.normal(size=(len(texts), 384)))
    settings = {**{name: value for name, value in chosen.items() if name != "epochs"}, "steps": 2, "device": "cpu"}
    with tempfile.TemporaryDirectory() as work, library.cache_in(places.work / "cache"):
        out, texts = Path(work) / "encoder", shuffled_texts(places, RATE_TEXTS)
        ade.distill_encoder(teacher, [], table=places.model(TEACHER), texts=texts, out=out, progress=report, **settings)
        return ade.Encoder.load(out).encode


# -- texts ---------------------------------------------------------------------------------------------------------


def shuffled_texts(places: Places, count: int) -> list[str]:
    """So many of the general texts, or all with 0, in an order that is always the same."""
    texts = list(dict.fromkeys(" ".join(text.split()) for text in general_texts(places)))
    texts = [text for text in texts if MIN_CHARS <= len(text) <= MAX_CHARS]
    random.Random(0).shuffle(texts)
    return texts[: count or None]


def general_texts(places: Places) -> Iterator[str]:
    """Training texts and their sentences: news, an encyclopedia, questions, reviews, glosses; none of a test set."""
    for data in ("ag_news", "dbpedia_14"):
        for text in library.load_split(places, data, "train").texts:
            yield from (*text.split(". ", 1)[:1], text, *SENTENCE_END.split(text))
    for data in ("sst2", "trec", "banking77", library.EMBEDDED):
        yield from library.load_split(places, data, "train").texts
    for line in (places.data("wikitext-2") / "valid.txt").read_text("utf8").splitlines():
        yield from SENTENCE_END.split(line)
    for line in (places.data("wic") / "train.data.txt").read_text("utf8").splitlines():
        yield from line.split("\t")[3:]


def texts_of_languages(places: Places, count: int) -> list[str]:
    """At most `count` texts of each language and as many drawn ones; all of them with 0."""
    folder = places.data("multilingual")
    files = sorted(folder.glob("*.txt"))
    written = [file for file in files if not file.name.endswith(DRAWN)]
    missing = [file for file in written if file.with_name(file.stem + DRAWN) not in files]
    if not written or missing:
        verb = "drawn" if written else "texts"
        raise ade.InputError(f"{folder}: texts are missing; python -m benchmarks corpora {verb} makes them")
    return [line for file in files for line in file.read_text("utf8").splitlines()[: count or None]]


def translation_pairs(places: Places) -> Path:
    """The file of texts and their translations."""
    file = places.data("multilingual") / TRANSLATIONS
    if not file.is_file():
        raise ade.InputError(f"{file}: missing; python -m benchmarks corpora translations makes it")
    return file


KINDS = {
    "sentence_encoder": run_english,
    "multilingual_encoder": run_many,
    "static_encoder": run_static,
    "encoder_rates": run_rates,
}
