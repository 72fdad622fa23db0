"""How prediction on a CPU grows, and where its time goes: texts, length, K and k; the stages of one pass."""

import resource
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from ade.data.tokenize import tokenize
from ade.errors import InputError
from ade.model import AdeForSequenceClassification
from ade.progress import Report
from ade.runtime.projection import Projection, groups_by_size
from ade.runtime.runtime import Runtime
from ade.settings import Architecture
from benchmarks.accuracy import Places, codebook_for, load_rows
from benchmarks.records import Run
from benchmarks.speed import projection_of, random_codebook

COUNTS = (1_000, 10_000, 100_000, 1_000_000)
LENGTHS = (8, 16, 32, 64, 128, 256, 512)
ANCHORS, PAIRS = (100, 500, 2_000, 8_000), (1, 2, 4, 8, 16, 32)
STAGED = 2_000  # texts timed stage by stage: all their types are cached
TOKENS = 100_000  # in a measurement over length, K or k


def run_growth(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Seconds and memory over the number of texts; microseconds a text over length, K and k."""
    runtime, texts, about = _ready(run, places, report)
    figures: dict[str, Any] = {"texts": []}
    for count in COUNTS:
        report("texts", count, COUNTS[-1], {})
        began = time.perf_counter()
        for _ in runtime.stream(islice(cycle(texts), count)):
            pass
        seconds = time.perf_counter() - began
        figures["texts"].append({"at": count, "seconds": seconds, "resident_bytes": _resident()})
    figures["hit_rate"] = runtime.projection.cache.hit_rate
    for name, values, make in (
        ("length", LENGTHS, lambda value: (500, 8, value)),
        ("anchors", ANCHORS, lambda value: (value, 8, 64)),
        ("pairs", PAIRS, lambda value: (500, value, 64)),
    ):
        figures[name] = []
        for value in values:
            report(name, value, values[-1], {})
            figures[name].append({"at": value, "microseconds": _each(run.settings["attend"], *make(value))})
    return figures, {"data": about}


def run_stages(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Microseconds a text on one core, stage by stage."""
    runtime, texts, about = _ready(run, places, report)
    return stages(runtime, texts[:STAGED]), {"data": about}


def _ready(run: Run, places: Places, report: Report) -> tuple[Runtime, list[str], dict[str, Any]]:
    rows, test, about = load_rows(places, {"data": run.settings["data"], "rows": 0})
    codebook = codebook_for(places, "deberta-v3-xsmall", run.settings["distillation"], report)
    projection = _folded(codebook, run.settings["attend"], len(rows.names))
    return Runtime(projection, codebook.tokenizer, rows.names), list(test.texts), about


def _resident() -> int:
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text("utf8").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _folded(codebook: Any, attend: str, labels: int) -> Projection:
    names = [str(i) for i in range(labels)]
    model = AdeForSequenceClassification.from_codebook(codebook, names, Architecture(attend=attend))  # type: ignore[arg-type]
    return projection_of(model)


def _each(attend: str, anchors: int, pairs: int, length: int) -> float:
    """Microseconds a text of this length, types all cached, two passes and the faster one."""
    vocabulary = 4_000
    projection = _folded(random_codebook(vocabulary, anchors, pairs, 384), attend, 4)
    runtime = Runtime(projection, random_codebook(4, 2, 1, 8).tokenizer, ("a", "b", "c", "d"))
    count = max(1, TOKENS // length)
    ids = np.random.default_rng(0).integers(0, vocabulary, count * length)
    offsets = np.arange(0, len(ids) + 1, length)
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        runtime.scores(ids, offsets)
        taken.append(time.perf_counter() - began)
    return 1e6 * min(taken[1:]) / count


def stages(runtime: Runtime, texts: list[str]) -> dict[str, float]:
    """Microseconds a text on one core, stage by stage, the types of the texts cached."""
    projection = runtime.projection
    ids, offsets = tokenize(runtime.tokenizer, texts, runtime.max_tokens)
    projection.logits(ids, offsets)
    taken: dict[str, float] = {}

    def lap(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = work()
        taken[name] = taken.get(name, 0.0) + 1e6 * (time.perf_counter() - began) / len(texts)
        return found

    lap("tokenizer (every core)", lambda: tokenize(runtime.tokenizer, texts, runtime.max_tokens))
    source = lap("find rows", lambda: projection.cache.slots(ids, projection.type_rows))
    if source is None:
        raise InputError("the texts have more token types than the cache holds")
    lengths = np.diff(offsets)
    for chosen in groups_by_size(lengths):
        elements, real = lap(
            "gather, add positions", partial(projection.elements, source, offsets[chosen], lengths[chosen])
        )
        lap("attention", partial(projection.attention_output, elements, real))
        lap("attention, gates, pooling", partial(projection.class_scores, elements, real))
    taken["gates, pooling"] = max(0.0, taken.pop("attention, gates, pooling") - taken["attention"])
    return taken
