"""The kinds of problems: single-label and multi-label classification, regression, and tagging of words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ade.errors import InputError

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
PROBLEMS = {"single-label": SINGLE, "multi-label": MULTI, "regression": REGRESSION}  # as people name them
# Class names of the models, as their configs state them.
CLASSIFIER, TAGGER, ENCODER = "AdeForSequenceClassification", "AdeForTokenClassification", "AdeForSentenceEmbedding"
KINDS = {
    CLASSIFIER: "a classifier of texts",
    TAGGER: "a tagger, which labels words",
    ENCODER: "an encoder, which turns texts into vectors",
}
INSTEAD = {  # what to do with a model of the first kind where the second is needed
    (ENCODER, CLASSIFIER): ": 'ade encode' writes its vectors, 'ade train --from' trains a classifier on it",
    (CLASSIFIER, ENCODER): ", as 'ade distill-encoder' makes it",
    (TAGGER, ENCODER): ", as 'ade distill-encoder' makes it",
}
MULTI_LABEL_THRESHOLD = 0.5  # multi-label: labels of at least this probability are predicted
MULTI_LABEL_LOGIT = math.log(MULTI_LABEL_THRESHOLD / (1 - MULTI_LABEL_THRESHOLD))  # the same threshold on scores
Label = str | int | float | bool  # as it was given
Answer = Label | list[Label]  # a label, several labels, or a number


class Prediction(NamedTuple):
    """A predicted label with its probability; several with a list each; or a number, without a probability.

    The label is None where the probability is below a threshold that was asked for.
    """

    label: Answer | None
    probability: float | list[float] | None


class Tagged(NamedTuple):
    """The words of a sentence and the tag of each."""

    words: list[str]
    tags: list[str]


def check_kind(folder: object, found: str, wanted: str) -> None:
    """Raise `InputError` for a model folder of another kind; what is no kind of model is left to others."""
    if found in KINDS and found != wanted:
        needed, instead = KINDS[wanted].partition(",")[0], INSTEAD.get((found, wanted), "")
        raise InputError(f"{folder}: {KINDS[found]}; {needed} is needed here{instead}")


def scale_of(problem: str | None, scale: Sequence[float] | None) -> tuple[float, float]:
    """Mean and standard deviation to scale a regression model's outputs by; (0, 1) for other problems."""
    return (float(scale[0]), float(scale[1])) if scale and problem == REGRESSION else (0.0, 1.0)


def names_of(given: Mapping[Any, str] | None, count: int) -> tuple[str, ...]:
    """The labels of a config's `id2label`, in order; missing ones are LABEL_i, and keys may be strings, as in JSON."""
    known = {int(i): name for i, name in (given or {}).items()}
    return tuple(known.get(i, f"LABEL_{i}") for i in range(count))


def problem_of(stated: str | None, labels: int) -> str:
    """A config's `problem_type`; without one, as in transformers, regression for one output, else single-label."""
    return stated or (REGRESSION if labels == 1 else SINGLE)


def probabilities_of(scores: np.ndarray, problem: str) -> np.ndarray:
    """Probabilities (n, C) of class scores (n, C): a softmax, or for multi-label problems a sigmoid of each."""
    if problem == MULTI:
        return (1 / (1 + np.exp(-np.clip(scores, -80, 80)))).astype(np.float32)
    scores = np.exp(scores - scores.max(1, keepdims=True, initial=-np.inf))
    return scores / scores.sum(1, keepdims=True)
