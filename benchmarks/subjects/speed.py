"""How long things take, side by side in one process: batches, texts, distillation, training.

Where nothing else is said a model has learned nothing: that does not change its speed. A run on a GPU has
`"device": "cuda"` in its settings and is another run than that on a CPU.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ade
from benchmarks import library
from benchmarks.library import Ragged, Report
from benchmarks.records import Places, Run
from benchmarks.subjects.accuracy import TEACHER, peer_run
from benchmarks.subjects.fine_tuned import FineTuned
from benchmarks.subjects.peers import TITLES
from benchmarks.tables import Figure, Table, digits, listing

BATCH, LENGTH, LARGE = 32, 128, 4096  # texts of a batch, tokens of a text, texts of a batch that fills a GPU
VOCABULARY, DIM = 30_000, 768
LIMIT, WHOLE = "tokenizer alone", "MiniLM-L6 fp32, PyTorch"
SLOW, ONE, PAUSE = 256, 64, 0.5  # texts for slow systems; tokens of the single text; seconds between systems
DISTILLED = {"vocabulary": 128_100, "dim": 768, "anchors": 700}
DEVICES = ("cpu", "cuda")
REPEATS, FEW_STEPS = 3, 300  # of timed runs; of a model whose lexicon is timed
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "DeBERTa-v3-base": ("deberta-v2", {"vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "relative_attention": True, "position_buckets": 256,
        "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "position_biased_input": False, "max_position_embeddings": 512, "type_vocab_size": 0}),
    "BERT-base": ("bert", {}),
    "MiniLM-L6": ("bert", {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536}),
}  # fmt: skip
Outcome = dict[str, Any]

# -- tables --------------------------------------------------------------------------------------------------------


def of_batch(device: str) -> Table:
    figures = [
        Figure("parameters", "parameters", lambda value: f"{value / 1e6:.1f} M"),
        Figure("eager float32", "eager_fp32.ms", digits(3), better=-1),
        Figure("compiled bfloat16", "compiled_bf16.ms", digits(3), better=-1),
        Figure("by tables", "projected.ms", digits(3), better=-1),
        Figure("by tables, cold", "projected_cold.ms", digits(3), better=-1),
        Figure(f"by tables, {LARGE:,} texts", "large.ms", digits(3)),
    ]
    rows = {"": [Run("latency", {"device": device})]}
    return listing("model", rows, figures, parts=lambda record: record["figures"]["models"])


def latency_cpu() -> Table:
    """Milliseconds of 32 texts of 128 tokens at width 768, random weights, on a CPU."""
    return of_batch("cpu")


def latency_gpu() -> Table:
    """The same on a GPU; by tables: Triton, in bfloat16."""
    return of_batch("cuda")


def costs() -> Table:
    """From a table (128,100 x 768) to a codebook (K = 700, 8 pairs); from the rows of AG News to a model."""
    rows = {f"distillation, {device}": [Run("distillation", {"device": device})] for device in DEVICES}
    for name, on in (("training without lexicon", False), ("training", True)):
        rows |= {f"{name}, {device}": [Run("training", {"device": device, "lexicon": on})] for device in DEVICES}
    return listing("", rows, [Figure("seconds", "seconds", digits(1))])


def throughput() -> Table:
    """AG News's test texts, raw text to label in one process; cold: by a model that was just loaded."""
    figures = [
        Figure("texts/s, warm", "texts_per_second", digits(0)),
        Figure("cold", "cold_texts_per_second", digits(0)),
        Figure("one text, ms, warm", "one_ms", digits(2)),
        Figure("cold", "cold_one_ms", digits(2)),
    ]
    return listing("system", {"": [Run("throughput")]}, figures, parts=lambda record: record["figures"])


def throughput_of_peers() -> Table:
    """The same texts by the peers of `accuracy`, each in a process of its own."""
    rows = {TITLES[peer]: [peer_run(peer, "ag_news")] for peer in ("tfidf", "nbsvm", "fasttext", "model2vec")}
    return listing("peer", rows, [Figure("texts/s", "texts_per_second", digits(0))])


TABLES = (latency_cpu, latency_gpu, costs, throughput, throughput_of_peers)

# -- runs ----------------------------------------------------------------------------------------------------------


