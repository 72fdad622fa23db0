"""How long predictions take: a batch through each model, and raw texts to labels, all systems in turn in one process.

A model that is timed in batches has learned nothing: that does not change its speed. A run on a GPU has
`"device": "cuda"` in its settings and is another run than that on a CPU.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.benchmark import Timer

import ade
from ade.configuration import CODEBOOK, Config
from ade.data.tokens import Ragged
from ade.progress import Report
from benchmarks import library
from benchmarks.records import Places, Run
from benchmarks.subjects.accuracy import TEACHER
from benchmarks.subjects.peers import DEEP, TITLES, FineTuned, train
from benchmarks.tables import Figure, Table, digits, parts

BATCH, LENGTH, LARGE = 32, 128, 4096  # texts of a batch, tokens of a text, texts of a batch that fills a GPU
VOCABULARY, DIM = 30_000, 768
LIMIT, OURS = "tokenizer alone", ("ADE", "ADE tokens", "ADE anchors")
VECTORS = "ADE, vectors of the included encoder"
PEERS = ("tfidf", "nbsvm", "fasttext", "model2vec")
SLOW, ONE, PAUSE = 256, 64, 0.5  # texts for slow systems; tokens of the single text; seconds between systems
WARM, COLD, SINGLES = 7, 3, 60  # repeats
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
Predict = Callable[[list[str]], Any]


def of_batch(device: str) -> Table:
    figures = [
        Figure("parameters", "parameters", lambda value: f"{value / 1e6:.1f} M"),
        Figure("eager float32", "eager_fp32.ms", digits(3), better=-1),
        Figure("compiled bfloat16", "compiled_bf16.ms", digits(3), better=-1),
        Figure("by tables", "projected.ms", digits(3), better=-1),
        Figure(f"by tables, {LARGE:,} texts", "large.ms", digits(3)),
    ]
    names = (*ENCODERS, "ADE tokens", "ADE anchors")
    return parts("model", Run("latency", {"device": device}), {name: f"models.{name}" for name in names}, figures)


def latency_cpu() -> Table:
    """Milliseconds of 32 texts of 128 tokens at width 768, random weights, on a CPU."""
    return of_batch("cpu")


def latency_gpu() -> Table:
    """The same on a GPU; by tables: Triton, in bfloat16."""
    return of_batch("cuda")


def throughput() -> Table:
    """AG News's test texts, raw text to label in one process; cold: by a model that was just loaded."""
    figures = [
        Figure("texts/s, warm", "texts_per_second", digits(0)),
        Figure("texts/s, cold", "cold_texts_per_second", digits(0)),
        Figure("one text, warm", "one_ms", digits(2, " ms")),
        Figure("one text, cold", "cold_one_ms", digits(2, " ms")),
    ]
    names = (LIMIT, *OURS, VECTORS, *(TITLES[peer] for peer in (*PEERS, DEEP)))
    return parts("system", Run("throughput"), {name: name for name in names}, figures)


TABLES = (throughput, latency_cpu, latency_gpu)


