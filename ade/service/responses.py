"""The texts of a request's body, and predictions as JSON: checked and written by hand, once a batch.

A general checker of lists of strings, and a general writer of dictionaries, take longer than predicting does.
"""

import json
from collections.abc import Sequence

import numpy as np

from ade.data.problems import MULTI, MULTI_LABEL_THRESHOLD, REGRESSION
from ade.errors import InputError
from ade.predictor import Predictor


def texts_of(body: bytes | bytearray, most: int, chars: int) -> list[str]:
    """The texts of `{"texts": "one" | ["many", ...]}`; an `InputError` says what else was found."""
    try:
        given = json.loads(body.decode("utf8"))
    except (ValueError, RecursionError):
        raise InputError("the body is not JSON in UTF-8") from None
    if not isinstance(given, dict) or set(given) != {"texts"}:
        raise InputError('the body must be an object with "texts" and nothing else')
    texts = [given["texts"]] if isinstance(given["texts"], str) else given["texts"]
    if not isinstance(texts, list) or not texts:
        raise InputError('"texts" must be a string, or a list of at least one')
    if len(texts) > most:
        raise InputError(f"{len(texts):,} texts; at most {most:,} are taken at once")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {number} is not a string")
        if len(text) > chars:
            raise InputError(f"text {number} has {len(text):,} characters; at most {chars:,} are taken")
        if not text.isascii():
            _check_unicode(text, number)
    return texts


def _check_unicode(text: str, number: int) -> None:
    try:
        text.encode("utf8")
    except UnicodeEncodeError:
        raise InputError(f"text {number} has half of a surrogate pair, which is no character") from None


class Answers:
    """Called with texts, gives each text's prediction as JSON."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor, self._problem = predictor, predictor.problem
        self._labels = [json.dumps(name) for name in predictor.names]
        chances = ",".join(f"{label.replace('%', '%%')}:%.6g" for label in self._labels)
        self._form = f'{{"label":%s,"probability":%s,"probabilities":{{{chances}}}}}'

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        """One answer a text, in order."""
        if self._problem == REGRESSION:
            values = np.asarray(self._predictor.predict(texts), dtype=np.float64)
            _check_finite(values)
            form = '{"label":%.6g,"probability":null,"probabilities":{}}'
            return [(form % value).encode() for value in values.tolist()]
        chances = self._predictor.predict_proba(texts)  # (n, C)
        _check_finite(chances)
        rows = chances.tolist()
        if self._problem == MULTI:
            return [self._several(row).encode() for row in rows]
        form, labels = self._form, self._labels
        best = chances.argmax(1).tolist()
        return [(form % (labels[i], f"{row[i]:.6g}", *row)).encode() for i, row in zip(best, rows, strict=True)]

    def _several(self, row: list[float]) -> str:
        """With any number of labels: a probability each."""
        likely = [i for i, chance in enumerate(row) if chance >= MULTI_LABEL_THRESHOLD]
        label = ",".join(self._labels[i] for i in likely)
        return self._form % (f"[{label}]", f"[{','.join(f'{row[i]:.6g}' for i in likely)}]", *row)


def _check_finite(values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise ArithmeticError("the model gives figures that are not finite")
