"""Texts of a request's body, and predictions as JSON.

Both are checked and written by hand: a general validator of lists of strings and a general JSON encoder of nested
dictionaries take longer than the prediction itself.
"""

import json
from collections.abc import Sequence

import numpy as np

from ade.data.problems import MULTI, MULTI_LABEL_THRESHOLD, REGRESSION
from ade.errors import InputError
from ade.predictor import Predictor


def parse_texts(body: bytes, max_texts: int, max_chars: int) -> list[str]:
    """The texts of a body `{"texts": "one"}` or `{"texts": ["several", ...]}`; an `InputError` for any other body."""
    try:
        parsed = json.loads(body.decode("utf8"))
    except (ValueError, RecursionError):
        raise InputError("the body is not JSON in UTF-8") from None
    if not isinstance(parsed, dict) or set(parsed) != {"texts"}:
        raise InputError('the body must be an object with "texts" and nothing else')

    texts = [parsed["texts"]] if isinstance(parsed["texts"], str) else parsed["texts"]
    if not isinstance(texts, list) or not texts:
        raise InputError('"texts" must be a string, or a list of at least one')
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

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        """The prediction of each text, in order."""
        if self._problem == REGRESSION:
            return self._numbers(texts)

        probabilities = self._predictor.predict_proba(texts)  # (n, C)
        _check_finite(probabilities)
        rows = probabilities.tolist()
        if self._problem == MULTI:
            return [self._multi_label(row).encode() for row in rows]

        template, labels = self._template, self._labels
        best = probabilities.argmax(1).tolist()
        return [(template % (labels[i], f"{row[i]:.6g}", *row)).encode() for i, row in zip(best, rows, strict=True)]

    def _numbers(self, texts: Sequence[str]) -> list[bytes]:
        """Predictions of a regression model: a number in place of the label, no probabilities."""
        values = np.asarray(self._predictor.predict(texts), dtype=np.float64)
        _check_finite(values)
        template = '{"label":%.6g,"probability":null,"probabilities":{}}'
        return [(template % value).encode() for value in values.tolist()]

    def _multi_label(self, row: list[float]) -> str:
        """One prediction of a multi-label model: lists of the labels above the threshold and their probabilities."""
        chosen = [i for i, probability in enumerate(row) if probability >= MULTI_LABEL_THRESHOLD]
        labels = ",".join(self._labels[i] for i in chosen)
        probabilities = ",".join(f"{row[i]:.6g}" for i in chosen)
        return self._template % (f"[{labels}]", f"[{probabilities}]", *row)


def _check_finite(values: np.ndarray) -> None:
    """NaN and infinity have no form in JSON."""
    if not np.isfinite(values).all():
        raise ArithmeticError("the model's predictions are not finite")
