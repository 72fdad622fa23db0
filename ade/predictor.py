"""Text in, labels and probabilities out: what every way of running a model shares. Loads numpy and tokenizers alone."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ade.data.problems import LIKELY, MULTI, REGRESSION, SINGLE, Prediction
from ade.data.tokenize import CHUNK, WINDOWS, tokenize
from ade.errors import InputError


class Predictor(ABC):
    """A model with its tokenizer; a subclass says how token ids become class scores."""

    tokenizer: Tokenizer
    max_tokens: int

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The labels, in the order of the probabilities."""

    @abstractmethod
    def scores(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Class scores (n, C) of texts kept end to end: text i is `ids[offsets[i]:offsets[i + 1]]`."""

    @property
    def longest(self) -> int:
        """Tokens that are read of a text: in windows of `max_tokens` where there are more."""
        return WINDOWS * self.max_tokens

    @property
    @abstractmethod
    def problem(self) -> str:
        """What an answer is: one label (`SINGLE`), any number of them (`MULTI`) or a number (`REGRESSION`)."""

    def predict(self, texts: str | Sequence[str]) -> Any:
        """What a text is taken for, or each of many: the most probable label, the likely ones, or a number."""
        if isinstance(texts, str):
            return self.predict([texts])[0]
        scores, names = self.predict_scores(texts), self.names
        if self.problem == SINGLE:
            return [names[i] for i in scores.argmax(1)]
        if self.problem == MULTI:
            return [[names[i] for i in np.flatnonzero(row)] for row in self._likely(scores)]
        return scores[:, 0].tolist()

    def predict_proba(self, texts: str | Sequence[str]) -> np.ndarray:
        """Probabilities of the labels: (C,) for a text, (n, C) for many. Long texts are cut, empty ones allowed."""
        if isinstance(texts, str):
            return self.predict_proba([texts])[0]
        return self._probabilities(self.predict_scores(texts))

    def stream(self, texts: Iterable[str]) -> Iterator[Prediction]:
        """Label and probability of each text of a stream of any length, in order, in flat memory."""
        source, first = iter(texts), 0
        while chunk := list(islice(source, CHUNK)):
            yield from self.predictions(chunk, first)
            first += len(chunk)

    def predictions(self, texts: Sequence[str], first: int = 0) -> list[Prediction]:
        """Label and probability of each text; errors count the texts from `first`."""
        scores, names = self.predict_scores(texts, first), self.names
        if self.problem == REGRESSION:
            return [Prediction(value, None) for value in scores[:, 0].tolist()]
        chances = self._probabilities(scores)
        if self.problem == SINGLE:
            best = scores.argmax(1)
            sure = chances[np.arange(len(best)), best].tolist()
            return [Prediction(names[i], p) for i, p in zip(best, sure, strict=True)]
        likely = [np.flatnonzero(row) for row in self._likely(scores)]
        return [
            Prediction([names[i] for i in own], row[own].tolist()) for own, row in zip(likely, chances, strict=True)
        ]

    def _likely(self, scores: np.ndarray) -> np.ndarray:
        """Which of several labels are given: those of probability `LIKELY` or more."""
        return scores >= np.log(LIKELY / (1 - LIKELY))

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        if self.problem == REGRESSION:
            raise InputError("a model that predicts a number has no probabilities; use predict")
        if self.problem == MULTI:
            return (1 / (1 + np.exp(-np.clip(scores, -80, 80)))).astype(np.float32)
        scores = np.exp(scores - scores.max(1, keepdims=True, initial=-np.inf))
        return scores / scores.sum(1, keepdims=True)

    def predict_scores(self, texts: Sequence[str], first: int = 0) -> np.ndarray:
        """Scores of the labels before they become probabilities, or the number predicted: (n, C)."""
        if not hasattr(texts, "__len__"):
            raise InputError(f"give a text or a list of texts, not {texts!r:.40}")
        parts = [
            self.scores(*tokenize(self.tokenizer, texts[start : start + CHUNK], self.longest, first=first + start))
            for start in range(0, max(1, len(texts)), CHUNK)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
