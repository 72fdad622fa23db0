"""Encoder: text in, one unit vector out."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from ade.configuration import ENCODER
from ade.data.records import given_texts
from ade.data.tokens import CHUNK, tokenize
from ade.errors import InputError
from ade.trained_model import TrainedModel, check_texts_given


class Encoder(TrainedModel):
    """A trained encoder."""

    kind = ENCODER

    @property
    def dim(self) -> int:
        """D, the width of the vectors."""
        return self.saved.config.output_size

    def encode(self, texts: str | Sequence[str], dim: int | None = None, first: int = 0) -> np.ndarray:
        """Return the unit vector of each text: (n, D), or (D,) for one text, so that products are cosines.

        A text is truncated to `max_tokens` tokens. With `dim`, vectors are truncated to their first dimensions,
        which carry the most, and are unit vectors again. Error messages number the texts from `first`.
        """
        if isinstance(texts, str):
            return self.encode([texts], dim, first)[0]
        texts = check_texts_given(texts)
        chunks = [texts[start : start + CHUNK] for start in range(0, max(1, len(texts)), CHUNK)]
        return np.concatenate([self._encode_chunk(chunk, dim, first + CHUNK * i) for i, chunk in enumerate(chunks)])

    def stream(self, texts: Iterable[str], dim: int | None = None) -> Iterator[np.ndarray]:
        """Yield the vectors of an iterable, in order, in arrays of several; only these are held in memory."""
        source, first = iter(given_texts(texts)), 0
        while chunk := list(islice(source, CHUNK)):
            yield self._encode_chunk(chunk, dim, first)
            first += len(chunk)

    def _encode_chunk(self, texts: Sequence[str], dim: int | None, first: int) -> np.ndarray:
        vectors = self.backend.scores(tokenize(self.tokenizer, texts, self.max_tokens, first=first))
        if dim is not None:
            if not 1 <= dim <= self.dim:
                raise InputError(f"vectors of this encoder have {self.dim} dimensions; {dim} cannot be kept")
            vectors = vectors[:, :dim]
        return unit(vectors)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, D) divided by their lengths; a zero vector stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32, copy=False)
