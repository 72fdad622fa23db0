"""Scores become labels or tags here: the one rule, for predictions, explanations and the service."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ade.configuration import Config
from ade.data.problems import MULTI, REGRESSION, Label, restored
from ade.data.tokens import Ragged
from ade.errors import InputError

MULTI_LABEL_THRESHOLD = 0.5  # multi-label: labels of at least this probability are predicted
MULTI_LABEL_LOGIT = 0.0  # the score of this probability
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


def decide(
    scores: np.ndarray, config: Config, threshold: float | None = None, top_k: int | None = None
) -> list[Prediction]:
    """Return the prediction for each row of scores (n, C): the most probable label, all likely ones, or a number.

    With a `threshold` the label is None where the highest probability is below it; a multi-label model predicts the
    labels of at least this probability, instead of 0.5. With `top_k` predictions are lists of the k most probable
    labels, the most probable first, whatever their probability.
    """
    if config.problem == REGRESSION:
        return [Prediction(value, None) for value in scores[:, 0].tolist()]
    labels, probabilities = labels_as_given(config), probabilities_of(scores, config.problem)

    if top_k is not None:
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        chosen = list(order)
    elif config.problem == MULTI:
        likely = scores >= MULTI_LABEL_LOGIT if threshold is None else probabilities >= threshold
        chosen = [np.flatnonzero(row) for row in likely]
    else:
        best = scores.argmax(1)
        highest = probabilities[np.arange(len(best)), best].tolist()
        limit = -1.0 if threshold is None else threshold
        return [Prediction(labels[i] if p >= limit else None, p) for i, p in zip(best, highest, strict=True)]

    return [
        Prediction([labels[i] for i in columns], row[columns].tolist())
        for columns, row in zip(chosen, probabilities, strict=True)
    ]


def labels_as_given(config: Config) -> tuple[Label, ...]:
    """Return the labels in the type in which they were given for training, in the order of the scores."""
    if config.label_type == "str":
        return config.labels
    return tuple(restored(name, config.label_type) for name in config.labels)


def probabilities_of(scores: np.ndarray, problem: str | None) -> np.ndarray:
    """Return probabilities (n, C) of scores (n, C): a softmax, or for multi-label problems a sigmoid of each."""
    if problem == REGRESSION:
        raise InputError("a model that predicts a number has no probabilities; use predict")
    if problem == MULTI:
        return (1 / (1 + np.exp(-np.clip(scores, -80, 80)))).astype(np.float32)
    scores = np.exp(scores - scores.max(1, keepdims=True, initial=-np.inf))
    return scores / scores.sum(1, keepdims=True)


def tags_of_words(
    scores: np.ndarray, texts: Ragged, words: np.ndarray, sentences: Sequence[Sequence[str]], names: Sequence[str]
) -> list[np.ndarray]:
    """Return the number of the tag of each word of sentences, from the scores (T, C) of their tokens.

    `words` (T,) has the word that a token stands for, -1 for none. A word without a token has the tag `O`, or the first
    tag where there is no `O`.
    """
    from ade.data.tags import OUTSIDE  # for taggers alone

    best, outside = scores.argmax(1), list(names).index(OUTSIDE) if OUTSIDE in names else 0
    predicted = []
    for i, sentence in enumerate(sentences):
        tokens = slice(texts.offsets[i], texts.offsets[i + 1])
        word, tag = words[tokens], best[tokens]
        tags = np.full(len(sentence), outside)
        tags[word[word >= 0]] = tag[word >= 0]
        predicted.append(tags)
    return predicted
