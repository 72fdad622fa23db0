"""Raw text to label on a CPU: ADE in each mode, MiniLM-L6, and the tokenizer alone, on the same texts."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ade.codebook import Codebook
from ade.data import Dataset
from ade.progress import Report
from ade.settings import STRONG, Architecture, DistillationSettings
from ade.training import train
from benchmarks.accuracy import Places, codebook_for, load_rows
from benchmarks.records import Run

REPEATS = 5


def run_throughput(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Median texts a second; a model's speed does not depend on how well it is trained, so it hardly is."""
    rows, test, about = load_rows(places, {"data": run.settings["data"], "rows": 0})
    texts = list(test.texts)
    system = run.settings["system"]
    if system == "MiniLM-L6":
        predict, texts = _minilm(places, len(rows.names)), texts[:: len(texts) // 256]
    else:
        settings = {name: value for name, value in vars(DistillationSettings()).items() if name != "device"}
        predict = _ours(system, codebook_for(places, "deberta-v3-xsmall", settings, report), rows)
    predict(texts[:64])
    rates = []
    for done in range(REPEATS):
        report(system, done, REPEATS, {})
        began = time.perf_counter()
        predict(texts)
        rates.append(len(texts) / (time.perf_counter() - began))
    report(system, REPEATS, REPEATS, {})
    figures = {"texts_per_second": statistics.median(rates), "low": min(rates), "high": max(rates), "texts": len(texts)}
    return figures, {"data": about}


def _ours(system: str, codebook: Codebook, rows: Dataset) -> Callable[[Sequence[str]], object]:
    if system == "tokenizer alone":
        return codebook.tokenizer.encode_batch_fast
    mode = system.removeprefix("ADE ")
    few = rows.take(rows.labels.argsort(kind="stable")[:: len(rows) // 200])
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(STRONG, steps=2, device="cpu")
        shape = Architecture(attend=mode)  # type: ignore[arg-type]
        return train(codebook, few, None, settings, shape, Path(folder) / "model").predict


def _minilm(places: Places, labels: int) -> Callable[[Sequence[str]], object]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from ade.batching import encode, sorted_batches

    source = places.teachers / "minilm-l6"
    tokenizer = AutoTokenizer.from_pretrained(source).backend_tokenizer
    tokenizer.no_padding()
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=labels).eval()

    @torch.inference_mode()
    def predict(texts: Sequence[str]) -> list[int]:
        encoded = encode(tokenizer, texts, 256)
        found = [0] * len(texts)
        for batch in sorted_batches(encoded.lengths, 2048):
            ids, mask = encoded.padded(batch)
            for row, label in zip(
                batch, model(input_ids=ids, attention_mask=mask.long()).logits.argmax(1), strict=True
            ):
                found[row] = int(label)
        return found

    return predict
