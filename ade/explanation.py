"""Explanation: what every word and every n-gram of a text adds to the score of every label.

After the attention layer the model is linear: the pooled vector is a weighted mean of the token vectors h_t with
pooling weights p_t, and the classifier is one matrix. So the scores (logits) are sums, exactly:

    scores = sum_t p_t W h_t + b + sum_f s_f / norm + b_lexicon        t: tokens, f: entries of the lexicon

A token's term is its contribution; those of a word's tokens are added up. h_t is a token in its context, so the term
of a token includes what it took from others by attention. A softmax depends on differences of scores alone, so what
decides is the margin: the score of a label less that of another. Imports only numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any, NamedTuple

import numpy as np

from ade.configuration import Config
from ade.data.problems import REGRESSION, SINGLE, Label
from ade.data.tokens import group_pieces, is_inside_word
from ade.decision import Answer, Prediction, decide, labels_as_given, probabilities_of
from ade.errors import InputError
from ade.folder import Saved
from ade.lexicon import Lexicon

DECIMALS = 7  # of numbers in JSON
NAMED = 5  # words that the representation of an explanation names


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


class Margin(NamedTuple):
    """What puts the score of a label above that of another; they add up: value = sum of the words + rest."""

    label: Label
    against: Label | None  # None: the label's own score, as for a regression
    value: float
    words: tuple[tuple[str, float], ...]  # each with what it adds, the largest first
    rest: float  # special tokens and biases
    ngrams: tuple[tuple[str, float], ...]  # those without special tokens; a part of what their words add

    @property
    def name(self) -> str:
        """The margin in words."""
        return f"score of {self.label}" if self.against is None else f"{self.label} over {self.against}"


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

    def places(self, label: Label | None = None, against: Label | None = None) -> tuple[int, int | None]:
        """Return the places of a label and of what it is compared with, as `margin` chooses them."""
        i = self.index(label)
        if against is not None:
            return i, self.index(against)
        if self.config.problem != SINGLE:
            return i, None
        return i, int(np.argmax(np.where(np.arange(len(self.scores)) == i, -np.inf, self.scores)))

    def margin(self, label: Label | None = None, against: Label | None = None) -> Margin:
        """Return what words and n-grams add to the score of a label, by default the most probable one.

        Of one label a text it is compared with the runner-up, or with the label `against`; otherwise the score is the
        label's own.
        """
        i, j = self.places(label, against)

        def adds(values: np.ndarray) -> float:
            return float(values[i] if j is None else values[i] - values[j])

        def largest_first(parts: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
            return tuple(sorted(parts, key=lambda part: -abs(part[1])))

        words = [(word.text, adds(word.total)) for word in self.words if word.start < word.end]
        ngrams = [(each.text, adds(each.contributions)) for each in self.ngrams if each.text.strip("…") in self.text]
        value, against = adds(self.scores), None if j is None else self.names[j]
        rest = value - sum(each for _, each in words)
        return Margin(self.names[i], against, value, largest_first(words), rest, largest_first(ngrams))

    def __repr__(self) -> str:
        margin = self.margin()
        words = ", ".join(f"{word} {adds:+.2f}" for word, adds in margin.words[:NAMED])
        return f"Explanation({margin.name}: {margin.value:+.2f}; {words}{', …' * (len(margin.words) > NAMED)})"

    def _repr_html_(self) -> str:
        """The text as notebooks show it: what adds to the margin is green, what takes away is red."""
        (i, j), margin = self.places(), self.margin()
        largest = abs(margin.words[0][1]) if margin.words else 1.0
        parts, end = [f"<p>{escape(margin.name)}: {margin.value:+.2f}</p><p style='white-space:pre-wrap'>"], 0
        for word in self.words:
            adds = float(word.total[i] - (0.0 if j is None else word.total[j]))
            colour = "30,140,70" if adds > 0 else "200,50,40"
            style = f"background:rgba({colour},{0.75 * min(1.0, abs(adds) / (largest or 1.0)):.2f})"
            parts.append(escape(self.text[end : word.start]))
            parts.append(f"<span style='{style}' title='{adds:+.3f}'>{escape(self.text[word.start : word.end])}</span>")
            end = max(end, word.end)
        return "".join([*parts, escape(self.text[end:]), "</p>"])

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; lists of numbers have one per label, in the order of `labels`."""
        margin = self.margin()
        return {
            "text": self.text,
            "label": self.label,
            "labels": list(self.names),
            "probabilities": self.probabilities,
            "margin": _plain(margin._asdict()),
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
    start, end = spans[0][0], spans[-1][1]
    name = text[start:end].strip()
    if name and all(first < last for first, last in spans):
        while text[start].isspace():
            start += 1
        before = "…" if start > 0 and is_inside_word(text, start) else ""
        after = "…" if end < len(text) and is_inside_word(text, end) else ""
        return f"{before}{name}{after}"
    words = []
    for spelling, (first, last) in zip(tokens.spellings[at : at + length], spans, strict=True):
        words.append(text[first:last].strip() or spelling)
    return " ".join(words)
