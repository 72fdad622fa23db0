"""Explanation: what every word and every n-gram of a text adds to the score of every label.

After the attention layer the model is linear: the pooled vector is a weighted mean of the token vectors h_t with
pooling weights p_t, and the classifier is one matrix. So the scores (logits) are sums, exactly:

    scores = sum_t p_t W h_t + b + sum_f s_f / norm + b_lexicon        t: tokens, f: entries of the lexicon

A token's term is its contribution; those of a word's tokens are added up. h_t is a token in its context, so the term
of a token includes what it took from others by attention. Imports only numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ade.configuration import Config
from ade.data.problems import REGRESSION, Label
from ade.data.tokens import group_pieces, is_inside_word
from ade.decision import Answer, Prediction, decide, labels_as_given, probabilities_of
from ade.errors import InputError
from ade.folder import Saved
from ade.lexicon import Lexicon

DECIMALS = 7  # of numbers in JSON


class Tokens(NamedTuple):
    """The tokens of one text: ids, spellings, and start and end of each in the text."""

    ids: np.ndarray  # (L,)
    spellings: Sequence[str]
    spans: Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Word:
    """A word of a text and what it adds to the scores; a special token is a word of its own, with start = end."""

    text: str
    start: int
    end: int
    tokens: tuple[int, ...]  # positions of its tokens
    pooling_weight: float
    pooled: np.ndarray  # (C,): what its tokens add through attention pooling
    lexicon: np.ndarray  # (C,): its part of the n-grams it belongs to; 0 without a lexicon

    @property
    def total(self) -> np.ndarray:
        """What the word adds in all: (C,)."""
        return self.pooled + self.lexicon


@dataclass(frozen=True, eq=False)
class Ngram:
    """An entry of the lexicon in a text: a token, or two tokens next to each other. It counts once."""

    text: str
    spans: tuple[tuple[int, int], ...]  # start and end of every occurrence
    contributions: np.ndarray  # (C,)


@dataclass(frozen=True, eq=False)
class Explanation:
    """A prediction taken apart: the contribution of every word and n-gram of a text to the score of every label.

    What words add by pooling, the n-grams and both biases add up to the scores. So do the words' totals and the biases:
    there the contribution of an n-gram is divided among its words.
    """

    text: str
    config: Config
    words: tuple[Word, ...]
    ngrams: tuple[Ngram, ...]
    bias: np.ndarray  # (C,): of the classifier
    lexicon_bias: np.ndarray  # (C,)

    @cached_property
    def scores(self) -> np.ndarray:
        """The score (logit) of every label, or the predicted number: the sum of all contributions, (C,)."""
        parts = [word.pooled for word in self.words] + [ngram.contributions for ngram in self.ngrams]
        return np.sum([*parts, self.bias, self.lexicon_bias], axis=0)

    @property
    def names(self) -> tuple[Label, ...]:
        """The labels, in the order of all arrays of C numbers."""
        return labels_as_given(self.config)

    @property
    def prediction(self) -> Prediction:
        """Label and probability, as `Classifier.predict` returns them."""
        return decide(self.scores[None], self.config)[0]

    @property
    def label(self) -> Answer | None:
        """The predicted label; a list of labels for a multi-label model, a number for a regression."""
        return self.prediction.label

    @property
    def probabilities(self) -> dict[Label, float]:
        """The probability of each label; empty for a regression."""
        if self.config.problem == REGRESSION:
            return {}
        values = probabilities_of(self.scores[None], self.config.problem)[0].tolist()
        return dict(zip(self.names, values, strict=True))

    def index(self, label: Label | None = None) -> int:
        """Return the place of a label in all arrays of C numbers, by default that of the most probable one."""
        if label is None:
            return int(self.scores.argmax())
        if label not in self.names:
            raise InputError(f"no label '{label}'; the labels are {', '.join(map(str, self.names))[:200]}")
        return self.names.index(label)

    def totals(self, label: Label | None = None) -> list[float]:
        """Return what each word adds to the score of a label, by default of the most probable one."""
        i = self.index(label)
        return [float(word.total[i]) for word in self.words]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; lists of numbers have one per label, in the order of `labels`."""
        return {
            "text": self.text,
            "label": self.label,
            "labels": list(self.names),
            "probabilities": self.probabilities,
            "scores": _plain(self.scores),
            "bias": _plain(self.bias),
            "lexicon_bias": _plain(self.lexicon_bias),
            "words": [_plain(vars(word)) for word in self.words],
            "ngrams": [_plain(vars(ngram)) for ngram in self.ngrams],
        }


