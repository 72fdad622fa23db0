"""The runs of encoders of sentences, as `tables.py` has the others."""

from dataclasses import asdict
from typing import Any

from ade.settings import EncoderSettings
from benchmarks.records import Run

REVISION = 1  # raise when the measurement or the training of encoders changes
SEEDS = (0, 1, 2)
STATIC = ("MiniLM-L6", "model2vec of MiniLM-L6, 256", "wordllama, 256", "mean of MiniLM-L6's table")
OURS: dict[str, dict[str, Any]] = {
    "ADE, one layer, 8 MB": {"size": "8MB"},
    "ADE, one layer, 2 MB": {"size": "2MB"},
    "ADE, two layers, 8 MB": {"size": "8MB", "layers": 2},
}


def sentence() -> dict[str, dict[str, list[Run]]]:
    """Encoders distilled from MiniLM-L6, and those one would use instead."""
    ours = {name: {"": [encoder_run(**chosen, seed=seed) for seed in SEEDS]} for name, chosen in OURS.items()}
    static = {
        name: {"": [Run("sentence", "static_encoder", {"revision": REVISION, "encoder": name})]} for name in STATIC
    }
    rates = {name: dict(encoder_run(**chosen).settings) for name, chosen in OURS.items()}
    timed = Run("sentence", "encoder_rates", {"revision": REVISION, "encoders": rates})
    return {**ours, **static, "rates": {"": [timed]}}


def encoder_run(**chosen: Any) -> Run:
    """One encoder, every setting spelled out."""
    encoder = {name: value for name, value in asdict(EncoderSettings(**chosen)).items() if name != "device"}
    return Run(
        "sentence", "sentence_encoder", {"revision": REVISION, "teacher": "minilm-l6", "texts": 0, "encoder": encoder}
    )
