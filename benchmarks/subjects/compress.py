"""`ade compress`: what whole models lose on tasks they are used for, in many sizes beside other ways.

Encoders are judged by translations found (Tatoeba) and by similarity as people judge it (STS-B), decoders by perplexity
(WikiText-2, and Tatoeba's sentences by language). All is computed in float32.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

import ade
from ade.compression.checkpoint import load_model
from ade.compression.compress import special_token_rows
from ade.compression.frequencies import row_frequencies
from ade.devices import resolve_device
from ade.integrations.onnx import Q4, export
from ade.progress import Report
from ade.settings import parse_size
from benchmarks import library
from benchmarks.records import Places, Record, Run
from benchmarks.subjects.quantizers import WAYS
from benchmarks.subjects.vectors import (
    MAX_TOKENS,
    PREFIX,
    STSB,
    TATOEBA,
    Encode,
    encode_by,
    sentence_pairs,
    stsb,
    tatoeba,
)  # fmt: skip
from benchmarks.tables import Figure, Table, at, digits, listing, nbytes

E5, SMOLLM, GEMMA = "multilingual-e5-small", "smollm2-135m", "gemma3-270m"
LANGUAGES = {E5: TATOEBA, GEMMA: TATOEBA[:8]}  # of Tatoeba that a model is judged by
SPOKEN = ("en", "ar", "zh", "de", "fi", "fr", "hi", "ja", "ru")  # of `corpora.py`: English, and as in TATOEBA
COUNTED = ("ag_news", "dbpedia_14", "sst2")  # English text of other kinds than WikiText
SOURCE, OURS = "as it came", "ade compress"
WINDOW = 512  # tokens of a decoder at a time
Outcome = dict[str, Any]


def mean_of(task: str) -> Callable[[Record], float | None]:
    """The mean over languages of a task."""

    def value(figures: Record) -> float | None:
        by_language = at(figures, task)
        return fmean(by_language.values()) if by_language else None

    return value


def worst_change(figures: Record) -> float | None:
    """The largest loss of a language on Tatoeba, in points."""
    before, after = (at(figures, f"{when}.tatoeba") for when in ("before", "after"))
    return min(after[name] - before[name] for name in before) if before else None


def times_of_languages(figures: Record) -> float | None:
    """How many times the perplexity of languages became, in the geometric mean."""
    before, after = (at(figures, f"{when}.languages") for when in ("before", "after"))
    return geometric_mean(after[name] / before[name] for name in before) if before else None


POINT, HUNDREDTH = digits(1), digits(2)
BYTES = [Figure("size", "bytes", nbytes), Figure("bits a weight", "bits", HUNDREDTH)]
SIZES = {
    E5: ("12MB", "16MB", "24MB"),
    "minilm-l6": ("2.34MB",),
    "mpnet-base": ("4.68MB",),
    SMOLLM: ("5MB", "10MB"),
    GEMMA: ("31MB",),
}
TUNED = {(SMOLLM, "5MB"): 400, (SMOLLM, "10MB"): 400, (GEMMA, "31MB"): 800}  # steps


def compress() -> Table:
    """Models before and after their embedding table is compressed: Tatoeba and STS-B in percent, perplexity."""
    rows = {}
    for model, sizes in SIZES.items():
        for size in sizes:
            rows[f"{model}, {size}"] = [Run("compress", {"model": model, "size": size})]
    for (model, size), steps in TUNED.items():
        rows[f"{model}, {size}, tuned"] = [Run("compress", {"model": model, "size": size, "tune_steps": steps})]
    rows[f"{E5}, 11.7MB, as ONNX in 4 bits"] = [Run("compress_onnx", {"model": E5, "size": "11.7MB"})]
    figures = [
        Figure("table", "table.before", nbytes),
        Figure("compressed", "table.after", nbytes),
        Figure("weights in all", "weights.after", nbytes),
        Figure("Tatoeba", mean_of("before.tatoeba"), POINT),
        Figure("Tatoeba after", mean_of("after.tatoeba"), POINT),
        Figure("worst language", worst_change, POINT),
        Figure("STS-B", mean_of("before.stsb"), POINT),
        Figure("STS-B after", mean_of("after.stsb"), POINT),
        Figure("perplexity", "before.perplexity", HUNDREDTH),
        Figure("perplexity after", "after.perplexity", HUNDREDTH),
        Figure("languages, times", times_of_languages, HUNDREDTH),
    ]
    return listing("model, table", rows, figures)


def frontier_rows(model: str, sizes: Mapping[str, str]) -> dict[str, list[Run]]:
    """One table in many sizes, a row each; ways without sizes take the bytes that they take."""
    rows = {}
    for method, each in sizes.items():
        for size in each.split() or [""]:
            name = f"{method}, {size}" if size else method
            rows[name] = [Run("frontier", {"model": model, "size": size, "method": method})]
    return rows


def frontier() -> Table:
    """The table of multilingual-e5-small in many sizes: Tatoeba and English STS-B in percent."""
    sizes = {
        SOURCE: "",
        OURS: "4MB 6MB 8MB 12MB 16MB 24MB 32MB",
        **dict.fromkeys(("int2", "int3", "int4", "int8"), ""),
        "PQ (faiss)": "4.3MB 6.3MB 12.3MB 24.3MB",
        "RQ (faiss)": "6MB 12MB",
        "trimmed vocabulary": "12MB 24MB 48MB",
    }
    scores = [Figure("Tatoeba, mean", mean_of("tatoeba"), POINT), Figure("STS-B", "stsb.en", POINT)]
    return listing("way", frontier_rows(E5, sizes), [*BYTES, *scores])


def frontier_decoder() -> Table:
    """The table of Gemma-3-270M, head tied, in many sizes: perplexity (WikiText-2; eight languages of Tatoeba)."""
    integers = ("int2", "int3", "int4", "int2, offsets", "int3, offsets", "int4, offsets", "int8")
    sizes = {
        SOURCE: "",
        OURS: "16MB 31MB 47MB 64MB 94MB",
        **dict.fromkeys(integers, ""),
        "PQ (faiss)": "22MB 43MB",
        "RQ (faiss)": "24MB",
        "trimmed vocabulary": "31MB 94MB",
    }
    languages = Figure("of languages", lambda each: geometric_mean(each["languages"].values()), "{:,.4g}".format)
    figures = [*BYTES, Figure("perplexity", "perplexity", HUNDREDTH), languages]
    return listing("way", frontier_rows(GEMMA, sizes), figures)


TABLES = (compress, frontier, frontier_decoder)


def run_compress(settings: Mapping[str, Any], places: Places, report: Report, as_onnx: bool = False) -> Outcome:
    """Compress a model, tuned where its settings say so, and measure it before and after."""
    name, source = settings["model"], places.model(settings["model"])
    steps = settings.get("tune_steps")
    compression = ade.CompressionSettings(size=settings["size"], device=places.device)
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "model"
        texts: list[Path] = []
        if name == SMOLLM or steps:
            for data in COUNTED:
                lines = (" ".join(text.split()) + "\n" for text in library.load_split(places, data, "train").texts)
                texts.append(Path(work) / f"{data}.txt")
                texts[-1].write_text("".join(lines), "utf8")
        if steps:
            compression = replace(compression, tune_steps=steps)
            if name in LANGUAGES:
                texts += [places.data("multilingual") / f"{language}.txt" for language in SPOKEN]
        made = ade.compress(source, out, compression, texts, texts if steps else (), report=report)
        outcome = {"table": made.table, "weights": made.weights, "loss": made.loss}
        outcome["before"] = tasks_of(*load_model(source), name, places)
        if not as_onnx:
            return {**outcome, "after": tasks_of(*load_model(out), name, places)}

        export(out, Path(work) / "onnx")
        outcome["weights"] = {**made.weights, "after": (Path(work) / "onnx" / Q4).stat().st_size}
        return {**outcome, "after": encoder_tasks(onnx_encoder(Path(work) / "onnx", name), name, places)}


def onnx_encoder(folder: Path, name: str) -> Encode:
    """A compressed encoder in ONNX Runtime, its linear layers in 4 bits."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / Q4), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)

    def encode(texts: Sequence[str]) -> np.ndarray:
        vectors = []
        for text in texts:
            ids = np.array([tokenizer.encode(PREFIX.get(name, "") + text).ids])
            vectors.append(session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[-1][0])
        return np.array(vectors)

    return encode


