"""Encoder: text in, one unit vector out; the base class of what runs an encoder on a CPU or a GPU.

Imports only numpy and tokenizers, so that an encoder can run without torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ade.data.tokenize import CHUNK, tokenize
from ade.errors import InputError


class Encoder(ABC):
    """A trained encoder with its tokenizer; `Encoder.load` loads one."""

    tokenizer: Tokenizer
    max_tokens: int  # a text is truncated to so many
    longest: int  # the same, by the name that classifiers have for it
    dim: int  # D, the width of the vectors

    @abstractmethod
    def vectors(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return vectors (n, D) of any length; the tokens of text i are `ids[offsets[i]:offsets[i + 1]]`."""

    def encode(self, texts: str | Sequence[str], dim: int | None = None) -> np.ndarray:
        """Return the unit vector of each text: (n, D), or (D,) for one text, so that products are cosines.

        A text is truncated to `max_tokens` tokens. With `dim`, vectors are truncated to their first dimensions,
        which carry the most, and are unit vectors again.
        """
        if isinstance(texts, str):
            return self.encode([texts], dim)[0]
        if not hasattr(texts, "__len__"):
            raise InputError(f"give a text or a list of texts, not {texts!r:.40}")
        chunks = [texts[start : start + CHUNK] for start in range(0, max(1, len(texts)), CHUNK)]
        return np.concatenate([self.encode_chunk(chunk, dim, CHUNK * i) for i, chunk in enumerate(chunks)])

    def stream(self, texts: Iterable[str], dim: int | None = None) -> Iterator[np.ndarray]:
        """Yield the vectors of an iterable, in order, in arrays of several; only these are held in memory."""
        source, first = iter(texts), 0
        while chunk := list(islice(source, CHUNK)):
            yield self.encode_chunk(chunk, dim, first)
            first += len(chunk)

    def encode_chunk(self, texts: Sequence[str], dim: int | None = None, first: int = 0) -> np.ndarray:
        """Return the vectors of texts all at once; error messages number the texts from `first`."""
        found = self.vectors(*tokenize(self.tokenizer, texts, self.max_tokens, first=first))
        return unit(truncated(found, dim))

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", threads: int = 0) -> "Encoder":
        """Load an encoder from a folder or by its name on the Hugging Face hub.

        On a CPU numpy alone computes the vectors, whether torch is installed or not, by so many threads (0 for one per
        core); on another device torch does.
        """
        if device == "cpu":
            from ade.runtime.encoder import RuntimeEncoder

            return RuntimeEncoder.load(folder, threads=threads)
        from ade.sentence_encoder import SentenceEncoder

        return SentenceEncoder.load(folder, device)


def truncated(vectors: np.ndarray, dim: int | None) -> np.ndarray:
    """Return the first `dim` dimensions of vectors (n, D); all of them without a `dim`."""
    if dim is None:
        return vectors
    if not 1 <= dim <= vectors.shape[1]:
        raise InputError(f"vectors of this encoder have {vectors.shape[1]} dimensions; {dim} cannot be kept")
    return vectors[:, :dim]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, D) divided by their lengths; a zero vector stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32, copy=False)
