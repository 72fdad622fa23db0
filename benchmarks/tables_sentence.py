"""The runs of encoders of sentences, as `tables.py` has the others."""

from dataclasses import asdict
from typing import Any

from ade.settings import EncoderSettings
from benchmarks.records import Run

REVISION = 1  # raise when the measurement or the training of encoders changes
CODED_REVISION = 2  # the same for encoders whose table is coded
SPACE_REVISION = 3  # the same for those that are told translations
STATIC = ("MiniLM-L6", "model2vec of MiniLM-L6, 256", "wordllama, 256", "mean of MiniLM-L6's table")
ONE, SMALL, TWO = "ADE, one layer, 8 MB", "ADE, one layer, 2 MB", "ADE, two layers, 8 MB"
OURS: dict[str, dict[str, Any]] = {
    ONE: {"size": "8MB"},
    SMALL: {"size": "2MB"},
    TWO: {"size": "8MB", "layers": 2},
}
SEEDS = {ONE: (0, 1, 2), SMALL: (0, 1, 2), TWO: (0, 1)}
EPOCHS = {ONE: 8, SMALL: 8, TWO: 16.0}  # of all texts
SOME = 100_000  # texts, of all that there are
LANGUAGES = ("ara", "cmn", "deu", "fin", "fra", "hin", "jpn", "rus", "spa", "swh", "tur", "vie")  # of Tatoeba
SIMILARITY = ("de", "en", "es", "fr", "ru", "zh")  # of STS-B
MULTILINGUAL: dict[str, dict[str, Any]] = {
    "ADE, one layer, 16 MB": {"size": "16MB", "epochs": 4.0},
    "ADE, one layer, 24 MB": {"size": "24MB", "epochs": 4.0},
    "ADE, two layers, 16 MB": {"size": "16MB", "layers": 2, "epochs": 4.0},
}
LEARNED_WRITTEN = ("ADE, one layer, 16 MB", "ADE, two layers, 16 MB")
TRANSLATED, ALL_LINES = "translations, too", 1_000_000  # lines: more than there are
LARGE_BATCH = {"batch_size": 1024, "learning_rate": 0.006}  # so many texts keep a GPU busy only in large batches
TOLD, UNTOLD = "60,000 texts, translations told", "60,000 texts"  # the same texts; few, so that two cores suffice
FEW_LINES, FEW_TEXTS = 25_000, 500  # lines of two texts; texts of each kind and language
WRITTEN, WITH_WRITTEN = "written texts, too", 30_000  # by a decoder; texts of each kind and language then
ALL_TEXTS, SOME_TEXTS, RATES = "all texts", f"{SOME:,} texts", "rates"


def sentence() -> dict[str, dict[str, list[Run]]]:
    """Encoders distilled from MiniLM-L6, those one would use instead, and how fast they all are."""
    ours = {
        name: {ALL_TEXTS: [encoder_run(0, **chosen, epochs=EPOCHS[name], seed=seed) for seed in SEEDS[name]]}
        for name, chosen in OURS.items()
    }
    for name, epochs in ((ONE, 4.0), (SMALL, 4.0)):  # on two cores, in less than half an hour
        ours[name][SOME_TEXTS] = [encoder_run(SOME, **OURS[name], epochs=epochs)]
    static = {
        name: {"": [Run("sentence", "static_encoder", {"revision": REVISION, "encoder": name})]} for name in STATIC
    }
    timed = Run("sentence", "encoder_rates", {"revision": REVISION, "encoders": OURS})
    return {**ours, **static, RATES: {"": [timed]}}


def multilingual() -> dict[str, dict[str, list[Run]]]:
    """Encoders distilled from multilingual-e5-small."""
    found = {name: {"": [multilingual_run(**chosen)]} for name, chosen in MULTILINGUAL.items()}
    for name in LEARNED_WRITTEN:
        found[name][WRITTEN] = [multilingual_run(WITH_WRITTEN, {"written": True}, **MULTILINGUAL[name])]
    for name, chosen in MULTILINGUAL.items():
        lines = {"translations": ALL_LINES, "revision": SPACE_REVISION}
        found[name][TRANSLATED] = [multilingual_run(0, lines, **chosen, **LARGE_BATCH)]
    one = next(iter(MULTILINGUAL))
    for column, told in ((UNTOLD, False), (TOLD, True)):
        lines = {"translations": FEW_LINES, "told": told, "revision": SPACE_REVISION}
        found[one][column] = [multilingual_run(FEW_TEXTS, lines, **MULTILINGUAL[one])]
    return found


def multilingual_run(texts: int = 0, more: dict[str, Any] | None = None, **chosen: Any) -> Run:
    """One encoder of many languages, from so many texts of each kind, or all with 0; `more` says what else it reads."""
    encoder = {name: value for name, value in asdict(EncoderSettings(**chosen)).items() if name != "device"}
    settings = {"revision": CODED_REVISION, "teacher": "multilingual-e5-small", "texts": texts, "encoder": encoder}
    asked: dict[str, Any] = {"languages": list(LANGUAGES), "similarity": list(SIMILARITY), "rows": 0}
    asked |= more or {}
    return Run("multilingual", "multilingual_encoder", {**settings, **asked})


def encoder_run(texts: int, **chosen: Any) -> Run:
    """One encoder, every setting spelled out; of all texts there are with `texts` 0."""
    encoder = {name: value for name, value in asdict(EncoderSettings(**chosen)).items() if name != "device"}
    settings = {"revision": REVISION, "teacher": "minilm-l6", "texts": texts, "encoder": encoder}
    return Run("sentence", "sentence_encoder", settings)
