"""Texts of a request's body and what they cost, and predictions as JSON.

Both are checked and written by hand: a general validator of lists of strings and a general JSON encoder of nested
dictionaries take longer than the prediction itself.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ade.data.problems import MULTI, MULTI_LABEL_THRESHOLD, REGRESSION, probabilities_of
from ade.errors import InputError
from ade.predictor import Predictor
from ade.runtime.runtime import Runtime

if TYPE_CHECKING:
    from ade.classifier import Tagger


STEP_TOKENS = 1024  # predicted before requests that are short and waiting have their turn
BYTES_PER_TOKEN = 4  # of UTF-8, on average, in any script
Item = tuple[str, int]  # a text, and how many of its labels are asked for; 0 for all


def estimated_tokens(text: str, longest: int) -> int:
    """Roughly the tokens of a text: counting them takes longer than many predictions.

    A text is truncated to `longest` tokens, so it never costs more.
    """
    size = len(text) if text.isascii() else len(text.encode("utf8", "replace"))
    return min(1 + size // BYTES_PER_TOKEN, longest)


def parse_object(body: bytes, allowed: Collection[str], required: str) -> dict[str, Any]:
    """The JSON object of a body, with the field `required` and none that is not `allowed`."""
    try:
        parsed = json.loads(body.decode("utf8"))
    except (ValueError, RecursionError):
        raise InputError("the body is not JSON in UTF-8") from None
    others = [name for name in allowed if name != required]
    choice = f", {' or '.join(json.dumps(name) for name in others)}" if others else ""
    if not isinstance(parsed, dict) or required not in parsed or not set(parsed) <= {*allowed}:
        raise InputError(f'the body must be an object with "{required}"{choice} and nothing else')
    return parsed


def parse_texts(body: bytes, max_texts: int, max_chars: int) -> list[str]:
    """The texts of a body `{"texts": "one"}` or `{"texts": ["several", ...]}`; an `InputError` for any other body."""
    return check_texts(parse_object(body, ["texts"], "texts")["texts"], "texts", max_texts, max_chars)


def parse_query(body: bytes, max_texts: int, max_chars: int) -> list[Item]:
    """The texts of a body as of `parse_texts` that may also have `top_k`, each with the number of labels asked for."""
    parsed = parse_object(body, ["texts", "top_k"], "texts")
    top_k = parsed.get("top_k", 0)
    if "top_k" in parsed and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1):
        raise InputError('"top_k" must be a whole number of at least 1')
    return [(text, top_k) for text in check_texts(parsed["texts"], "texts", max_texts, max_chars)]


def check_texts(given: Any, name: str, max_texts: int, max_chars: int) -> list[str]:
    """A text or a list of texts, as a list, within the limits; an `InputError` names the field it is given in."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise InputError(f'"{name}" must be a string, or a list of at least one')
    if len(texts) > max_texts:
        raise InputError(f"{len(texts):,} texts; at most {max_texts:,} are taken at once")

    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {i} is not a string")
        if len(text) > max_chars:
            raise InputError(f"text {i} has {len(text):,} characters; at most {max_chars:,} are taken")
        if not text.isascii():
            _check_unicode(text, i)
    return texts


def _check_unicode(text: str, i: int) -> None:
    try:
        text.encode("utf8")
    except UnicodeEncodeError:
        raise InputError(f"text {i} has half of a surrogate pair, which is no character") from None


class JsonPredictor:
    """Predicts a list of texts; each prediction is a JSON object with label, probability and probabilities."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor, self._problem = predictor, predictor.problem
        self._labels = [json.dumps(name) for name in predictor.names]
        probabilities = ",".join(f"{label.replace('%', '%%')}:%.6g" for label in self._labels)
        self._template = f'{{"label":%s,"probability":%s,"probabilities":{{{probabilities}}}}}'

    def __call__(self, items: Sequence[Item]) -> list[bytes]:
        """The prediction of each text, in order, with the probabilities of all labels or of the most probable ones."""
        texts = [text for text, _ in items]
        if self._problem == REGRESSION:
            return self._numbers(self._predictor.predict(texts))
        return self._predictions(self._predictor.predict_proba(texts), items)

    def steps(self, items: Sequence[Item]) -> Iterator[list[bytes] | None]:
        """The same in steps of some milliseconds: yields None after each but the last, then the predictions."""
        size = sum(len(text) for text, _ in items) // BYTES_PER_TOKEN
        if size <= STEP_TOKENS or not isinstance(self._predictor, Runtime):
            yield self(items)
            return
        for scores in self._predictor.score_steps([text for text, _ in items], STEP_TOKENS):
            if scores is None:
                yield None
            elif self._problem == REGRESSION:
                yield self._numbers(scores[:, 0].tolist())
            else:
                yield self._predictions(probabilities_of(scores, self._problem), items)

    def _predictions(self, probabilities: np.ndarray, items: Sequence[Item]) -> list[bytes]:
        """Predictions of probabilities (n, C)."""
        _check_finite(probabilities)
        best = probabilities.argmax(1).tolist()
        rows = probabilities.tolist()
        found = zip(rows, best, items, strict=True)
        return [self._prediction(row, i, top_k).encode() for row, i, (_, top_k) in found]

    def _prediction(self, row: list[float], best: int, top_k: int) -> str:
        if self._problem == MULTI:  # lists of the labels above the threshold and their probabilities
            chosen = [i for i, probability in enumerate(row) if probability >= MULTI_LABEL_THRESHOLD]
            label = f"[{','.join(self._labels[i] for i in chosen)}]"
            probability = f"[{','.join(f'{row[i]:.6g}' for i in chosen)}]"
        else:
            label, probability = self._labels[best], f"{row[best]:.6g}"
        if not top_k:
            return self._template % (label, probability, *row)

        order = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:top_k]
        shown = ",".join(f"{self._labels[i]}:{row[i]:.6g}" for i in order)
        return f'{{"label":{label},"probability":{probability},"probabilities":{{{shown}}}}}'

    def _numbers(self, found: Sequence[float]) -> list[bytes]:
        """Predictions of a regression model: a number in place of the label, no probabilities."""
        values = np.asarray(found, dtype=np.float64)
        _check_finite(values)
        template = '{"label":%.6g,"probability":null,"probabilities":{}}'
        return [(template % value).encode() for value in values.tolist()]


class JsonTagger:
    """Predicts the tag of every word of texts; each prediction is a JSON object with words and tags."""

    def __init__(self, tagger: "Tagger") -> None:
        self._tagger = tagger

    def __call__(self, items: Sequence[Item]) -> list[bytes]:
        """Words, split at spaces, and tags of each text, in order."""
        sentences = [text.split() for text, _ in items]
        found = zip(sentences, self._tagger.predict(sentences), strict=True)
        return [json.dumps({"words": words, "tags": tags}).encode() for words, tags in found]


def _check_finite(values: np.ndarray) -> None:
    """NaN and infinity have no form in JSON."""
    if not np.isfinite(values).all():
        raise ArithmeticError("the model's predictions are not finite")
