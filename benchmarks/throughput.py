"""Raw text to label on a CPU, everything side by side in one process: ADE in each mode, MiniLM-L6, the tokenizer alone.

ADE keeps the rows of tokens it has seen, so it is measured twice: warm (the same texts again, every row kept) and cold
(no row kept when the texts begin, as for texts never seen before). One system is measured after the other, with a pause
between: threads of one library that still spin would slow the next one down.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ade.classifier import Classifier, predict_logits
from ade.codebook import Codebook
from ade.data.batches import Encoded, encode, sorted_batches
from ade.data.tokenize import tokenize
from ade.model import AdeForSequenceClassification
from ade.packing.format import Packing
from ade.progress import Report, quiet
from ade.runtime.dispatch import CACHED_TYPES
from ade.runtime.projection import Projection
from ade.runtime.runtime import Runtime
from ade.runtime.tables import fold
from ade.settings import Architecture
from benchmarks.accuracy import Places, codebook_for, load_rows
from benchmarks.records import FP32, INT8, LIMIT, Run
from benchmarks.speed import forget
from benchmarks.tables import distillation_of

REPEATS, SINGLES = 7, 60
SLOW = 256  # texts for systems of a few hundred a second
ONE = 64  # tokens in the text that is classified alone
PAUSE = 0.5  # seconds
Predict = Callable[[Sequence[str]], object]


class System(NamedTuple):
    """What is measured: texts in, labels out; the tables whose cache can be emptied; whether a few texts must do."""

    predict: Predict
    projection: Projection | None = None
    slow: bool = False


def run_throughput(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Median texts a second of many texts, and milliseconds of one; how well a model is trained does not matter."""
    rows, test, about = load_rows(places, {"data": run.settings["data"], "rows": 0})
    codebook = codebook_for(places, "deberta-v3-xsmall", distillation_of(), report)
    systems = _ours(codebook, rows.names) | _encoders(places, len(rows.names))
    texts = list(test.texts)
    some = texts[:: max(1, len(texts) // SLOW)]
    one = min(texts, key=lambda text: abs(len(codebook.tokenizer.encode(text).ids) - ONE))

    figures: dict[str, dict[str, float]] = {}
    for done, (name, system) in enumerate(systems.items()):
        report("speed", done, len(systems), {})
        time.sleep(PAUSE)
        many = some if system.slow else texts
        figures[name] = {**_rates(seconds_of(system, many), len(many)), "texts": len(many)}
        figures[name]["one_ms"] = 1000 * statistics.median(seconds_of(system, [one], SINGLES))
        if system.projection is not None:
            figures[name]["cold_texts_per_second"] = len(many) / statistics.median(seconds_of(system, many, cold=True))
            figures[name]["cold_one_ms"] = 1000 * statistics.median(seconds_of(system, [one], SINGLES, cold=True))
    report("speed", len(systems), len(systems), {})
    return figures, {"data": about}


def seconds_of(system: System, texts: list[str], repeats: int = REPEATS, cold: bool = False) -> list[float]:
    """Seconds of every repeat; the first one warms up and is left out."""
    taken = []
    for _ in range(repeats + 1):
        if cold and system.projection is not None:
            forget(system.projection)
        began = time.perf_counter()
        system.predict(texts)
        taken.append(time.perf_counter() - began)
    return taken[1:]


def _rates(taken: list[float], count: int) -> dict[str, float]:
    rates = [count / seconds for seconds in taken]
    quarters = statistics.quantiles(rates, n=4)
    return {"texts_per_second": statistics.median(rates), "low": quarters[0], "high": quarters[2]}


def _ours(codebook: Codebook, names: Sequence[str]) -> dict[str, System]:
    systems = {LIMIT: System(codebook.tokenizer.encode_batch_fast)}
    for mode in ("tokens", "gated", "anchors"):
        model = AdeForSequenceClassification.from_codebook(codebook, names, Architecture(attend=mode))
        systems[f"ADE {mode}"] = _projected(model, codebook, names)
        if mode == "tokens":
            systems["ADE tokens, not projected"] = System(_plain(Classifier(model, codebook.tokenizer)))
        if mode == "gated":
            small = replace(codebook, packing=Packing())
            packed = AdeForSequenceClassification.from_codebook(small, names, Architecture(attend=mode)).packed()
            systems["ADE gated, packed"] = _projected(packed, codebook, names)
    return systems


def _projected(model: AdeForSequenceClassification, codebook: Codebook, names: Sequence[str]) -> System:
    """What `Classifier` and `Runtime` run on a CPU; anchors keep no rows of tokens, so they are never cold."""
    folded = Projection(fold(model.config.to_dict(), model.arrays()), CACHED_TYPES)
    predict = Runtime(folded, codebook.tokenizer, tuple(names)).predict
    slow = model.config.attend == "anchors"
    return System(predict, None if slow else folded, slow)


def _plain(classifier: Classifier) -> Predict:
    """The model's own forward pass, as in training."""

    def predict(texts: Sequence[str]) -> np.ndarray:
        ids, offsets = tokenize(classifier.tokenizer, texts, classifier.max_tokens)
        return predict_logits(classifier.model, Encoded(torch.from_numpy(ids), offsets)).argmax(1)

    return predict


def _encoders(places: Places, labels: int) -> dict[str, System]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    source = places.teachers / "minilm-l6"
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False).backend_tokenizer
        model = AutoModelForSequenceClassification.from_pretrained(
            source, num_labels=labels, trust_remote_code=False
        ).eval()
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

    return {FP32: System(over(eager), slow=True), INT8: System(over(_onnx_int8(model)), slow=True)}


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