def run_latency(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """One batch through each model: eager float32, compiled bfloat16 on a GPU, and by tables."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    models = {}
    for name, (kind, shape) in ENCODERS.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **shape, num_labels=4)
        encoder = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
        models[name] = forward_times(encoder, places.device)
        report("latency", len(models), len(ENCODERS) + 2, {})
    for mode in ("tokens", "anchors"):
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work) / mode
            library.save_untrained(random_codebook(), "abcd", folder, mode)
            model = ade.AdeForSequenceClassification.from_pretrained(folder, trust_remote_code=False)
            forward = forward_times(model, places.device)
            models[f"ADE {mode}"] = {**forward, **table_times(folder, places.device)}
        report("latency", len(models), len(ENCODERS) + 2, {})
    return {"models": models}


def random_codebook(anchors: int = 500, pairs: int = 8) -> ade.Saved:
    """A codebook with nothing learned in it."""
    draw = np.random.default_rng(0)
    indices = draw.random((VOCABULARY, anchors), np.float32).argpartition(pairs, 1)[:, :pairs].ravel()
    weights, table = draw.standard_normal(len(indices)), draw.standard_normal((anchors, DIM))
    counts = np.full(VOCABULARY, pairs)
    codebook = ade.Codebook(table.astype(np.float32), indices, weights.astype(np.float32), counts)
    return ade.Saved(Config(kind=CODEBOOK), library.word_tokenizer(VOCABULARY), codebook, {})


def random_batch(texts: int) -> Ragged:
    """Token ids of texts, all of the same length."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (texts, LENGTH), np.int32)
    return Ragged.of(list(ids))


def median_time(work: Callable[[], object]) -> dict[str, float]:
    """The median of many calls, in milliseconds."""
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return {"ms": 1000 * timer.blocked_autorange(min_run_time=1).median}


def table_times(folder: Path, device: str) -> Outcome:
    """A batch by tables, as a user's model predicts; on a GPU also a batch that fills it."""
    model = ade.load(folder, device)
    times = {"projected": median_time(partial(model.backend.scores, random_batch(BATCH)))}
    if device == "cuda":
        times["large"] = median_time(partial(model.backend.scores, random_batch(LARGE)))
    return times


@torch.inference_mode()
def forward_times(model: nn.Module, device: str) -> Outcome:
    """The same batch by the model's forward pass, and the number of its parameters."""
    model.eval().to(device)
    ids = torch.from_numpy(random_batch(BATCH).ids).long().view(BATCH, LENGTH).to(device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    outcome: Outcome = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    outcome["eager_fp32"] = median_time(lambda: model(**inputs))
    if device == "cuda":
        compiled = torch.compile(model.to(torch.bfloat16), mode="reduce-overhead")
        for _ in range(3):  # compiles
            compiled(**inputs)
        outcome["compiled_bf16"] = median_time(lambda: compiled(**inputs))
    return outcome


def run_throughput(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Texts a second of many texts, and milliseconds of one, of each system in turn with a pause between them."""
    rows, dev, test = library.load_rows(places, {"data": "ag_news"})
    texts, tokenizer = list(test.texts), ade.load("english").tokenizer
    one = min(texts, key=lambda text: abs(len(tokenizer.encode(text).ids) - ONE))
    figures: dict[str, Any] = {LIMIT: rates_of(lambda: tokenizer.encode_batch_fast, texts, one)}
    with tempfile.TemporaryDirectory() as work:
        library.fit(places, {"data": "ag_news", "seed": 0}, rows, dev, Path(work) / "ADE", report)
        book = ade.Saved.read(library.codebook_of(places, {"teacher": TEACHER}, report))
        for mode in ("tokens", "anchors"):
            library.save_untrained(book, rows.names, Path(work) / f"ADE {mode}", mode)
        for name in OURS:
            some = few_of(texts) if name == "ADE anchors" else texts
            figures[name] = rates_of(partial(predictor, Path(work) / name), some, one, is_ours=True)
    figures[VECTORS] = rates_of(lambda: ade.encode, texts, one)
    for peer in settings.get("peers", PEERS):
        predict = train(peer, rows, places, 0).predict
        figures[TITLES[peer]] = rates_of(lambda predict=predict: predict, texts, one)  # type: ignore[misc]
    deep = FineTuned(places.model(DEEP), rows.names, "cpu")
    figures[TITLES[DEEP]] = rates_of(lambda: deep.predict, few_of(texts), one)
    return figures


def few_of(texts: Sequence[str]) -> list[str]:
    """Texts for a slow system."""
    return list(texts[:: max(1, len(texts) // SLOW)])


def predictor(folder: Path) -> Predict:
    """A model that was just loaded."""
    model = ade.load(folder)
    assert isinstance(model, ade.Classifier)
    return model.predict


def rates_of(make: Callable[[], Predict], texts: list[str], one: str, is_ours: bool = False) -> Outcome:
    """Medians of a system: texts a second, milliseconds of one text; of ours also by a model that was just loaded."""
    time.sleep(PAUSE)  # threads of the last system may still spin
    predict = make()
    predict(texts)
    warm = statistics.median(seconds_of(predict, texts) for _ in range(WARM))
    single = statistics.median(seconds_of(predict, [one]) for _ in range(SINGLES))
    rates = {"texts_per_second": len(texts) / warm, "one_ms": 1000 * single, "texts": len(texts)}
    if is_ours:
        cold = statistics.median(seconds_of(make(), texts) for _ in range(COLD))
        rates["cold_texts_per_second"] = len(texts) / cold
        rates["cold_one_ms"] = 1000 * statistics.median(seconds_of(make(), [one]) for _ in range(COLD))
    return rates


def seconds_of(work: Callable[[Any], Any], given: Any) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    work(given)
    return time.perf_counter() - began


KINDS = {"latency": run_latency, "throughput": run_throughput}
