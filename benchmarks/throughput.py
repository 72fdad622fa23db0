"""Raw text to label on a CPU, everything side by side in one process: ADE in each mode, MiniLM-L6, the tokenizer alone.

One system after the other, a pause between: threads of one library that still spin would slow the next one down.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ade.classifier import Classifier, predict_logits
from ade.codebook import Codebook
from ade.data.batches import Encoded, encode, sorted_batches
from ade.data.tokenize import tokenize
from ade.model import AdeForSequenceClassification
from ade.packing.format import Packing
from ade.progress import Report, quiet
from ade.settings import Architecture
from benchmarks.accuracy import Places, codebook_for, load_rows
from benchmarks.records import FP32, INT8, LIMIT, Run
from benchmarks.tables import distillation_of

REPEATS, SINGLES = 7, 60
SLOW = 256  # texts for systems of a few hundred a second
ONE = 64  # tokens in the text that is classified alone
PAUSE = 0.5  # seconds
Predict = Callable[[Sequence[str]], object]


def run_throughput(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Median texts a second of many texts, and milliseconds of one; how well a model is trained does not matter."""
    rows, test, about = load_rows(places, {"data": run.settings["data"], "rows": 0})
    codebook = codebook_for(places, "deberta-v3-xsmall", distillation_of(), report)
    fast, slow = _ours(codebook, rows.names), _encoders(places, len(rows.names))
    slow["ADE anchors"] = fast.pop("ADE anchors")
    texts = list(test.texts)
    some = texts[:: max(1, len(texts) // SLOW)]
    work: dict[str, tuple[Predict, list[str]]] = {name: (predict, texts) for name, predict in fast.items()}
    work |= {name: (predict, some) for name, predict in slow.items()}
    one = min(texts, key=lambda text: abs(len(codebook.tokenizer.encode(text).ids) - ONE))
    figures = {name: {**_rates(taken), "texts": len(work[name][1])} for name, taken in _timed(work, report).items()}
    alone = {name: (predict, [one]) for name, (predict, _) in work.items()}
    for name, taken in _timed(alone, report, SINGLES).items():
        figures[name]["one_ms"] = 1000 * statistics.median(seconds for seconds, _ in taken)
    return figures, {"data": about}


def _timed(
    work: dict[str, tuple[Predict, list[str]]], report: Report, repeats: int = REPEATS
) -> dict[str, list[tuple[float, int]]]:
    """(seconds, texts) of every repeat of every system; the first one warms up and is left out."""
    taken: dict[str, list[tuple[float, int]]] = {name: [] for name in work}
    for done, (name, (predict, texts)) in enumerate(work.items()):
        report("speed", done, len(work), {})
        time.sleep(PAUSE)
        predict(texts)
        for _ in range(repeats):
            began = time.perf_counter()
            predict(texts)
            taken[name].append((time.perf_counter() - began, len(texts)))
    report("speed", len(work), len(work), {})
    return taken


def _rates(taken: list[tuple[float, int]]) -> dict[str, float]:
    rates = [count / seconds for seconds, count in taken]
    quarters = statistics.quantiles(rates, n=4)
    return {"texts_per_second": statistics.median(rates), "low": quarters[0], "high": quarters[2]}


def _ours(codebook: Codebook, names: Sequence[str]) -> dict[str, Predict]:
    systems: dict[str, Predict] = {LIMIT: codebook.tokenizer.encode_batch_fast}
    for mode in ("tokens", "gated", "anchors"):
        shape = Architecture(attend=mode)
        classifier = Classifier(AdeForSequenceClassification.from_codebook(codebook, names, shape), codebook.tokenizer)
        systems[f"ADE {mode}"] = classifier.predict
        if mode == "tokens":
            systems["ADE tokens, not projected"] = _plain(classifier)
        if mode == "gated":
            small = replace(codebook, packing=Packing())
            model = AdeForSequenceClassification.from_codebook(small, names, shape).packed()
            systems["ADE gated, packed"] = Classifier(model, codebook.tokenizer).predict
    return systems


def _plain(classifier: Classifier) -> Predict:
    """The model's own forward pass, as in training."""

    def predict(texts: Sequence[str]) -> np.ndarray:
        ids, offsets = tokenize(classifier.tokenizer, texts, classifier.max_tokens)
        return predict_logits(classifier.model, Encoded(torch.from_numpy(ids), offsets)).argmax(1)

    return predict


def _encoders(places: Places, labels: int) -> dict[str, Predict]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    source = places.teachers / "minilm-l6"
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(source).backend_tokenizer
        model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=labels).eval()
    tokenizer.no_padding()

    def over(forward: Callable[[torch.Tensor, torch.Tensor], np.ndarray]) -> Predict:
        def predict(texts: Sequence[str]) -> np.ndarray:
            encoded = encode(tokenizer, texts, 256)
            found = np.empty(len(encoded), dtype=np.int64)
            for batch in sorted_batches(encoded.lengths, 2048):
                ids, mask = encoded.padded(batch)
                found[batch] = forward(ids, mask.long()).argmax(1)
            return found

        return predict

    @torch.inference_mode()
    def eager(ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
        return model(input_ids=ids, attention_mask=mask).logits.numpy()

    return {
        FP32: over(eager),
        INT8: over(_onnx_int8(model)),
    }


def _onnx_int8(model: torch.nn.Module) -> Callable[[torch.Tensor, torch.Tensor], np.ndarray]:
    """The encoder exported and its weights quantised by ONNX Runtime's own tool."""
    import logging

    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.getLogger().setLevel(logging.ERROR)  # the quantiser would have us preprocess first
    axes = {0: "batch", 1: "length"}
    sample = (torch.ones(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.long))
    with tempfile.TemporaryDirectory() as folder:
        plain, small = Path(folder) / "plain.onnx", Path(folder) / "small.onnx"
        torch.onnx.export(
            _Logits(model), sample, str(plain), input_names=["ids", "mask"], output_names=["logits"],
            dynamic_axes={"ids": axes, "mask": axes, "logits": {0: "batch"}}, dynamo=False, verbose=False,
        )  # fmt: skip
        quantize_dynamic(plain, small, weight_type=QuantType.QInt8)
        session = onnxruntime.InferenceSession(str(small), providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})[0]


class _Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask).logits