def tasks_of(model: Any, tokenizer: Any, name: str, places: Places) -> Outcome:
    """Perplexities of a decoder, translations and similarity of an encoder, by language."""
    torch.nn.Module.float(model)  # half precision is slow on a CPU; a packed model refuses a `float()` of its own
    model.to(resolve_device(places.device))
    if name not in (SMOLLM, GEMMA):
        return encoder_tasks(partial(encode_by, model, tokenizer, prefix=PREFIX.get(name, "")), name, places)
    text = (places.data("wikitext-2") / "test.txt").read_text("utf8")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:20_000]
    windows = [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)]
    languages = {}
    for language in LANGUAGES.get(name, ()):
        texts = sentence_pairs(places, language, 100)[0]
        languages[language] = perplexity(model, tokenizer, tokenizer(texts, add_special_tokens=False)["input_ids"])
    return {"perplexity": perplexity(model, tokenizer, windows), "languages": languages}


def encoder_tasks(encode: Encode, name: str, places: Places) -> Outcome:
    """Translations found among others and the similarity that people judge, by language."""
    languages = LANGUAGES.get(name, ())
    similar = STSB if languages else ("en",)
    return {
        "tatoeba": tatoeba(encode, places, languages, rows=400),
        "stsb": {language: stsb(encode, places, language, rows=400 if languages else 0) for language in similar},
    }


