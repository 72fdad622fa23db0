"""The model behind the service: the only file here that knows the classes of models; texts in, plain data out."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ade.codebook import Codebook
from ade.data.problems import REGRESSION
from ade.data.tokens import tokenize
from ade.decision import decide, probabilities_of
from ade.errors import InputError, first_line
from ade.inspector.reading import Inspector
from ade.trained_model import Classifier, Encoder, Tagger, load, unit

TEXT_COST, BYTES_PER_TOKEN = 8, 4  # in tokens: what a text costs beside its own; bytes of UTF-8, on average


class Query(NamedTuple):
    """A text, and what is asked of it: its most probable labels, None for all; how and how long its vector is."""

    text: str
    top_k: int | None = None
    dim: int | None = None
    encoding: str = "float"  # or "base64"


class ServedModel:
    """A classifier, a tagger or an encoder, and the inspector of a classifier where there is one."""

    def __init__(
        self, model: Classifier | Tagger | Encoder, name: str = "model", inspector: Inspector | None = None
    ) -> None:
        self.model, self.name, self.inspector = model, name, inspector
        self.classifier = model if isinstance(model, Classifier) else None
        self.encoder = model if isinstance(model, Encoder) else None
        self.dim = self.encoder.dim if self.encoder else 0

    @classmethod
    def load(cls, source: str | Path, inspect: bool = True) -> "ServedModel":
        """Load a model folder or a model on the hub, and try it on a text; `inspect` where it can be inspected."""
        model, inspector = load(source), None
        if inspect and isinstance(model, Classifier) and isinstance(model.saved.table, Codebook):
            inspector = Inspector(model)
        name = Path(source).resolve().name if Path(source).is_dir() else str(source)
        served = cls(model, name, inspector)
        try:
            served.embed([Query("a")]) if served.encoder else served.predict([Query("a")])
        except Exception as error:  # of any library
            raise InputError(f"{source}: the model fails on a test text ({first_line(error)})") from None
        return served

    def cost(self, query: Query) -> int:
        """Roughly the tokens of a text, plus what every text costs: counting them takes longer than predicting some."""
        size = len(query.text) if query.text.isascii() else len(query.text.encode())
        return TEXT_COST + min(size // BYTES_PER_TOKEN, self.model.tokens_read)

    def predict(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Return the prediction of each text, with the probabilities of all labels or of the most probable ones."""
        texts = [query.text for query in queries]
        if isinstance(self.model, Tagger):
            return [tagged._asdict() for tagged in self.model.tagged(texts)]
        assert self.classifier is not None
        scores, config = finite(self.classifier.scores(texts)), self.model.saved.config  # (n, C)
        predictions = decide(scores, config)
        if config.problem == REGRESSION:
            return [{**each._asdict(), "probabilities": {}} for each in predictions]

        answers = []
        rows = probabilities_of(scores, config.problem).tolist()
        for query, prediction, row in zip(queries, predictions, rows, strict=True):
            probabilities = dict(zip(config.labels, row, strict=True))
            if query.top_k is not None:
                most = sorted(probabilities, key=probabilities.__getitem__, reverse=True)[: query.top_k]
                probabilities = {name: probabilities[name] for name in most}
            label, probability = prediction
            answers.append({"label": label, "probability": probability, "probabilities": probabilities})
        return answers

    def embed(self, queries: Sequence[Query]) -> list[tuple[list[float] | str, int]]:
        """Return the unit vector of each text, truncated where asked, and the number of its tokens."""
        assert self.encoder is not None
        texts = [query.text for query in queries]
        lengths = tokenize(self.encoder.tokenizer, texts, self.encoder.max_tokens).lengths.tolist()
        embedded: list[tuple[list[float] | str, int]] = []
        for query, vector, tokens in zip(queries, finite(self.encoder.encode(texts)), lengths, strict=True):
            asked = unit(vector[None, : query.dim])[0]
            if query.encoding == "base64":
                embedded.append((base64.b64encode(asked.astype("<f4").tobytes()).decode(), tokens))
            else:
                embedded.append((asked.astype(np.float64).round(9).tolist(), tokens))
        return embedded

    def explain(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Return the explanation of each text."""
        assert self.classifier is not None
        return [self.classifier.explain(query.text).as_dict() for query in queries]

    def inspect(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Return what the inspector shows of each text."""
        assert self.inspector is not None
        return [self.inspector.read(query.text) for query in queries]


def finite(values: np.ndarray) -> np.ndarray:
    """The same values, which JSON can hold."""
    if not np.isfinite(values).all():
        raise ArithmeticError("the model's predictions are not finite")
    return values
