"""Predictor: text in, labels and probabilities out; the base class of everything that runs a model.

Imports only numpy and tokenizers, so that a model can run without torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from ade.data.problems import MULTI, MULTI_LABEL_LOGIT, REGRESSION, SINGLE, Label, Prediction, probabilities_of
from ade.data.tokenize import CHUNK, WINDOWS, encode_chunks, tokenize
from ade.data.unknown_tokens import unknown_share
from ade.data.values import restored
from ade.errors import InputError
from ade.explanation import Explanation, TokenContributions, Tokens, explain_text
from ade.lexicon import Lexicon


class Predictor(ABC):
    """A model with its tokenizer; subclasses implement how token ids become class scores."""

    tokenizer: Tokenizer
    max_tokens: int

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Label names, in the order of the columns of scores and probabilities."""

    @property
    def label_type(self) -> str:
        """The type in which the labels were given for training: str, int, float or bool."""
        return "str"

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels as they were given for training, in the order of `names`."""
        kind = self.label_type
        return self.names if kind == "str" else tuple(restored(name, kind) for name in self.names)

    @abstractmethod
    def scores(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the class scores (n, C) of n texts; the tokens of text i are `ids[offsets[i]:offsets[i + 1]]`."""

    @abstractmethod
    def token_contributions(self, ids: np.ndarray) -> TokenContributions:
        """Return what each of at most `max_tokens` tokens adds to the class scores, without the lexicon."""

    @abstractmethod
    def ngram_scores(self) -> Lexicon | None:
        """Return the lexicon; None where the model has none."""

    @property
    def longest(self) -> int:
        """The number of tokens a text is truncated to; beyond `max_tokens` it is read in several windows."""
        return WINDOWS * self.max_tokens

    @property
    @abstractmethod
    def problem(self) -> str:
        """What is predicted: one label (`SINGLE`), any number of labels (`MULTI`) or a number (`REGRESSION`)."""

    @abstractmethod
    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the pooled vector of each text, the input of the classification layer: (n, d), or (d,) for one."""

    def predict(self, texts: str | Sequence[str]) -> Any:
        """Predict one text or a list of texts.

        A prediction is the most probable label, a list of labels for a multi-label model, a number for a regression.
        Labels are as they were given for training: the number 3 comes back as a number.
        """
        if isinstance(texts, str):
            return self.predict([texts])[0]
        scores, labels = self.predict_scores(texts), self.labels
        if self.problem == SINGLE:
            return [labels[i] for i in scores.argmax(1)]
        if self.problem == MULTI:
            return [[labels[i] for i in np.flatnonzero(row)] for row in scores >= MULTI_LABEL_LOGIT]
        return scores[:, 0].tolist()

    def predict_proba(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the probability of each label: (C,) for one text, (n, C) for a list of texts."""
        if isinstance(texts, str):
            return self.predict_proba([texts])[0]
        return self._probabilities(self.predict_scores(texts))

    def stream(self, texts: Iterable[str]) -> Iterator[Prediction]:
        """Yield the prediction of each text of an iterable, in order; only a chunk of texts is held in memory."""
        source, first = iter(texts), 0
        while chunk := list(islice(source, CHUNK)):
            yield from self.predictions(chunk, first)
            first += len(chunk)

    def predictions(self, texts: Sequence[str], first: int = 0) -> list[Prediction]:
        """Return label and probability of each text; error messages number the texts from `first`."""
        return self.predictions_of(self.predict_scores(texts, first))

    def predictions_of(self, scores: np.ndarray, threshold: float | None = None) -> list[Prediction]:
        """Return label and probability for scores (n, C) that `predict_scores` gave.

        With a `threshold`, the label is None where the highest probability is below it; a multi-label model predicts
        the labels of at least this probability, instead of 0.5.
        """
        labels = self.labels
        if self.problem == REGRESSION:
            return [Prediction(value, None) for value in scores[:, 0].tolist()]
        probabilities = self._probabilities(scores)

        if self.problem == SINGLE:
            best = scores.argmax(1)
            highest = probabilities[np.arange(len(best)), best].tolist()
            limit = -1.0 if threshold is None else threshold
            return [Prediction(labels[i] if p >= limit else None, p) for i, p in zip(best, highest, strict=True)]

        chosen_labels = scores >= MULTI_LABEL_LOGIT if threshold is None else probabilities >= threshold
        predicted = [np.flatnonzero(row) for row in chosen_labels]
        return [
            Prediction([labels[i] for i in chosen], row[chosen].tolist())
            for chosen, row in zip(predicted, probabilities, strict=True)
        ]

    def explain(self, texts: str | Sequence[str], first: int = 0) -> Any:
        """Take the prediction of one text, or of each of a list, apart: an `Explanation`, or a list of them.

        Error messages number the texts from `first`.
        """
        if isinstance(texts, str):
            return self.explain([texts], first)[0]
        chunks = encode_chunks(self.tokenizer, texts, self.longest, first=first, offsets=True)
        encodings = (encoding for chunk in chunks for encoding in chunk)
        return [self._explain(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def _explain(self, text: str, encoding: Encoding) -> Explanation:
        ids, spellings, spans = encoding.ids or [0], encoding.tokens or [""], encoding.offsets or [(0, 0)]
        tokens = Tokens(np.array(ids, np.int32), spellings, spans)
        windows = [
            self.token_contributions(tokens.ids[start : start + self.max_tokens])
            for start in range(0, len(ids), self.max_tokens)
        ]
        return explain_text(text, tokens, windows, self.ngram_scores(), self.labels, self.problem)

    def unknown_share(self, texts: str | Sequence[str]) -> float:
        """Return the fraction of the tokens of texts that are unknown or single bytes; above 0.2 it fits badly."""
        return unknown_share(self.tokenizer, [texts] if isinstance(texts, str) else texts)

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        if self.problem == REGRESSION:
            raise InputError("a model that predicts a number has no probabilities; use predict")
        return probabilities_of(scores, self.problem)

    def predict_scores(self, texts: Sequence[str], first: int = 0) -> np.ndarray:
        """Return the scores (logits) of each text, or the predicted numbers of a regression: (n, C)."""
        if not hasattr(texts, "__len__"):
            raise InputError(f"give a text or a list of texts, not {texts!r:.40}")
        parts = [
            self.scores(*tokenize(self.tokenizer, texts[start : start + CHUNK], self.longest, first=first + start))
            for start in range(0, max(1, len(texts)), CHUNK)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
