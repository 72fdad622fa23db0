"""What the lexicon costs, with against without it, side by side in one process.

`run_fit`: the time of a fit. `run_rates`: on a CPU raw text to label, cold and warm as `throughput.py` defines them; on
a GPU the projected path's time of a batch. Rates need no well-trained model, so theirs is trained for a few steps; the
model without the lexicon is the same one, its lexicon left out.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ade.classifier import Classifier
from ade.data.tokenize import tokenize
from ade.devices import resolve_device
from ade.errors import InputError
from ade.lexicon import Lexicon
from ade.progress import Report
from ade.runtime.dispatch import CACHED_TYPES
from ade.runtime.gpu import GpuModel
from ade.runtime.projection import Projection
from ade.runtime.runtime import Runtime
from ade.runtime.tables import Tables, fold
from ade.settings import Architecture
from ade.training.loop import fit_model
from benchmarks.accuracy import Places, codebook_for, load_rows, training_of
from benchmarks.records import Run
from benchmarks.speed import LARGE, timed
from benchmarks.throughput import PAUSE, REPEATS, System, seconds_of

WITH, WITHOUT = "with", "without"
LENGTH = 128  # tokens of a text in a batch on a GPU
BATCHES = (32, LARGE)  # texts in a batch: as in `latency`


def run_fit(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Seconds of fits in turn, with and without the lexicon, their steps, and the ratio of the medians.

    A short fit warms up.
    """
    settings = run.settings
    rows, _, about = load_rows(places, settings)
    codebook = codebook_for(places, settings["teacher"], settings["distillation"], report)
    training, shape = training_of(settings["training"], places.device), Architecture(**settings["architecture"])
    fit_model(codebook, rows.take(np.arange(0, len(rows), 20)), None, replace(training, steps=50), shape)
    steps = 0

    def counted(what: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        nonlocal steps
        steps = done if what == "train" else steps
        report(what, done, total, metrics)

    figures: dict[str, Any] = {way: {"each": [], "steps": []} for way in (WITHOUT, WITH)}
    for _ in range(settings["fits"][places.device]):
        for way, found in figures.items():
            began = time.perf_counter()
            fit_model(codebook, rows, None, replace(training, lexicon=way == WITH), shape, report=counted)
            found["each"].append(time.perf_counter() - began)
            found["steps"].append(steps)

    for found in figures.values():
        found["seconds"] = statistics.median(found["each"])
    return {**figures, "ratio": figures[WITH]["seconds"] / figures[WITHOUT]["seconds"]}, {"data": about}


def run_rates(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Texts a second on a CPU, or milliseconds of a batch on a GPU, with and without the lexicon, and the ratios."""
    settings = run.settings
    rows, test, about = load_rows(places, settings)
    codebook = codebook_for(places, settings["teacher"], settings["distillation"], report)
    training, shape = training_of(settings["training"], places.device), Architecture(**settings["architecture"])
    classifier = fit_model(codebook, rows, None, training, shape, report=report)
    lexicon = classifier.ngram_scores()
    if lexicon is None:
        raise InputError(f"{settings['data']}: validation keeps no lexicon, so there is nothing to compare")

    stored = classifier.model.packed()
    tables = fold(stored.config.to_dict(), stored.arrays())
    if places.device == "cpu":
        measured = _rates(tables, lexicon, classifier, list(test.texts))
    else:
        ids = tokenize(classifier.tokenizer, list(test.texts), classifier.max_tokens)[0]
        measured = _batches(tables, lexicon, ids, resolve_device(places.device))
    return {"entries": len(lexicon), **measured}, {"data": about}


def _rates(tables: Tables, lexicon: Lexicon, classifier: Classifier, texts: list[str]) -> dict[str, Any]:
    """Medians of texts a second, warm and cold; the two systems take turns, so that a slow spell hits both."""
    systems = {}
    for way, added in ((WITHOUT, None), (WITH, lexicon)):
        folded = Projection(tables, CACHED_TYPES)
        runtime = Runtime(folded, classifier.tokenizer, classifier.names, lexicon=added)
        systems[way] = System(runtime.predict, folded)

    figures: dict[str, Any] = {way: {"texts": len(texts)} for way in systems}
    for name, cold in (("texts_per_second", False), ("cold_texts_per_second", True)):
        taken: dict[str, list[float]] = {way: [] for way in systems}
        for _ in range(REPEATS):
            for way, system in systems.items():
                time.sleep(PAUSE)
                taken[way] += seconds_of(system, texts, 1, cold)
        for way, seconds in taken.items():
            figures[way][name] = len(texts) / statistics.median(seconds)

    ratios = {
        name: figures[WITH][name] / figures[WITHOUT][name] for name in ("texts_per_second", "cold_texts_per_second")
    }
    return {**figures, "ratios": ratios}


def _batches(tables: Tables, lexicon: Lexicon, ids: np.ndarray, device: torch.device) -> dict[str, Any]:
    """Milliseconds of full batches of the test texts' tokens, by the kernels in bfloat16."""
    models = {
        WITHOUT: GpuModel(tables, device, torch.bfloat16),
        WITH: GpuModel(tables, device, torch.bfloat16, lexicon),
    }
    figures: dict[str, Any] = {way: {} for way in models}
    for batch in BATCHES:
        tokens = torch.from_numpy(np.resize(ids, (batch, LENGTH))).int().to(device)
        lengths = torch.full((batch,), LENGTH, dtype=torch.int32, device=device)
        for way, model in models.items():
            figures[way][str(batch)] = timed(_scoring(model, tokens, lengths), device)
    ratios = {size: figures[WITH][size]["ms"] / figures[WITHOUT][size]["ms"] for size in figures[WITH]}
    return {**figures, "length": LENGTH, "ratios": ratios}


def _scoring(model: GpuModel, tokens: Tensor, lengths: Tensor) -> Callable[[], object]:
    return torch.inference_mode()(partial(model.scores, tokens, lengths))
