"""What vectors of texts are worth: translations found, similarity as people judge it, nearest labels, titles."""

import csv
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from ade.trained_model import unit
from benchmarks.library import load_split
from benchmarks.records import Places

TATOEBA = ("ara", "cmn", "deu", "fin", "fra", "hin", "jpn", "rus", "spa", "swh", "tur", "vie")
STSB = ("de", "en", "es", "fr", "ru", "zh")
CHOSEN_ON = 200  # first pairs of each language of Tatoeba: settings are chosen on them, the others are the test
MAX_TOKENS, BATCH = 128, 64  # of a text; texts
PREFIX = {"multilingual-e5-small": "query: "}  # what a model was trained to read before a text
Encode = Callable[[Sequence[str]], np.ndarray]  # texts -> vectors (n, D)


@torch.inference_mode()
def encode_by(model: Any, tokenizer: Any, texts: Sequence[str], prefix: str = "") -> np.ndarray:
    """The mean of a transformer's last hidden states for each text, of length 1: (n, d)."""
    device = next(model.parameters()).device
    order = np.argsort([len(text) for text in texts], kind="stable")
    parts = []
    for start in range(0, len(order), BATCH):
        some = [prefix + texts[i] for i in order[start : start + BATCH]]
        batch = tokenizer(some, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt").to(device)
        mask = batch["attention_mask"][..., None]  # (B, L, 1)
        states = model(**batch).last_hidden_state.float()  # (B, L, d)
        parts.append(((states * mask).sum(1) / mask.sum(1)).cpu().numpy())
    vectors = np.empty((len(texts), parts[0].shape[1]), np.float32)
    vectors[order] = np.concatenate(parts)
    return unit(vectors)


def tatoeba(encode: Encode, places: Places, languages: Sequence[str] = TATOEBA, rows: int = 0) -> dict[str, float]:
    """For each language the share of sentences whose translation is the nearest, both ways, in percent."""
    shares = {}
    for language in languages:
        ours, theirs = (unit(encode(texts)) for texts in sentence_pairs(places, language, rows))
        similarity, right = ours @ theirs.T, np.arange(len(ours))
        hits = (similarity.argmax(1) == right).mean() + (similarity.argmax(0) == right).mean()
        shares[language] = 50 * float(hits)
    return shares


def sentence_pairs(places: Places, language: str, rows: int = 0) -> tuple[list[str], ...]:
    """Sentences of Tatoeba and their English translations: the first `rows`, or all with 0."""
    folder = places.data("tatoeba")
    pairs = [(folder / f"{language}-eng.{side}").read_text("utf8").splitlines() for side in (language, "eng")]
    return tuple(texts[CHOSEN_ON : CHOSEN_ON + rows if rows else None] for texts in pairs)


def stsb(encode: Encode, places: Places, language: str = "en", part: str = "test", rows: int = 0) -> float:
    """100 times Spearman's correlation of cosines with judgements (STS-B), of the first `rows` pairs or all."""
    pairs = stsb_pairs(places, language, part)[: rows or None]
    first, second = (unit(encode([pair[side] for pair in pairs])) for side in (0, 1))
    spearmanr = import_module("scipy.stats").spearmanr
    return 100 * float(spearmanr((first * second).sum(1), [float(pair[2]) for pair in pairs]).statistic)


def stsb_pairs(places: Places, language: str = "en", part: str = "test") -> list[list[str]]:
    """Two sentences and a judgement, each."""
    with open(places.data("stsb") / f"stsb-{language}-{part}.csv", encoding="utf8", newline="") as file:
        return list(csv.reader(file))


def nearest_label(encode: Encode, places: Places, data: str) -> float:
    """The share of test texts whose nearest training text has their label, in percent."""
    rows, test = (load_split(places, data, part) for part in ("train", "test"))
    known, asked = (unit(encode(list(each.texts))) for each in (rows, test))
    labels = rows.labels[(asked @ known.T).argmax(1)]
    return 100 * float((labels == test.relabelled(rows.names).labels).mean())
