"""Do contributions find the words that decide? What the predicted label loses in probability when a word is deleted.

The word is the one that contributes most to the label, the one with the largest pooling weight, or any one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ade.classifier import Classifier
from ade.explanation import Explanation, Word
from ade.predictor import Predictor
from ade.progress import Report, silent
from ade.settings import Architecture
from ade.training.loop import fit_model
from benchmarks.accuracy import Places, codebook_for, load_rows, seed_of, training_of
from benchmarks.records import Run

WAYS = ("contribution", "pooling weight", "at random")


def run_explain(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train on glosses, then delete words from test texts."""
    settings = run.settings
    rows, test, about = load_rows(places, settings)
    codebook = codebook_for(places, settings["teacher"], settings["distillation"], report)
    training = training_of(settings["training"], places.device)
    classifier = fit_model(codebook, rows, None, training, Architecture(**settings["architecture"]), report=report)
    classifier = Classifier(classifier.model.cpu(), classifier.tokenizer)

    draw = np.random.default_rng(seed_of(settings))
    texts = [test.texts[i] for i in draw.permutation(len(test.texts))]
    return losses(classifier, texts, settings["texts"], draw, report), {"data": about}


def losses(
    predictor: Predictor, texts: Sequence[str], count: int, draw: np.random.Generator, report: Report = silent
) -> dict[str, Any]:
    """Mean loss of the predicted label's probability, for each way to choose the word.

    Over the first `count` texts of several words.
    """
    shortened: dict[str, list[str]] = {way: [] for way in WAYS}
    labels: list[int] = []
    before: list[float] = []
    for text in texts:
        if len(labels) == count:
            break
        explanation = predictor.explain(text)
        words = deletable(explanation)
        if len(words) < 2:
            continue
        label = int(explanation.scores.argmax())
        labels.append(label)
        report("explain", len(labels), count, {})
        before.append(explanation.probabilities[explanation.names[label]])
        found = (
            max(words, key=lambda word: word.total[label]),
            max(words, key=lambda word: word.pooling_weight),
            words[int(draw.integers(len(words)))],
        )
        for way, word in zip(WAYS, found, strict=True):
            shortened[way].append(without(text, word))

    rows = np.arange(len(labels))
    after = {way: predictor.predict_proba(shortened[way])[rows, labels] for way in WAYS}
    return {"texts": len(labels), **{way: float((np.array(before) - after[way]).mean()) for way in WAYS}}


def deletable(explanation: Explanation) -> list[Word]:
    """Return the words with a letter or a digit: not punctuation, not special tokens."""
    return [
        word for word in explanation.words if word.start < word.end and any(letter.isalnum() for letter in word.text)
    ]


def without(text: str, word: Word) -> str:
    """Return a text without one of its words."""
    return " ".join((text[: word.start] + " " + text[word.end :]).split())
