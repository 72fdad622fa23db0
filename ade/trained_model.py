"""A trained model, ready to use: a Classifier, a Tagger or an Encoder, as `ade.load` returns it.

Each is what was read of a folder, and a backend that computes its numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy as np

from ade.backends import Backend, backend_for
from ade.configuration import CLASSIFIER, CODEBOOK, ENCODER, TAGGER, check_kind
from ade.data.problems import SINGLE, Label
from ade.data.records import given_texts
from ade.data.tokens import LEXICON_TOKENS, Ragged, encode_chunks, known_words, tokenize_chunks, truncating
from ade.decision import Prediction, Tagged, decide, labels_as_given, probabilities_of, tags_of_words
from ade.errors import InputError
from ade.files import ENGLISH
from ade.folder import Saved, encoder_of

if TYPE_CHECKING:
    from ade.explanation import Explanation


class TrainedModel:
    """What models of every kind share."""

    kind: ClassVar[str]

    def __init__(self, saved: Saved, backend: Backend | None = None) -> None:
        self.saved = saved
        self.backend = backend_for(saved) if backend is None else backend
        self.tokenizer = saved.tokenizer
        if self.tokenizer.truncation is None and self.tokenizer.padding is None:
            self.tokenizer.enable_truncation(self.tokens_read)  # in place: a copy would double the start-up time
        else:  # another model has it, too
            self.tokenizer = truncating(saved.tokenizer, self.tokens_read)
        self._known = known_words(self.tokenizer)

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that attention reads."""
        return self.saved.config.max_tokens

    @property
    def tokens_read(self) -> int:
        """Tokens of a text that are read at all: a lexicon reads more than attention."""
        return self.max_tokens if self.saved.lexicon is None else max(self.max_tokens, LEXICON_TOKENS)

    @property
    def metadata(self) -> dict[str, Any]:
        """What is known of the model: its teacher, data and metrics."""
        return dict(self.saved.config.metadata)

    @classmethod
    def load(cls, source: str | Path, device: str = "cpu", threads: int = 0, **download: Any) -> Self:
        """Load a model of this kind, as `ade.load` does."""
        saved = Saved.read(source, cls.kind, **download)
        return cls(saved, backend_for(saved, device, threads))

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write a complete model folder."""
        self.saved.save(folder, overwrite)

    def _rows(self, texts: Sequence[str], compute: Callable[[Ragged], np.ndarray]) -> np.ndarray:
        """Compute rows (n, m) of texts, some thousand texts at a time."""
        texts = given_texts(texts)
        if not hasattr(texts, "__len__") or not hasattr(texts, "__getitem__"):
            raise InputError(f"give a text or a list of texts, not {texts!r:.40}")
        rows = [compute(chunk) for chunk in tokenize_chunks(self.tokenizer, texts, self.tokens_read, self._known)]
        return np.concatenate(rows) if rows else compute(Ragged.of([]))

    def __repr__(self) -> str:
        labels, metadata = self.saved.config.labels, self.metadata
        parts = [f"{len(labels)} labels"] if len(labels) > 1 else []
        parts.append(f"{self.saved.nbytes / 1e6:.1f} MB")
        if "rows" in metadata and "data" in metadata:
            parts.append(f"trained on {metadata['rows']:,} rows of {metadata['data']}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without tables and caches; the copy runs on the CPU."""
        return type(self), (self.saved,)


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

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """Return the scores of each text, or the predicted numbers of a regression: (n, C)."""
        return self._rows(texts, self.backend.scores)

    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the pooled vector of each text, the input of the last layer: (n, d), or (d,) for one text."""
        if isinstance(texts, str):
            return self.encode([texts])[0]
        return self._rows(texts, self._pooled.scores)

    @cached_property
    def _pooled(self) -> Backend:
        saved = encoder_of(self.saved)
        return backend_for(replace(saved, config=replace(saved.config, layer_bits=0)))  # its new head is not rounded

    def explain(self, text: str) -> "Explanation":
        """Take the prediction of a text apart."""
        from ade.explanation import Tokens, explain_text  # predictions do without

        (encoding,) = next(encode_chunks(self.tokenizer, [text], self.tokens_read, offsets=True))
        ids = np.array(encoding.ids or [0], np.int32)  # a text without tokens is read as the token 0
        tokens = Tokens(ids, encoding.tokens or [""], encoding.offsets or [(0, 0)])
        weights, scores = self.backend.token_scores(Ragged.of([ids]))
        return explain_text(text, tokens, weights, scores, self.saved)


class Tagger(TrainedModel):
    """A trained model that predicts a tag for every word."""

    kind = TAGGER

    @property
    def labels(self) -> tuple[str, ...]:
        """The tags, in the order of scores."""
        return self.saved.config.labels

    def predict(self, sentences: Sequence[str | Sequence[str]]) -> list[list[str]]:
        """Predict the tag of each word of each sentence; a sentence is a list of words, or a string split at spaces.

        Words without a token, as those beyond the truncation, get the tag `O`, or the first tag.
        """
        return [[self.labels[tag] for tag in tags] for tags in self.tags(sentences)]

    def tagged(self, sentences: Sequence[str]) -> list[Tagged]:
        """Return words and tags of each sentence."""
        words = [sentence.split() for sentence in sentences]
        return list(map(Tagged, words, self.predict(words)))

    def tags(self, sentences: Sequence[str | Sequence[str]]) -> list[np.ndarray]:
        """Predict tags as `predict` does, but return their numbers in `labels`."""
        from ade.data.tags import encode_sentences  # for taggers alone

        if isinstance(sentences, str):
            raise InputError("give a list of sentences, each a string or a list of words")
        given = given_texts(sentences)
        split = [sentence.split() if isinstance(sentence, str) else list(sentence) for sentence in given]
        texts, words = encode_sentences(self.tokenizer, split, self.max_tokens)
        return tags_of_words(self.backend.token_scores(texts)[1], texts, words, split, self.labels)


class Encoder(TrainedModel):
    """A trained encoder: one unit vector for each text."""

    kind = ENCODER

    @property
    def dim(self) -> int:
        """D, the width of the vectors."""
        return self.saved.config.output_size

    def encode(self, texts: str | Sequence[str], dim: int | None = None) -> np.ndarray:
        """Return the unit vector of each text: (n, D), or (D,) for one text, so that products are cosines.

        With `dim`, vectors are truncated to their first dimensions, which carry the most.
        """
        if isinstance(texts, str):
            return self.encode([texts], dim)[0]
        if dim is not None and not 1 <= dim <= self.dim:
            raise InputError(f"vectors of this encoder have {self.dim} dimensions; {dim} cannot be kept")
        return self._rows(texts, lambda chunk: unit(self.backend.scores(chunk)[:, :dim]))

    def classifier(self, labels: Sequence[str] | Mapping[str, str]) -> Classifier:
        """Return a classifier that no rows are needed for: the label is the one whose description is nearest to a text.

        `labels` are names, or a description for each name. Give `predict` a threshold for texts of none of them.
        """
        described = labels if isinstance(labels, Mapping) else {name: name for name in labels}
        if len(described) < 2:
            raise InputError(f"a classifier needs at least two labels, not {len(described)}")
        vectors = self._rows(list(described.values()), self.backend.scores)  # (C, D)
        lengths = np.linalg.norm(vectors, axis=1)  # those of texts are about as long, and are not made unit vectors
        directions = SHARPNESS / lengths.mean() * unit(vectors)
        layers = dict(self.saved.layers)
        weight, bias = layers["head.weight"], layers["head.bias"]  # (D, d), (D,)
        layers |= {"head.weight": directions @ weight, "head.bias": directions @ bias}
        config = replace(self.saved.config, kind=CLASSIFIER, output_size=0, labels=tuple(described), problem=SINGLE)
        return Classifier(replace(self.saved, config=config, layers=layers).rounded())


SHARPNESS = 16.0  # of cosines as scores of labels: the best on training rows of AG News
CLASSES: dict[str, type[Classifier | Tagger | Encoder]] = {each.kind: each for each in (Classifier, Tagger, Encoder)}


def load(source: str | Path, device: str = "cpu", threads: int = 0, **download: Any) -> Classifier | Tagger | Encoder:
    """Load a trained model from a folder or by its name on the Hugging Face hub.

    On the CPU numpy alone runs it, by `threads` threads (0 for one per core), whether torch is installed or not;
    `cuda`, and `auto` where there is a GPU, need torch. `download` are arguments for the hub, as `revision`.
    """
    saved = Saved.read(source, **download)
    if saved.config.kind == CODEBOOK:
        check_kind(source, CODEBOOK, CLASSIFIER)
    return model_from(saved, device, threads)


def encode(texts: str | Sequence[str], dim: int | None = None) -> np.ndarray:
    """Return the unit vector of each text by the encoder of the package: (n, D), or (D,) for one text."""
    return _english().encode(texts, dim)


@cache
def _english() -> Encoder:
    return Encoder.load(ENGLISH)


def model_from(saved: Saved, device: str = "cpu", threads: int = 0) -> Classifier | Tagger | Encoder:
    """Return a model that is in memory already, ready to use."""
    return CLASSES[saved.config.kind](saved, backend_for(saved, device, threads))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, D) divided by their lengths; a zero vector stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32, copy=False)
