"""Text in, labels and probabilities out: what every way of running a model shares. Loads numpy and tokenizers alone."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ade.answers import LIKELY, MULTI, REGRESSION, SINGLE, Prediction
from ade.errors import InputError, first_line
from ade.folders import MARKER
from ade.progress import Report, silent

CHUNK = 4096  # texts tokenized, and held while streaming, at a time


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
        source = iter(texts)
        while chunk := list(islice(source, CHUNK)):
            yield from self.predictions(chunk)

    def predictions(self, texts: Sequence[str]) -> list[Prediction]:
        """Label and probability of each text."""
        scores, names = self.predict_scores(texts), self.names
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

    def predict_scores(self, texts: Sequence[str]) -> np.ndarray:
        """Scores of the labels before they become probabilities, or the number predicted: (n, C)."""
        parts = [
            self.scores(*tokenize(self.tokenizer, texts[start : start + CHUNK], self.max_tokens))
            for start in range(0, max(1, len(texts)), CHUNK)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def read_tokenizer(path: Path, known: int | None = None) -> Tokenizer:
    """A tokenizer.json; whatever is wrong with it is one clear error, as are more tokens than a model has `known`."""
    if not path.is_file():
        raise InputError(f"{path.parent}: has no {path.name}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more precise
        raise InputError(f"{path}: not a readable tokenizer.json ({first_line(error)})") from None
    if known is not None and tokenizer.get_vocab_size() > known:
        raise InputError(f"{path}: knows {tokenizer.get_vocab_size():,} tokens, the model {known:,}")
    return tokenizer


@contextmanager
def reading_model(folder: Path) -> Iterator[None]:
    """Around the reading of a model folder: whatever is wrong with it is one clear error."""
    if not (folder / MARKER).is_file():
        raise InputError(f"{folder}: not a model folder (no {MARKER}); make one with 'ade train'")
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever the libraries make of a foreign or broken folder
        raise InputError(f"{folder}: not a readable ADE model ({first_line(error)})") from None


def around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens a tokenizer puts before and after a text."""
    if tokenizer.num_special_tokens_to_add(False) == 0:
        return [], []
    for text in ("a", "1", ".", *sorted(tokenizer.get_vocab())):
        found = tokenizer.encode(text)
        own = [i for i, special in enumerate(found.special_tokens_mask) if not special]
        if own:
            return found.ids[: own[0]], found.ids[own[-1] + 1 :]
    raise InputError("the tokenizer finds no token in any text")


def tokenize(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int, report: Report = silent
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of texts, end to end, and where each starts; cut to `max_length`. A text without any token is id 0."""
    if max_length <= tokenizer.num_special_tokens_to_add(False):
        raise InputError(f"max_tokens is {max_length}, but the tokenizer puts as many special tokens around every text")
    if tokenizer.truncation is None or tokenizer.truncation["max_length"] != max_length:
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        tokenizer.enable_truncation(max_length)
    parts: list[np.ndarray] = []
    lengths: list[int] = []
    for start in range(0, len(texts), CHUNK):
        rows = [encoding.ids or [0] for encoding in tokenizer.encode_batch_fast(list(texts[start : start + CHUNK]))]
        count = [len(row) for row in rows]
        parts.append(np.fromiter(chain.from_iterable(rows), np.int32, sum(count)))
        lengths.extend(count)
        report("tokenize", min(start + CHUNK, len(texts)), len(texts), {})
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    return np.concatenate(parts or [np.empty(0, np.int32)]), offsets


def _alone() -> None:
    """A forked child has none of the tokenizer's threads: waiting for them would never end."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