@torch.inference_mode()
def perplexity(model: Any, tokenizer: Any, texts: Sequence[Sequence[int]]) -> float:
    """The perplexity of texts of token ids, each after the start token where there is one."""
    device, start = next(model.parameters()).device, tokenizer.bos_token_id
    head, total, count = [] if start is None else [start], 0.0, 0
    for ids in texts:
        window = torch.tensor([[*head, *ids[:WINDOW]]], device=device)
        if window.shape[1] > 1:
            scores = model(input_ids=window).logits[0, :-1].float().log_softmax(1)
            total -= float(scores.gather(1, window[0, 1:, None]).sum())
            count += window.shape[1] - 1
    if not count:
        raise ade.InputError("the text is too short to measure perplexity on")
    return math.exp(total / count)


def run_frontier(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """One way in one size: bytes of the table, and the tasks of the model with it."""
    name, source, size = settings["model"], places.model(settings["model"]), settings["size"]
    with tempfile.TemporaryDirectory() as work:
        if settings["method"] == OURS:
            made = ade.compress(source, Path(work) / "model", ade.CompressionSettings(size), report=report)
            model, tokenizer = load_model(Path(work) / "model")
            used = made.table["after"]
        else:
            model, tokenizer = load_model(source)
            used = replace_rows(model, tokenizer, settings["method"], parse_size(size) if size else 0, report)
    weights = model.config.vocab_size * model.config.hidden_size
    return {"bytes": used, "bits": 8 * used / weights, **tasks_of(model, tokenizer, name, places)}


@torch.no_grad()
def replace_rows(model: Any, tokenizer: Any, method: str, size: int, report: Report) -> int:
    """Put the rows that a way serves into a model, a tied head among it; returns their bytes."""
    weight = model.get_input_embeddings().weight
    if method == SOURCE:
        return 2 * weight.numel()  # it came in 16 bits
    table = weight.float().numpy().copy()
    frequency = row_frequencies(tokenizer.backend_tokenizer, len(weight), report=report).numpy()
    special = special_token_rows(tokenizer, weight, size or 2 * weight.numel())
    served = WAYS[method](table, size, frequency)
    if served is None:
        raise ade.InputError(f"{method}: no table is as small as {size} bytes")
    rows, used = served
    rows[special] = table[special]  # whole, as ours keeps them
    weight.data = torch.from_numpy(np.ascontiguousarray(rows, np.float32))
    return used + 2 * len(special) * table.shape[1]


KINDS = {"compress": run_compress, "compress_onnx": partial(run_compress, as_onnx=True), "frontier": run_frontier}
