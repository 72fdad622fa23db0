"""Does the context change a word for the better? SCWS (Spearman) and WiC (accuracy at a threshold tuned on train).

A model trained on WordNet's glosses reads each sentence; the word is its static self, its anchors as the context
weighs them, or what the pooler sees of it.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ade.classifier import Classifier
from ade.errors import InputError
from ade.inspector.reading import read
from ade.progress import Report
from ade.settings import Architecture
from ade.training.loop import fit_model
from benchmarks.accuracy import Places, codebook_for, load_rows, training_of
from benchmarks.records import Run

WINDOW = 20  # words either side of the word, in SCWS
WAYS = ("static", "anchors in context", "token vectors")
Occurrence = tuple[str, int, int]  # a text, and where the word stands in it


def run_context(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train on glosses, then read both sets."""
    settings = run.settings
    rows, _, about = load_rows(places, {"data": "wordnet", "rows": settings["rows"]})
    codebook = codebook_for(places, settings["teacher"], settings["distillation"], report)
    training = training_of(settings["training"], places.device)
    classifier = fit_model(codebook, rows, None, training, Architecture(**settings["architecture"]), report=report)
    classifier = Classifier(classifier.model.cpu(), classifier.tokenizer)
    pairs = list(scws(places.data / "wordsim" / "scws_ratings.txt"))
    ratings = np.array([rating for _, _, rating in pairs])
    alike = _alike(classifier, [(one, two) for one, two, _ in pairs], report)
    figures: dict[str, Any] = {way: {"scws": spearman(alike[way], ratings)} for way in WAYS}
    tuned, held = (list(wic(places.data / "wic", split)) for split in ("train", "dev"))
    similar = [_alike(classifier, [(one, two) for one, two, _ in part], report) for part in (tuned, held)]
    answers = [np.array([same for *_, same in part]) for part in (tuned, held)]
    for way in WAYS:
        figures[way]["wic"] = _threshold_accuracy(similar[0][way], answers[0], similar[1][way], answers[1])
    return figures, {"data": {**about, "scws_pairs": len(pairs), "wic_train": len(tuned), "wic_dev": len(held)}}


def scws(path: Path) -> Iterator[tuple[Occurrence, Occurrence, float]]:
    """Pairs of words in their sentences, and how alike people find them."""
    for fields in _lines(path):
        yield _marked(fields[5]), _marked(fields[6]), float(fields[7])


def wic(folder: Path, split: str) -> Iterator[tuple[Occurrence, Occurrence, bool]]:
    """One word in two sentences, and whether it means the same."""
    gold = [fields[0] == "T" for fields in _lines(folder / f"{split}.gold.txt")]
    for fields, same in zip(_lines(folder / f"{split}.data.txt"), gold, strict=True):
        first, second = (int(place) for place in fields[2].split("-"))
        yield _placed(fields[3], first), _placed(fields[4], second), same


def _lines(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; point --data-dir at the folder that holds wordsim and wic")
    return [line.split("\t") for line in path.read_text("utf8").splitlines() if line.strip()]


def _marked(text: str) -> Occurrence:
    """The word between <b> and </b>, with some words either side."""
    before, word, after = re.split(r"\s*</?b>\s*", text, maxsplit=2)
    kept = " ".join(before.split()[-WINDOW:])
    start = len(kept) + 1 if kept else 0
    return f"{kept} {word} {' '.join(after.split()[:WINDOW])}".strip(), start, start + len(word)


def _placed(text: str, place: int) -> Occurrence:
    words = text.split(" ")
    start = sum(len(word) + 1 for word in words[:place])
    return text, start, start + len(words[place])


def _alike(
    classifier: Classifier, pairs: Sequence[tuple[Occurrence, Occurrence]], report: Report
) -> dict[str, np.ndarray]:
    """Cosine of the two words of every pair, each way."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for done, (one, two) in enumerate(pairs):
        for way, first, second in zip(WAYS, _vectors(classifier, one), _vectors(classifier, two), strict=True):
            found[way].append(float(torch.cosine_similarity(first, second, dim=0)))
        if done % 100 == 0:
            report("read", done, len(pairs), {})
    return {way: np.array(values) for way, values in found.items()}


def _vectors(classifier: Classifier, occurrence: Occurrence) -> tuple[Tensor, Tensor, Tensor]:
    """The word's tokens averaged: composed by itself, composed in context, and as the pooler sees them."""
    text, start, end = occurrence
    reading = read(classifier, text)
    own = [i for i, (begin, stop) in enumerate(reading.spans) if begin < end and stop > start] or [0]
    anchors = classifier.model.ade.embedding.table().detach()
    static, contextual = (mixture[own].mean(0) @ anchors for mixture in (reading.static, reading.contextual))
    return static, contextual, reading.states[own].mean(0)


def spearman(one: np.ndarray, two: np.ndarray) -> float:
    """Rank correlation, ties sharing their mean rank."""
    return float(np.corrcoef(_ranks(one), _ranks(two))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _threshold_accuracy(alike: np.ndarray, same: np.ndarray, held: np.ndarray, held_same: np.ndarray) -> float:
    """Accuracy on the second set of the threshold best on the first."""
    candidates = np.append(np.unique(alike), np.inf)
    best = candidates[np.argmax([((alike >= at) == same).mean() for at in candidates])]
    return float(((held >= best) == held_same).mean())