def _plain(value: Any) -> Any:
    """Return arrays, numbers and their tuples and dictionaries as JSON has them."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return round(value, DECIMALS)
    return value.round(DECIMALS).tolist() if isinstance(value, np.ndarray) else value


def explain_text(text: str, tokens: Tokens, weights: np.ndarray, scores: np.ndarray, saved: Saved) -> Explanation:
    """Put the contributions of a text's tokens and of its n-grams together.

    Pooling weights (T,) and scores (T, C) are those of the first tokens, which attention reads; what only the lexicon
    reads has no weight in the pooled vector.
    """
    config, lexicon = saved.config, saved.lexicon
    bias = saved.layers["head.bias"].astype(np.float64) * config.deviation + config.mean  # (C,)
    beyond = len(tokens.ids) - len(weights)
    weights = np.pad(weights.astype(np.float64), (0, beyond))  # (L,)
    pooled = weights[:, None] * (np.pad(scores.astype(np.float64), ((0, beyond), (0, 0))) - bias)  # (L, C)
    ngrams, parts = _ngrams(text, tokens, lexicon, config.outputs)

    words = []
    for pieces in group_pieces(text, tokens.spellings, tokens.spans):
        own = pieces.tokens
        name = text[pieces.start : pieces.end] or tokens.spellings[own[-1]]
        numbers = float(weights[own].sum()), pooled[own].sum(0), parts[own].sum(0)
        words.append(Word(name, pieces.start, pieces.end, tuple(own), *numbers))
    lexicon_bias = np.zeros(config.outputs) if lexicon is None else lexicon.bias.astype(np.float64)
    return Explanation(text, config, tuple(words), ngrams, bias, lexicon_bias)


def _ngrams(text: str, tokens: Tokens, lexicon: Lexicon | None, labels: int) -> tuple[tuple[Ngram, ...], np.ndarray]:
    """Return the n-grams of a text in the order of their first occurrence, and each token's part of them (L, C).

    The contribution of an n-gram is divided equally among its occurrences, and there among its tokens.
    """
    parts = np.zeros((len(tokens.ids), labels))
    entries = [] if lexicon is None else lexicon.contributions(tokens.ids)
    ngrams = []
    for length, places, contributions in sorted(entries, key=lambda entry: entry[1][0]):
        spans = [(tokens.spans[at][0], tokens.spans[at + length - 1][1]) for at in places]
        ngrams.append(Ngram(_name(text, tokens, places[0], length), tuple(spans), contributions))
        for at in places:
            parts[at : at + length] += contributions / (len(places) * length)
    return tuple(ngrams), parts


def _name(text: str, tokens: Tokens, at: int, length: int) -> str:
    """Return an n-gram as it stands in the text, with … where it is a part of a word.

    Where one of its tokens does not stand there, as a special one, by the tokens' spellings.
    """
    spans = tokens.spans[at : at + length]
    if all(start < end for start, end in spans) and (name := text[spans[0][0] : spans[-1][1]].strip()):
        start = spans[0][1] - len(text[slice(*spans[0])].lstrip())
        before = "…" if start > 0 and is_inside_word(text, start) else ""
        after = "…" if 0 < spans[-1][1] < len(text) and is_inside_word(text, spans[-1][1]) else ""
        return f"{before}{name}{after}"
    spellings = tokens.spellings[at : at + length]
    return " ".join(text[start:end].strip() or own for own, (start, end) in zip(spellings, spans, strict=True))
