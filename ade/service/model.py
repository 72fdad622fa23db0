"""The model behind the service: the only file here that knows the classes of models; texts in, JSON out.

Predictions are written as JSON by hand: a general encoder of nested dictionaries takes longer than the prediction.
"""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ade.codebook import Codebook
from ade.data.problems import REGRESSION
from ade.data.tokens import tokenize
from ade.decision import Prediction, decide, probabilities_of
from ade.errors import InputError, first_line
from ade.inspector.reading import Inspector
from ade.trained_model import Classifier, Encoder, Tagger, load, unit

TEXT_COST, BYTES_PER_TOKEN = 8, 4  # in tokens: what a text costs beside its own; bytes of UTF-8, on average


class Query(NamedTuple):
    """A text to be predicted, and how many of its labels are asked for; None for all."""

    text: str
    top_k: int | None = None


class Embed(NamedTuple):
    """A text whose vector is asked for, as "float" or "base64", and the number of its dimensions."""

    text: str
    encoding: str
    dim: int


class ServedModel:
    """A classifier, a tagger or an encoder, and the inspector of a classifier where there is one."""

    def __init__(
        self, model: Classifier | Tagger | Encoder, name: str = "model", inspector: Inspector | None = None
    ) -> None:
        self.model, self.name, self.inspector = model, name, inspector
        self.classifier = model if isinstance(model, Classifier) else None
        self.encoder = model if isinstance(model, Encoder) else None
        self.dim = model.dim if isinstance(model, Encoder) else model.saved.table.dim if self.classifier else 0
        self._names = [json.dumps(name) for name in model.saved.config.labels]
        probabilities = ",".join(f"{name.replace('%', '%%')}:%.6g" for name in self._names)
        self._template = f'{{"label":%s,"probability":%s,"probabilities":{{{probabilities}}}}}'

    @classmethod
    def load(cls, source: str | Path, inspect: bool = True) -> "ServedModel":
        """Load a model folder or a model on the hub, and try it on a text; `inspect` where it can be inspected."""
        model, inspector = load(source), None
        if inspect and isinstance(model, Classifier) and isinstance(model.saved.table, Codebook):
            inspector = Inspector(model)
        name = Path(source).resolve().name if Path(source).is_dir() else str(source)
        served = cls(model, name, inspector)
        try:
            served.embed([Embed("a", "float", served.dim)]) if served.encoder else served.predict([Query("a")])
        except Exception as error:  # of any library
            raise InputError(f"{source}: the model fails on a test text ({first_line(error)})") from None
        return served

    def cost(self, item: Query | Embed) -> int:
        """Roughly the tokens of a text, plus what every text costs: counting them takes longer than predicting some."""
        size = len(item.text) if item.text.isascii() else len(item.text.encode())
        return TEXT_COST + min(size // BYTES_PER_TOKEN, self.model.tokens_read)

    def info(self) -> dict[str, Any]:
        """The name of the model and what it predicts."""
        config = self.model.saved.config
        about = {"name": self.name, "kind": config.kind, "problem": config.problem, "labels": list(config.labels)}
        return {**about, "max_tokens": config.max_tokens, "dim": self.dim or None}

    def predict(self, queries: Sequence[Query]) -> list[bytes]:
        """The prediction of each text, as JSON."""
        texts = [query.text for query in queries]
        if isinstance(self.model, Tagger):
            words = [text.split() for text in texts]
            tags = self.model.predict(words)
            return [json.dumps({"words": w, "tags": t}).encode() for w, t in zip(words, tags, strict=True)]
        assert self.classifier is not None
        scores, config = finite(self.classifier.scores(texts)), self.model.saved.config  # (n, C)
        predictions = decide(scores, config)
        if config.problem == REGRESSION:
            numbers = (f"{prediction.label:.6g}" for prediction in predictions)
            return [f'{{"label":{number},"probability":null,"probabilities":{{}}}}'.encode() for number in numbers]
        rows = probabilities_of(scores, config.problem).tolist()
        return [self._json(*each) for each in zip(predictions, rows, queries, strict=True)]

    def _json(self, prediction: Prediction, row: list[float], query: Query) -> bytes:
        """A prediction and the probabilities of all labels, or of the most probable ones."""
        found = prediction.probability
        probability = f"[{','.join(f'{each:.6g}' for each in found)}]" if isinstance(found, list) else f"{found:.6g}"
        label = json.dumps(prediction.label)
        if query.top_k is None:
            return (self._template % (label, probability, *row)).encode()
        order = sorted(range(len(row)), key=row.__getitem__, reverse=True)[: query.top_k]
        probabilities = ",".join(f"{self._names[i]}:{row[i]:.6g}" for i in order)
        return f'{{"label":{label},"probability":{probability},"probabilities":{{{probabilities}}}}}'.encode()

    def embed(self, items: Sequence[Embed]) -> list[tuple[bytes, int]]:
        """The vector of each text, as JSON, and the number of its tokens.

        An encoder's is truncated where asked, and of length one; a classifier's is the pooled one.
        """
        model, texts = self.model, [item.text for item in items]
        assert not isinstance(model, Tagger)
        vectors = finite(model.encode(texts))  # (n, D)
        lengths = tokenize(model.tokenizer, texts, model.max_tokens).lengths.tolist()
        embeddings = []
        for item, vector, tokens in zip(items, vectors, lengths, strict=True):
            wanted = unit(vector[None, : item.dim])[0] if self.encoder else vector
            if item.encoding == "base64":
                encoded = b'"%b"' % base64.b64encode(wanted.astype("<f4").tobytes())
            else:
                encoded = json.dumps(wanted.astype(np.float64).round(9).tolist()).encode()
            embeddings.append((encoded, tokens))
        return embeddings

    def embeddings(self, vectors: Sequence[tuple[bytes, int]]) -> bytes:
        """Vectors of `embed` as OpenAI's clients read them."""
        data = b",".join(
            b'{"object":"embedding","index":%d,"embedding":%b}' % (i, vector) for i, (vector, _) in enumerate(vectors)
        )
        tokens = sum(tokens for _, tokens in vectors)
        usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
        return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (data, json.dumps(self.name).encode(), usage)

    def explain(self, queries: Sequence[Query]) -> list[bytes]:
        """The explanation of each text, as JSON."""
        assert self.classifier is not None
        return [to_json(self.classifier.explain(query.text).as_dict()) for query in queries]

    def inspect(self, queries: Sequence[Query]) -> list[bytes]:
        """What the inspector shows of each text, as JSON."""
        assert self.inspector is not None
        return [to_json(self.inspector.read(query.text)) for query in queries]

    def about(self) -> bytes:
        """What the inspector shows of the model, as JSON; making it takes seconds."""
        assert self.inspector is not None
        return to_json(self.inspector.about())


def to_json(value: dict[str, Any]) -> bytes:
    """A value as JSON, which has no infinity and no NaN."""
    return json.dumps(value, allow_nan=False).encode()


def finite(values: np.ndarray) -> np.ndarray:
    """The same values, which JSON can hold."""
    if not np.isfinite(values).all():
        raise ArithmeticError("the model's predictions are not finite")
    return values
