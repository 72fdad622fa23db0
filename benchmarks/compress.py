"""`ade compress` on whole models: bytes, and what the outputs lose on tasks that the model is used for.

Encoders: translations found among others (Tatoeba, by language) and the rank correlation with people's judgements of
similarity (STS-B, by language). Decoders: perplexity (WikiText-2, and of Tatoeba's sentences by language). Each for the
model as it came and compressed.
"""

import json
import math
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ade.compression.compress import compress
from ade.compression.report import outputs_of, token_ids
from ade.compression.source import body_of, is_decoder, load_model, source_folder
from ade.data.loading import load_dataset
from ade.devices import resolve_device
from ade.errors import InputError
from ade.progress import Report
from ade.settings import CompressionSettings
from benchmarks.accuracy import Places
from benchmarks.records import Run
from benchmarks.vectors import Encode, stsb, unit_means

CHOSEN_ON = 200  # first pairs of each language: settings are chosen on them, the others are the test
BATCH, MAX_TOKENS, WINDOW = 64, 128, 512
PREFIX = {"multilingual-e5-small": "query: "}  # what a model was trained to read before a text
_SOURCES: dict[str, dict[str, Any]] = {}  # what models had before they were compressed, by what was asked for


def run_compress(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compress a model, then measure it before and after."""
    settings = run.settings
    source = places.teachers / settings["model"]
    if not source.is_dir():
        raise InputError(f"{source}: no such model; point --teachers at the folder that holds it")
    chosen = CompressionSettings(**settings["compression"], device=places.device)
    with tempfile.TemporaryDirectory() as work, source_folder(source) as folder:
        files, tuning = ([_text_file(places, name, Path(work)) for name in settings[use]] for use in ("corpus", "tune"))
        began = time.perf_counter()
        out, spoken = Path(work) / "model", settings.get("spoken", [])
        made = compress(folder, out, chosen, files, tuning, languages=spoken, report=report)
        seconds = time.perf_counter() - began
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before = source_measured(folder, places, settings, report)
        after = measured(out, places, settings, report)
    figures = {"table": made.table, "weights": made.weights, "folder": made.folder, "loss": made.loss}
    return {**figures, "before": before, "after": after, "compress_seconds": seconds, "peak_bytes": peak}, {}


def _text_file(places: Places, name: str, work: Path) -> Path:
    """A file of the data, or the training texts of a data set as a file of lines."""
    if not (places.data / name).is_dir():
        return places.data / name
    lines = [" ".join(text.split()) for text in load_dataset(places.data / name, "train").texts]
    file = work / f"{name}.txt"
    file.write_text("\n".join(lines) + "\n", "utf8")
    return file


def source_measured(folder: Path, places: Places, settings: Any, report: Report) -> dict[str, Any]:
    """The same of the model as it came, measured once for all sizes of a table."""
    chosen = [settings[name] for name in ("model", "languages", "similarity", "rows", "tokens")]
    asked = json.dumps([str(places.teachers), *chosen])
    if asked not in _SOURCES:
        _SOURCES[asked] = measured(folder, places, settings, report)
    return _SOURCES[asked]


def measured(folder: Path, places: Places, settings: Any, report: Report) -> dict[str, Any]:
    """Return the tasks of a model: by language for encoders, perplexity for decoders."""
    model, tokenizer = load_model(folder)
    torch.nn.Module.float(model).to(resolve_device(places.device))  # half precision is slow on a CPU
    if is_decoder(model):
        return perplexities(model, tokenizer, places, settings, report)
    return tasks(encoder_of(model, tokenizer, PREFIX.get(settings["model"], "")), places, settings)


def perplexities(model: Any, tokenizer: Any, places: Places, settings: Any, report: Report) -> dict[str, Any]:
    """Return a decoder's perplexity on WikiText-2's test text, and on sentences of Tatoeba by language."""
    text = (places.data / "wikitext-2" / "test.txt").read_text("utf8")
    found = {"perplexity": perplexity(model, tokenizer, text, settings["tokens"], report)}
    texts = {name: sentences(places.data / "tatoeba", name, settings["rows"])[0] for name in settings["languages"]}
    scores = outputs_of(model, tokenizer, texts, report)
    return {**found, "languages": {name: math.exp(-float(likely.mean())) for name, likely in scores.items()}}


def tasks(encode: Encode, places: Places, settings: Any) -> dict[str, Any]:
    """Return the tasks of an encoder, by language."""
    return {
        "tatoeba": tatoeba(encode, places.data / "tatoeba", settings["languages"], settings["rows"]),
        "stsb": similarity(encode, places.data / "stsb", settings["similarity"], settings["rows"]),
    }


def encoder_of(model: Any, tokenizer: Any, prefix: str = "") -> Encode:
    """Return the function that makes the mean hidden states of texts, of length 1: (n, d)."""
    return lambda texts: embedded(model, tokenizer, texts, prefix)


def embedded(model: Any, tokenizer: Any, texts: Sequence[str], prefix: str = "") -> np.ndarray:
    """Return the mean hidden states of texts, of length 1: (n, d)."""
    rows = [ids[:MAX_TOKENS] for ids in token_ids(tokenizer, [prefix + text for text in texts])]
    return unit_means(body_of(model), rows, BATCH)


def tatoeba(encode: Encode, folder: Path, languages: Sequence[str], rows: int = 0) -> dict[str, float]:
    """Return for each language the share of sentences whose translation is the nearest, both ways, in percent."""
    found = {}
    for language in languages:
        ours, theirs = (encode(texts) for texts in sentences(folder, language, rows))
        alike, right = ours @ theirs.T, np.arange(len(ours))
        hits = (alike.argmax(1) == right).mean() + (alike.argmax(0) == right).mean()
        found[language] = 50 * float(hits)
    return found


def sentences(folder: Path, language: str, rows: int) -> tuple[list[str], ...]:
    """Return sentences of Tatoeba and their translations, so many or all with 0; none that settings are chosen on."""
    pairs = [(folder / f"{language}-eng.{side}").read_text("utf8").splitlines() for side in (language, "eng")]
    return tuple(texts[CHOSEN_ON : CHOSEN_ON + rows if rows else None] for texts in pairs)


def similarity(encode: Encode, folder: Path, languages: Sequence[str], rows: int = 0) -> dict[str, float]:
    """Return for each language 100 times Spearman's correlation of cosines with the judgements of the test pairs."""
    return {language: 100 * stsb(encode, folder, language, rows=rows) for language in languages}


@torch.inference_mode()
def perplexity(model: Any, tokenizer: Any, text: str, tokens: int, report: Report) -> float:
    """Return the perplexity of the first tokens of a text, in windows that each begin with the start token."""
    device, start = next(model.parameters()).device, tokenizer.bos_token_id
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][: tokens or None]
    head = [] if start is None else [start]
    total, count = 0.0, 0
    for at in range(0, len(ids), WINDOW):
        window = torch.tensor([[*head, *ids[at : at + WINDOW]]], device=device)
        if window.shape[1] < 2:
            continue
        scores = model(input_ids=window).logits[0, :-1].float().log_softmax(1)
        total -= float(scores.gather(1, window[0, 1:, None]).sum())
        count += window.shape[1] - 1
        report("perplexity", min(at + WINDOW, len(ids)), len(ids), {})
    if not count:
        raise InputError("the text is too short to measure perplexity on")
    return math.exp(total / count)
