"""Classifier: text in, labels and probabilities out, and exact explanations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ade.configuration import CLASSIFIER
from ade.data.problems import Label
from ade.data.records import given_texts
from ade.data.tokens import CHUNK, Ragged, encode_chunks, tokenize, unknown_share
from ade.decision import Prediction, decide, labels_as_given, probabilities_of
from ade.trained_model import TrainedModel, check_texts_given

if TYPE_CHECKING:
    from ade.explanation import Explanation


class Classifier(TrainedModel):
    """A trained text classifier, or a model that predicts numbers."""

    kind = CLASSIFIER

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels as they were given for training, in the order of scores and probabilities."""
        return labels_as_given(self.saved.config)

    @property
    def problem(self) -> str:
        """What is predicted: one label, any number of labels, or a number."""
        return str(self.saved.config.problem)

    @overload
    def predict(  # type: ignore[overload-overlap]
        self, texts: str, threshold: float | None = None, top_k: int | None = None
    ) -> Prediction: ...
    @overload
    def predict(
        self, texts: Sequence[str], threshold: float | None = None, top_k: int | None = None
    ) -> list[Prediction]: ...
    def predict(self, texts: Any, threshold: float | None = None, top_k: int | None = None) -> Any:
        """Predict one text or a list of texts: label and probability of each.

        Labels are as they were given for training: the number 3 comes back as a number. A multi-label model predicts a
        list of labels, a regression a number. For `threshold` and `top_k` see `decide`.
        """
        if isinstance(texts, str):
            return self.predict([texts], threshold, top_k)[0]
        return decide(self.scores(texts), self.saved.config, threshold, top_k)

    def predict_proba(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the probability of each label: (C,) for one text, (n, C) for a list of texts."""
        if isinstance(texts, str):
            return self.predict_proba([texts])[0]
        return probabilities_of(self.scores(texts), self.problem)

    def stream(self, texts: Iterable[str]) -> Iterator[Prediction]:
        """Yield the prediction of each text of an iterable, in order; only a chunk of texts is held in memory."""
        source, first = iter(given_texts(texts)), 0
        while chunk := list(islice(source, CHUNK)):
            yield from decide(self.scores(chunk, first), self.saved.config)
            first += len(chunk)

    def scores(self, texts: Sequence[str], first: int = 0) -> np.ndarray:
        """Return the scores of each text, or the predicted numbers of a regression: (n, C).

        Error messages number the texts from `first`.
        """
        return self._by_chunks(texts, self.backend.scores, first)

    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the pooled vector of each text, the input of the last layer: (n, d), or (d,) for one text."""
        if isinstance(texts, str):
            return self.encode([texts])[0]
        return self._by_chunks(texts, self.backend.vectors)

    def _by_chunks(self, texts: Sequence[str], compute: Callable[[Ragged], np.ndarray], first: int = 0) -> np.ndarray:
        texts = check_texts_given(texts)
        parts = [
            compute(tokenize(self.tokenizer, texts[start : start + CHUNK], self.tokens_read, first=first + start))
            for start in range(0, max(1, len(texts)), CHUNK)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @overload
    def explain(self, texts: str) -> "Explanation": ...  # type: ignore[overload-overlap]
    @overload
    def explain(self, texts: Sequence[str]) -> "list[Explanation]": ...
    def explain(self, texts: Any) -> Any:
        """Take the prediction of one text, or of each of a list, apart."""
        if isinstance(texts, str):
            return self.explain([texts])[0]
        texts = check_texts_given(texts)
        chunks = encode_chunks(self.tokenizer, texts, self.tokens_read, offsets=True)
        encodings = (encoding for chunk in chunks for encoding in chunk)
        return [self._explain(*each) for each in zip(texts, encodings, strict=True)]

    def _explain(self, text: str, encoding: Any) -> "Explanation":
        from ade.explanation import Tokens, explain_text  # predictions do without

        ids, spellings, spans = encoding.ids or [0], encoding.tokens or [""], encoding.offsets or [(0, 0)]
        tokens = Tokens(np.array(ids, np.int32), spellings, spans)
        weights, scores = self.backend.token_scores(Ragged.of([tokens.ids]))
        return explain_text(text, tokens, weights, scores, self.saved)

    def unknown_share(self, texts: str | Sequence[str]) -> float:
        """Return the fraction of the tokens of texts that are unknown or single bytes; above 0.2 it fits badly."""
        return unknown_share(self.tokenizer, [texts] if isinstance(texts, str) else texts)