def timed(work: Callable[[], object], device: str, repeats: int = 15) -> dict[str, float]:
    """Median and quartiles in milliseconds; each repeat runs long enough for the clock."""

    def seconds(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            work()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    seconds(3)
    inner = max(1, int(0.02 / max(1e-6, seconds(1))))
    taken = [1000 * seconds(inner) / inner for _ in range(repeats)]
    low, middle, high = statistics.quantiles(taken, n=4)
    return {"ms": middle, "low": low, "high": high}


def run_latency(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """One batch through each model: eager float32, compiled bfloat16 on a GPU, and by tables."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    device, models = places.device, {}
    with tempfile.TemporaryDirectory() as work:
        for mode in ("tokens", "anchors"):
            book = library.random_codebook(VOCABULARY, 500, 8, DIM)
            library.save_untrained(book, "abcd", Path(work) / mode, attend=mode)
        names = [*ENCODERS, "ADE tokens", "ADE anchors"]
        for done, name in enumerate(names):
            report("latency", done, len(names), {})
            torch.manual_seed(0)
            if name in ENCODERS:
                kind, shape = ENCODERS[name]
                config = AutoConfig.for_model(kind, **shape, num_labels=4)
                model, by_tables = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False), {}
            else:
                folder = Path(work) / name.removeprefix("ADE ")
                model, by_tables = library.forward_model(folder), table_times(folder, device)
            count = sum(parameter.numel() for parameter in model.parameters())
            models[name] = {"parameters": count, **by_tables, **forward_times(model.eval().to(device), device)}
    return {"models": models}


def random_batch(texts: int, length: int = 0) -> Ragged:
    """Token ids of texts, all of the same length."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (texts, length or LENGTH), np.int32)
    return Ragged.of(list(ids))


def table_times(folder: Path, device: str) -> Outcome:
    """A batch by tables, as a user's model predicts: warm, on a CPU also cold; on a GPU also a batch that fills it."""
    batch, model = random_batch(BATCH), ade.load(folder, device)
    times = {"projected": timed(partial(model.backend.scores, batch), device)}
    if device == "cuda":
        times["large"] = timed(partial(model.backend.scores, random_batch(LARGE)), device)
    else:
        cold = []
        for _ in range(REPEATS):
            fresh = ade.load(folder, device)
            fresh.backend.scores(random_batch(1, 1))  # threads are started, the cache holds one row
            began = time.perf_counter()
            fresh.backend.scores(batch)
            cold.append(1000 * (time.perf_counter() - began))
        times["projected_cold"] = {"ms": statistics.median(cold)}
    return times


@torch.inference_mode()
def forward_times(model: nn.Module, device: str) -> Outcome:
    """The same batch by the model's forward pass."""
    ids = torch.from_numpy(random_batch(BATCH).ids).long().view(BATCH, LENGTH).to(device)
    mask, repeats = torch.ones_like(ids), 15 if device == "cuda" else 3
    times = {"eager_fp32": timed(lambda: model(input_ids=ids, attention_mask=mask), device, repeats)}
    if device == "cuda":
        compiled = torch.compile(model.to(torch.bfloat16), mode="reduce-overhead")
        times["compiled_bf16"] = timed(lambda: compiled(input_ids=ids, attention_mask=mask), device, repeats)
    return times


def run_throughput(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Texts a second of many texts, and milliseconds of one, of each system in turn with a pause between them."""
    rows, dev, test = library.load_rows(places, {"data": "ag_news"})
    book = library.codebook_of(places, {"teacher": TEACHER}, report)
    tokenizer = ade.load_teacher(places.model(TEACHER)).tokenizer
    texts = list(test.texts)
    one = min(texts, key=lambda text: abs(len(tokenizer.encode(text).ids) - ONE))
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        systems: dict[str, tuple[Callable[[], Any], bool]] = {LIMIT: (lambda: tokenizer.encode_batch_fast, False)}
        for mode in ("tokens", "anchors"):
            library.save_untrained(book, rows.names, Path(work) / mode, attend=mode)
            systems[f"ADE {mode}"] = (partial(_predictor, Path(work) / mode), mode == "anchors")
        chosen = {"teacher": TEACHER, "steps": FEW_STEPS}
        library.fit(places, chosen, rows, dev, Path(work) / "lexicon", report)
        systems["ADE tokens, with a lexicon"] = (partial(_predictor, Path(work) / "lexicon"), False)
        whole = places.model("minilm-l6")
        systems |= {WHOLE: (partial(_whole, whole), True)}
        for name, (make, slow) in systems.items():
            some = texts[:: max(1, len(texts) // SLOW)] if slow else texts
            figures[name] = rates_of(make, some, one, cold=name.startswith("ADE tokens"))
    return figures


def _predictor(folder: Path) -> Callable[[list[str]], Any]:
    model = ade.load(folder)
    assert isinstance(model, ade.Classifier)
    return model.predict


def rates_of(make: Callable[[], Callable[[list[str]], Any]], texts: list[str], one: str, cold: bool) -> Outcome:
    """Medians of a system: texts a second, milliseconds of one text; with `cold` also of one that was just made."""

    def seconds(predict: Callable[[list[str]], Any], some: list[str]) -> float:
        began = time.perf_counter()
        predict(some)
        return time.perf_counter() - began

    time.sleep(PAUSE)  # threads of the last system may still spin
    predict = make()
    predict(texts[:8])
    warm = [seconds(predict, texts) for _ in range(8)][1:]
    single = [seconds(predict, [one]) for _ in range(60)]
    rates = {"texts_per_second": len(texts) / statistics.median(warm), "one_ms": 1000 * statistics.median(single)}
    if cold:
        fresh = [seconds(make(), texts) for _ in range(REPEATS)]
        fresh_one = [seconds(make(), [one]) for _ in range(7)]
        rates["cold_texts_per_second"] = len(texts) / statistics.median(fresh)
        rates["cold_one_ms"] = 1000 * statistics.median(fresh_one)
    return {**rates, "texts": len(texts)}


def _whole(folder: Path) -> Callable[[list[str]], Any]:
    """A whole encoder in float32."""
    encoder = FineTuned(folder, "abcd", "cpu")
    encoder.model.eval()
    return encoder.predict


def run_distillation(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Seconds to distil a table of the paper's shape; its values cost nothing."""
    began = time.perf_counter()
    library.distil_random(**{**DISTILLED, **settings.get("shape", {})}, device=places.device, report=report)
    return {"seconds": time.perf_counter() - began}


def run_training(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Median seconds from rows to a model, tokenizing and validation included, after a short run to warm up."""
    rows, dev, _ = library.load_rows(places, {"data": "ag_news"})
    chosen = {"teacher": TEACHER, **{name: value for name, value in settings.items() if name != "device"}}
    library.fit(places, {**chosen, "steps": 20}, rows, dev, report=report)
    taken = []
    for _ in range(REPEATS if places.device == "cuda" else 1):
        began = time.perf_counter()
        library.fit(places, chosen, rows, dev, report=report)
        taken.append(time.perf_counter() - began)
    return {"seconds": statistics.median(taken), "each": taken}


KINDS = {
    "latency": run_latency,
    "throughput": run_throughput,
    "distillation": run_distillation,
    "training": run_training,
}
